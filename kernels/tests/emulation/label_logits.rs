use half::bf16;
use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{LabelLogitsParams, LabelMergeParams},
};

use crate::support::{U32, Values, assert_within, launch, under_all_schedules, upload, wide};

struct Case {
    rows: usize,
    width: usize,
    vocab: usize,
    live: Option<u32>,
    /// Bound of the logits, or 0.
    cap: f32,
}

fn check(device: &Device, case: &Case) {
    let Case {
        rows,
        width,
        vocab,
        live,
        cap,
    } = *case;
    let what = format!("rows {rows} width {width} vocab {vocab} live {live:?} cap {cap}");
    let mut values = Values::new(6);
    let states = rows + 3;
    let hidden = values.bf16s(states * width, -1.0, 1.0);
    let table = values.bf16s(vocab * width, -1.0, 1.0);
    let index: Vec<u32> = (0..rows).map(|i| ((i * 7 + 2) % states) as u32).collect();
    let mut pairs: Vec<(u32, u32, u32)> = Vec::new();
    for row in 0..rows {
        for id in [
            0,
            vocab - 1,
            values.below(vocab),
            vocab / 2,
            255 % vocab,
            256 % vocab,
        ] {
            pairs.push((id as u32, row as u32, pairs.len() as u32));
        }
    }
    pairs.sort_unstable();
    let column =
        |f: fn(&(u32, u32, u32)) -> u32| upload(device, &pairs.iter().map(f).collect::<Vec<_>>());
    let out = device.alloc(pairs.len() * 4).unwrap();
    let slabs = vocab.div_ceil(256);
    let live_at = live.map_or(DevicePtr::NULL, |n| upload(device, &[n]));
    let params = LabelLogitsParams {
        index: upload(device, &index),
        hidden: upload(device, &hidden),
        table: upload(device, &table),
        pair_row: column(|p| p.1),
        pair_id: column(|p| p.0),
        pair_out: column(|p| p.2),
        out,
        partial: device.alloc(slabs * rows * 8).unwrap(),
        live: live_at,
        rows: rows as u32,
        pairs: pairs.len() as u32,
        width: width as u32,
        vocab: vocab as u32,
        hidden_stride: width as u32,
        cap,
    };
    assert_eq!(params.slabs() as usize, slabs);
    launch(device, params.launch(), &params);
    let lse = device.alloc(rows * 4).unwrap();
    let merge = LabelMergeParams {
        partial: params.partial,
        lse,
        live: live_at,
        rows: rows as u32,
        slabs: slabs as u32,
    };
    launch(device, merge.launch(), &merge);

    // Products of bf16 are exact in f32; a sum of `width` of them in f32, a rounding each.
    let logits = |row: usize| -> Vec<(f64, f64)> {
        let state = wide(&hidden[index[row] as usize * width..][..width]);
        let of = |weights: &[bf16]| {
            let products: Vec<f64> = state
                .iter()
                .zip(wide(weights))
                .map(|(x, w)| x * w)
                .collect();
            let magnitude: f64 = products.iter().map(|p| p.abs()).sum();
            let logit: f64 = products.iter().sum();
            let bound = width as f64 * U32 * magnitude;
            match f64::from(cap) {
                0.0 => (logit, bound),
                cap => (cap * (logit / cap).tanh(), bound + 16.0 * U32 * cap),
            }
        };
        table.chunks_exact(width).map(of).collect()
    };
    let live = live.map_or(rows, |n| n as usize);
    let all: Vec<Vec<(f64, f64)>> = (0..live).map(logits).collect();
    let got: Vec<f32> = device.download(out, pairs.len()).unwrap();
    for &(id, row, at) in &pairs {
        let got = got[at as usize];
        match all.get(row as usize) {
            Some(logits) => {
                let at = format!("{what} row {row} id {id}");
                assert_within(&at, &[f64::from(got)], [logits[id as usize]].into_iter());
            }
            None => assert_eq!(got.to_bits(), u32::MAX, "{what}: row {row} does not count"),
        }
    }
    let got: Vec<f32> = device.download(lse, rows).unwrap();
    for (row, got) in got.iter().enumerate() {
        let Some(logits) = all.get(row) else {
            assert_eq!(got.to_bits(), u32::MAX, "{what}: row {row} does not count");
            continue;
        };
        let top = logits.iter().map(|l| l.0).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logits.iter().map(|l| (l.0 - top).exp()).sum();
        let expected = top + sum.ln();
        let error = logits.iter().map(|l| l.1).fold(0.0, f64::max);
        let bound = error + 16.0 * U32 * (1.0 + expected.abs());
        assert_within(
            &format!("{what} lse {row}"),
            &[f64::from(*got)],
            [(expected, bound)].into_iter(),
        );
    }
}

#[test]
fn logits_and_their_log_sum_exp() {
    under_all_schedules(|device| {
        for (rows, width, vocab, live, cap) in [
            (1, 8, 40, None, 0.0),
            (3, 72, 331, None, 0.0),
            (9, 200, 256, Some(5), 0.0),
            (67, 136, 300, None, 0.0),
            (66, 64, 515, Some(65), 0.0),
            (3, 72, 331, None, 4.0),
        ] {
            check(
                device,
                &Case {
                    rows,
                    width,
                    vocab,
                    live,
                    cap,
                },
            );
        }
    });
}

/// A number that is not finite reaches the row's sum, and no other row's.
#[test]
fn bad_numbers_stay_in_their_row() {
    under_all_schedules(|device| {
        for bad in [f32::NAN, f32::INFINITY] {
            let (width, vocab, rows) = (64, 300, 3);
            let mut values = Values::new(8);
            let mut hidden = values.bf16s(rows * width, -1.0, 1.0);
            hidden[width] = bf16::from_f32(bad);
            let partial = device.alloc(2 * rows * 8).unwrap();
            let params = LabelLogitsParams {
                index: upload(device, &[0u32, 1, 2]),
                hidden: upload(device, &hidden),
                table: upload(device, &values.bf16s(vocab * width, 0.5, 1.0)),
                pair_row: DevicePtr::NULL,
                pair_id: DevicePtr::NULL,
                pair_out: DevicePtr::NULL,
                out: DevicePtr::NULL,
                partial,
                live: DevicePtr::NULL,
                rows: rows as u32,
                pairs: 0,
                width: width as u32,
                vocab: vocab as u32,
                hidden_stride: width as u32,
                cap: 0.0,
            };
            launch(device, params.launch(), &params);
            let lse = device.alloc(rows * 4).unwrap();
            let merge = LabelMergeParams {
                partial,
                lse,
                live: DevicePtr::NULL,
                rows: rows as u32,
                slabs: params.slabs(),
            };
            launch(device, merge.launch(), &merge);
            let lse: Vec<f32> = device.download(lse, rows).unwrap();
            assert!(
                lse[0].is_finite() && !lse[1].is_finite() && lse[2].is_finite(),
                "{lse:?}"
            );
        }
    });
}
