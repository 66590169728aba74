use half::bf16;
use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{MeanRow, PoolParams, PoolRow, SegmentMeansParams},
};

use crate::support::{Values, assert_untouched, launch, room_bf16, under_all_schedules, upload};

/// Computes the CPU executor's mean: chunks that start at absolute multiples of 256, in f32, in
/// order.
fn mean(states: &[&[bf16]], first_position: u32, column: usize) -> f32 {
    let (mut total, mut chunk) = (0.0f32, 0.0f32);
    for (i, state) in states.iter().enumerate() {
        if i > 0 && (first_position + i as u32).is_multiple_of(256) {
            total += chunk;
            chunk = 0.0;
        }
        chunk += state[column].to_f32();
    }
    (total + chunk) / states.len() as f32
}

fn expected(states: &[&[bf16]], row: &PoolRow) -> Vec<f32> {
    let mut vector: Vec<f32> = (0..row.dimensions as usize)
        .map(|i| match row.flags & PoolRow::MEAN {
            0 => states[states.len() - 1][i].to_f32(),
            _ => mean(states, row.first_position, i),
        })
        .collect();
    if row.flags & PoolRow::NORMALISE != 0 {
        let square: f64 = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum();
        let length = square.sqrt().max(1e-12);
        for x in &mut vector {
            *x = (f64::from(*x) / length) as f32;
        }
    }
    vector
}

fn check(device: &Device, width: usize, rows: &[PoolRow], live: Option<u32>) {
    let mut values = Values::new(11);
    let tokens = 700;
    let hidden = values.bf16s(tokens * width, -2.0, 2.0);
    // Any order of rows, as outputs of several requests have.
    let index: Vec<i32> = (0..tokens).map(|i| (i * 499 % tokens) as i32).collect();
    let out = device.alloc(rows.len() * width * 4).unwrap();
    let params = PoolParams {
        row: upload(device, rows),
        index: upload(device, &index),
        hidden: upload(device, &hidden),
        out,
        live: live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
        rows: rows.len() as u32,
        width: width as u32,
        hidden_stride: width as u32,
        out_stride: width as u32,
    };
    launch(device, params.launch(), &params);
    let narrow_stride = width + 3;
    let narrow_at = room_bf16(device, rows.len() * narrow_stride);
    let narrow_params = PoolParams {
        out: narrow_at,
        out_stride: narrow_stride as u32,
        ..params
    };
    launch(device, narrow_params.launch_bf16(), &narrow_params);
    let narrow: Vec<bf16> = device
        .download(narrow_at, rows.len() * narrow_stride)
        .unwrap();
    for (i, row) in rows.iter().enumerate() {
        let narrow = &narrow[i * narrow_stride..][..narrow_stride];
        let mut end = 0;
        if live.is_none_or(|n| i < n as usize) {
            end = row.dimensions as usize;
            let states = &index[row.first as usize..][..row.count as usize];
            let states: Vec<&[bf16]> = states
                .iter()
                .map(|&s| &hidden[s as usize * width..][..width])
                .collect();
            let flags = row.flags & PoolRow::MEAN;
            let plain = expected(&states, &PoolRow { flags, ..*row });
            let plain: Vec<bf16> = plain.into_iter().map(bf16::from_f32).collect();
            assert_eq!(narrow[..end], plain, "row {row:?} in bf16");
        }
        assert_untouched("a row in bf16", &narrow[end..]);
    }
    let got: Vec<u32> = device.download(out, rows.len() * width).unwrap();
    for (i, row) in rows.iter().enumerate() {
        let got = &got[i * width..][..width];
        let mut end = 0;
        if live.is_none_or(|n| i < n as usize) {
            end = row.dimensions as usize;
            let states = &index[row.first as usize..][..row.count as usize];
            let states: Vec<&[bf16]> = states
                .iter()
                .map(|&s| &hidden[s as usize * width..][..width])
                .collect();
            for (j, (got, expected)) in got.iter().zip(expected(&states, row)).enumerate() {
                let got = f32::from_bits(*got);
                // The length is summed in another order, in f64: a last place of f32 at most.
                let bound = if row.flags & PoolRow::NORMALISE == 0 {
                    0.0
                } else {
                    expected.abs() * 1.2e-7
                };
                assert!(
                    (got - expected).abs() <= bound,
                    "row {row:?} at {j}: {got} {expected}"
                );
            }
        }
        assert!(
            got[end..].iter().all(|&x| x == u32::MAX),
            "row {i} beyond its end"
        );
    }
}

