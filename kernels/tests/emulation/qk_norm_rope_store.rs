use half::bf16;
use prelude_kernels::{DevicePtr, emu::Device, families::QkNormRopeStoreParams};

use crate::support::{
    U16, U32, Values, assert_untouched, assert_within, launch, room_bf16, under_all_schedules,
    upload, wide,
};

const EPS: f32 = 1e-6;
const POSITIONS: usize = 70;

#[derive(Clone, Copy, Debug)]
struct Case {
    heads: usize,
    kv_heads: usize,
    dim: usize,
    block_size: usize,
    /// True if K and V go to a buffer of the step too.
    step: bool,
    /// True if heads are normalised.
    norm: bool,
    /// Added to the norms' weights.
    offset: f32,
    live: Option<u32>,
}

/// `[positions, dim]`: cosines, then sines, as the host makes them.
fn table(dim: usize) -> Vec<f32> {
    let mut table = Vec::new();
    for position in 0..POSITIONS {
        let angle = |i: usize| position as f64 * 1e4f64.powf(-2.0 * i as f64 / dim as f64);
        table.extend((0..dim / 2).map(|i| angle(i).cos() as f32));
        table.extend((0..dim / 2).map(|i| angle(i).sin() as f32));
    }
    table
}

/// Computes norm and rotation of one head, with the bound of each element.
fn reference(x: &[f64], w: Option<&[f64]>, angles: &[f32]) -> Vec<(f64, f64)> {
    let half = x.len() / 2;
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(EPS)).sqrt();
    let y: Vec<f64> = match w {
        Some(w) => x.iter().zip(w).map(|(x, w)| x * scale * w).collect(),
        None => x.to_vec(),
    };
    let turned = |i: usize| {
        let (cos, sin) = (
            f64::from(angles[i % half]),
            f64::from(angles[half + i % half]),
        );
        let (a, b) = (y[i % half], y[i % half + half]);
        let value = if i < half {
            a * cos - b * sin
        } else {
            b * cos + a * sin
        };
        // Rounded to bf16 once; before that, in f32.
        let bound = 1.001 * U16 * value.abs() + 32.0 * U32 * (a.abs() + b.abs());
        (value, bound)
    };
    (0..x.len()).map(turned).collect()
}

fn check(device: &Device, case: Case) {
    let what = format!("{case:?}");
    let Case {
        heads,
        kv_heads,
        dim,
        block_size,
        ..
    } = case;
    let positions = [5, 0, 69, 33, 31, 1];
    // Blocks out of order; -1 is not kept.
    let places = [
        Some((2, 1)),
        None,
        Some((0, block_size - 1)),
        Some((0, 0)),
        None,
        Some((1, 3)),
    ];
    let rows = positions.len();
    let slots: Vec<i32> = places
        .iter()
        .map(|p| p.map_or(-1, |(b, o)| (b * block_size + o) as i32))
        .collect();
    let live = case.live.map_or(rows, |n| n as usize);
    let width = (heads + 2 * kv_heads) * dim;
    let stride = width + 8;
    let mut values = Values::new(4);
    let before = values.bf16s(rows * stride, -3.0, 3.0);
    let q_norm = values.bf16s(dim, 0.25, 4.0);
    let k_norm = values.bf16s(dim, 0.25, 4.0);
    let norm_at = |norm: &[bf16]| match case.norm {
        true => upload(device, norm),
        false => DevicePtr::NULL,
    };
    let rope = table(dim);
    let page = kv_heads * block_size * dim;
    let qkv = upload(device, &before);
    let pages = [room_bf16(device, 3 * page), room_bf16(device, 3 * page)];
    let (step_first, step_rows) = (2, rows + 3);
    let step_stride = kv_heads * dim + 16;
    let step = [(); 2].map(|()| {
        if case.step {
            room_bf16(device, step_rows * step_stride)
        } else {
            DevicePtr::NULL
        }
    });
    let params = QkNormRopeStoreParams {
        qkv,
        positions: upload(device, &positions),
        slots: upload(device, &slots),
        rope: upload(device, &rope),
        q_norm: norm_at(&q_norm),
        k_norm: norm_at(&k_norm),
        k_pages: pages[0],
        v_pages: pages[1],
        k_step: step[0],
        v_step: step[1],
        live: case.live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
        rows: rows as u32,
        heads: heads as u32,
        kv_heads: kv_heads as u32,
        head_dim: dim as u32,
        qkv_stride: stride as u32,
        block_size: block_size as u32,
        step_first,
        step_stride: step_stride as u32,
        rope_positions: POSITIONS as u32,
        eps: EPS,
        offset: case.offset,
        reserved: 0,
    };
    launch(device, params.launch(), &params);

    let after: Vec<bf16> = device.download(qkv, rows * stride).unwrap();
    let mut expected_pages = [vec![None; 3 * page], vec![None; 3 * page]];
    let mut expected_step = [(); 2].map(|()| vec![None; step_rows * step_stride]);
    for row in 0..rows {
        let at = row * stride;
        for head in 0..heads + 2 * kv_heads {
            let range = at + head * dim..at + (head + 1) * dim;
            let is_value = head >= heads + kv_heads;
            if row >= live || is_value {
                assert_eq!(
                    after[range.clone()],
                    before[range.clone()],
                    "{what}: {row} {head}"
                );
            } else {
                let w = if head < heads { &q_norm } else { &k_norm };
                let angles = &rope[positions[row] as usize * dim..][..dim];
                let offset = f64::from(case.offset);
                let w = wide(w).into_iter().map(|w| offset + w).collect::<Vec<_>>();
                let w = case.norm.then_some(w);
                let expected = reference(&wide(&before[range.clone()]), w.as_deref(), angles);
                let what = format!("{what} row {row} head {head}");
                assert_within(&what, &wide(&after[range.clone()]), expected.into_iter());
            }
            if row < live && head >= heads {
                // K and V lie elsewhere with the very bits that they have in qkv.
                let kv_head = (head - heads) % kv_heads;
                for i in 0..dim {
                    let value = Some(after[range.start + i]);
                    if let Some((block, offset)) = places[row] {
                        let place = ((block * kv_heads + kv_head) * block_size + offset) * dim;
                        expected_pages[usize::from(is_value)][place + i] = value;
                    }
                    let place = (step_first as usize + row) * step_stride + kv_head * dim;
                    expected_step[usize::from(is_value)][place + i] = value;
                }
            }
        }
        assert_eq!(
            after[at + width..at + stride],
            before[at + width..at + stride]
        );
    }
    let check_stored = |what: &str, at: DevicePtr, expected: &[Option<bf16>]| {
        let got: Vec<bf16> = device.download(at, expected.len()).unwrap();
        for (i, expected) in expected.iter().enumerate() {
            match expected {
                Some(value) => assert_eq!(got[i], *value, "{what} at {i}"),
                None => assert_untouched(what, &got[i..=i]),
            }
        }
    };
    for which in 0..2 {
        let name = ["K", "V"][which];
        check_stored(
            &format!("{what} {name} pages"),
            pages[which],
            &expected_pages[which],
        );
        if case.step {
            check_stored(
                &format!("{what} {name} step"),
                step[which],
                &expected_step[which],
            );
        }
    }
}

