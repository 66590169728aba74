use half::bf16;
use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{EmbedParams, GatherRowsParams},
};

use crate::support::{Values, launch, room_bf16, under_all_schedules, upload};

const VOCAB: usize = 37;

/// Rows of `table` by index, NaN where there is none, unwritten from `live` on.
fn expected(table: &[bf16], width: usize, index: &[Option<usize>], live: usize) -> Vec<u16> {
    let row = |(i, at): (usize, &Option<usize>)| match at {
        _ if i >= live => vec![0xffff; width],
        None => vec![0x7fff; width],
        Some(at) => table[at * width..][..width]
            .iter()
            .map(|v| v.to_bits())
            .collect(),
    };
    index.iter().enumerate().flat_map(row).collect()
}

fn embed(device: &Device, rows: usize, width: usize, live: Option<u32>) {
    let mut values = Values::new(3);
    let table = values.bf16s(VOCAB * width, -2.0, 2.0);
    let sampled = [5i32, 36, 0, 37];
    let (mut ids, mut index) = (Vec::new(), Vec::new());
    for i in 0..rows {
        let (id, at) = match i % 9 {
            0 => (36, Some(36)),
            1 => (0, Some(0)),
            2 => (-2, Some(36)), // row 1 of the sampled ids
            3 => (-4, None),     // row 3, which is out of range
            4 => (-5, None),     // no such row
            5 => (37, None),
            6 => (i32::MIN, None),
            _ => {
                let id = values.below(VOCAB);
                (id as i32, Some(id))
            }
        };
        ids.push(id);
        index.push(at);
    }
    let h = room_bf16(device, rows * width);
    let params = EmbedParams {
        ids: upload(device, &ids),
        sampled: upload(device, &sampled),
        table: upload(device, &table),
        h,
        live: live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
        rows: rows as u32,
        width: width as u32,
        vocab: VOCAB as u32,
        sampled_rows: sampled.len() as u32,
        h_stride: width as u32,
        scale: 1.0,
    };
    launch(device, params.launch(), &params);
    let got: Vec<u16> = device.download(h, rows * width).unwrap();
    let live = live.map_or(rows, |n| n as usize);
    let copied = expected(&table, width, &index, live);
    assert!(got == copied, "[{rows}, {width}]");
    // The same, scaled and rounded once; a row that is not there stays NaN.
    let scaled = EmbedParams {
        scale: 25.298_222,
        ..params
    };
    launch(device, scaled.launch(), &scaled);
    let got: Vec<bf16> = device.download(h, rows * width).unwrap();
    for (i, (got, copied)) in got.iter().zip(&copied).enumerate() {
        let copied = bf16::from_bits(*copied);
        match copied.is_nan() {
            true => assert!(got.is_nan(), "scaled [{rows}, {width}] at {i}"),
            false => assert_eq!(
                *got,
                bf16::from_f32(scaled.scale * copied.to_f32()),
                "scaled [{rows}, {width}] at {i}"
            ),
        }
    }
}

fn gather(device: &Device, rows: usize, width: usize, live: Option<u32>) {
    let mut values = Values::new(4);
    let x_rows = 11;
    let x = values.bf16s(x_rows * width, -2.0, 2.0);
    let index: Vec<i32> = (0..rows)
        .map(|i| match i {
            0 => 10,
            1 => 11,
            2 => -1,
            _ => values.below(x_rows) as i32,
        })
        .collect();
    let y = room_bf16(device, rows * width);
    let params = GatherRowsParams {
        index: upload(device, &index),
        x: upload(device, &x),
        y,
        live: live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
        rows: rows as u32,
        width: width as u32,
        x_rows: x_rows as u32,
        x_stride: width as u32,
        y_stride: width as u32,
        first: 0,
        is_part: 0,
        reserved: 0,
    };
    launch(device, params.launch(), &params);
    let got: Vec<u16> = device.download(y, rows * width).unwrap();
    let live = live.map_or(rows, |n| n as usize);
    let there = |&i: &i32| usize::try_from(i).ok().filter(|&i| i < x_rows);
    let index: Vec<_> = index.iter().map(there).collect();
    assert!(
        got == expected(&x, width, &index, live),
        "[{rows}, {width}]"
    );
}

/// Rows from two parts of what indices name, a launch each.
fn gather_parts(device: &Device, rows: usize, width: usize) {
    let mut values = Values::new(5);
    let x_rows = 11;
    let x = values.bf16s(x_rows * width, -2.0, 2.0);
    // Parts hold 15..19 and 19..26.
    let index: Vec<i32> = (0..rows)
        .map(|i| match i {
            0 => 14,
            1 => 25,
            2 => 26,
            3 => -1,
            4 => 0,
            _ => 15 + values.below(x_rows) as i32,
        })
        .collect();
    let y = room_bf16(device, rows * width);
    let index_at = upload(device, &index);
    for part in [0..4, 4..x_rows] {
        let params = GatherRowsParams {
            index: index_at,
            x: upload(device, &x[part.start * width..part.end * width]),
            y,
            live: DevicePtr::NULL,
            rows: rows as u32,
            width: width as u32,
            x_rows: part.len() as u32,
            x_stride: width as u32,
            y_stride: width as u32,
            first: 15 + part.start as u32,
            is_part: 1,
            reserved: 0,
        };
        launch(device, params.launch(), &params);
    }
    let got: Vec<u16> = device.download(y, rows * width).unwrap();
    for (r, &i) in index.iter().enumerate() {
        let at = usize::try_from(i - 15).ok().filter(|&at| at < x_rows);
        let row = &got[r * width..][..width];
        match at {
            Some(at) => assert!(
                row.iter()
                    .zip(&x[at * width..])
                    .all(|(a, b)| *a == b.to_bits()),
                "row {r} of [{rows}, {width}]"
            ),
            None => assert!(row.iter().all(|&bits| bits == 0xffff), "row {r} stays"),
        }
    }
}

#[test]
fn copies() {
    under_all_schedules(|device| {
        for width in [8, 56, 200, 1024] {
            for rows in [1, 3, 8, 17] {
                let live = (rows == 17).then_some(12);
                embed(device, rows, width, live);
                gather(device, rows, width, live);
                gather_parts(device, rows, width);
            }
        }
    });
}