#[test]
fn embeddings() {
    let row = |first, count, first_position, flags, dimensions| PoolRow {
        first,
        count,
        first_position,
        flags,
        dimensions,
        reserved: 0,
    };
    let (mean, normalise) = (PoolRow::MEAN, PoolRow::NORMALISE);
    under_all_schedules(|device| {
        for width in [56, 264] {
            let cut = width as u32 - 7;
            let all = width as u32;
            let rows = [
                row(0, 1, 0, 0, all),
                row(5, 9, 100, 0, cut),
                row(5, 9, 100, normalise, cut),
                row(0, 600, 0, mean, all),
                row(40, 300, 200, mean | normalise, cut),
                row(3, 2, 255, mean, all),
                row(3, 1, 256, mean, all),
                row(699, 1, 0, normalise, all),
            ];
            check(device, width, &rows, None);
            check(device, width, &rows, Some(3));
        }
    });
}

/// Means of segments in a part of the step's tokens; the others, and rows that do not count, stay.
#[test]
fn means_of_segments() {
    const FIRST: usize = 40;
    const ROWS: usize = 600;
    under_all_schedules(|device| {
        for (width, live) in [(56, None), (264, Some(3))] {
            let mut values = Values::new(12);
            let (x_stride, y_stride) = (width + 8, width + 16);
            let x = values.bf16s(ROWS * x_stride, -2.0, 2.0);
            let segments = [
                (40, 1),
                (41, 530),
                (41, 530),
                (571, 69),
                (30, 20),
                (630, 11),
                (640, 4),
            ];
            let rows = segments.map(|(first, count)| MeanRow { first, count });
            let y = room_bf16(device, rows.len() * y_stride);
            let params = SegmentMeansParams {
                row: upload(device, &rows),
                x: upload(device, &x),
                y,
                live: live.map_or(DevicePtr::NULL, |n: u32| upload(device, &[n])),
                rows: rows.len() as u32,
                width: width as u32,
                x_rows: ROWS as u32,
                first: FIRST as u32,
                x_stride: x_stride as u32,
                y_stride: y_stride as u32,
            };
            launch(device, params.launch(), &params);
            let got: Vec<bf16> = device.download(y, rows.len() * y_stride).unwrap();
            for (i, (got, (first, count))) in got.chunks(y_stride).zip(segments).enumerate() {
                let (first, count) = (first as usize, count as usize);
                let is_there = first >= FIRST && first + count <= FIRST + ROWS;
                let mut end = 0;
                if is_there && live.is_none_or(|n| i < n as usize) {
                    end = width;
                    let states: Vec<&[bf16]> = (first..first + count)
                        .map(|token| &x[(token - FIRST) * x_stride..][..width])
                        .collect();
                    for (j, got) in got[..width].iter().enumerate() {
                        let mean = bf16::from_f32(mean(&states, 0, j));
                        assert_eq!(*got, mean, "row {i} at {j}");
                    }
                }
                assert_untouched("a row that is elsewhere", &got[end..]);
            }
        }
    });
}

#[test]
fn a_zero_state_stays_zero() {
    under_all_schedules(|device| {
        let out = device.alloc(32).unwrap();
        let row = PoolRow {
            first: 0,
            count: 1,
            first_position: 0,
            flags: PoolRow::NORMALISE,
            dimensions: 8,
            reserved: 0,
        };
        let params = PoolParams {
            row: upload(device, &[row]),
            index: upload(device, &[0i32]),
            hidden: upload(device, &[bf16::ZERO; 8]),
            out,
            live: DevicePtr::NULL,
            rows: 1,
            width: 8,
            hidden_stride: 8,
            out_stride: 8,
        };
        launch(device, params.launch(), &params);
        assert_eq!(device.download::<f32>(out, 8).unwrap(), [0.0; 8]);
    });
}