#[test]
fn turns_and_places() {
    under_all_schedules(|device| {
        for (heads, kv_heads, dim) in [
            (2, 1, 128),
            (4, 2, 32),
            (3, 3, 40),
            (8, 2, 24),
            (1, 1, 8),
            (2, 1, 256),
            (3, 1, 136),
        ] {
            for (block_size, step, live, norm, offset) in [
                (16, false, None, true, 0.0),
                (64, true, None, true, 1.0),
                (16, true, Some(4), true, 0.0),
                (16, true, None, false, 0.0),
            ] {
                check(
                    device,
                    Case {
                        heads,
                        kv_heads,
                        dim,
                        block_size,
                        step,
                        norm,
                        offset,
                        live,
                    },
                );
            }
        }
    });
}

/// A position without a rotation spoils its own row, and no other.
#[test]
fn unknown_positions_are_nan() {
    under_all_schedules(|device| {
        let (dim, stride) = (64, 3 * 64);
        let mut values = Values::new(5);
        let before = values.bf16s(4 * stride, -3.0, 3.0);
        let norm = upload(device, &values.bf16s(dim, 0.25, 4.0));
        let qkv = upload(device, &before);
        let params = QkNormRopeStoreParams {
            qkv,
            positions: upload(device, &[0, POSITIONS as i32, -1, 69]),
            slots: upload(device, &[-1i32; 4]),
            rope: upload(device, &table(dim)),
            q_norm: norm,
            k_norm: norm,
            k_pages: DevicePtr::NULL,
            v_pages: DevicePtr::NULL,
            k_step: DevicePtr::NULL,
            v_step: DevicePtr::NULL,
            live: DevicePtr::NULL,
            rows: 4,
            heads: 1,
            kv_heads: 1,
            head_dim: dim as u32,
            qkv_stride: stride as u32,
            block_size: 16,
            step_first: 0,
            step_stride: 0,
            rope_positions: POSITIONS as u32,
            eps: EPS,
            offset: 0.0,
            reserved: 0,
        };
        launch(device, params.launch(), &params);
        let after: Vec<bf16> = device.download(qkv, 4 * stride).unwrap();
        for (row, after) in after.chunks(stride).enumerate() {
            let unknown = row == 1 || row == 2;
            assert!(
                after[..2 * dim].iter().all(|v| v.is_nan() == unknown),
                "{row}"
            );
            assert_eq!(after[2 * dim..], before[row * stride + 2 * dim..][..dim]);
        }
    });
}
