use half::bf16;
use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{ClassifyParams, LabelDotsParams},
};

use crate::support::{U32, Values, assert_within, launch, under_all_schedules, upload, wide};

/// Computes the product in f64, and how far a sum in f32 may be from it: 16 roundings of the
/// magnitudes.
fn dot(x: &[bf16], w: &[bf16]) -> (f64, f64) {
    let products: Vec<f64> = wide(x).iter().zip(wide(w)).map(|(x, w)| x * w).collect();
    let magnitude: f64 = products.iter().map(|p| p.abs()).sum();
    (products.iter().sum(), 16.0 * U32 * magnitude)
}

fn check(device: &Device, rows: usize, labels: usize, width: usize, live: Option<u32>) {
    let what = format!("[{rows}, {labels}, {width}] live {live:?}");
    let mut values = Values::new(5);
    let states = 9;
    let hidden = values.bf16s(states * width, -2.0, 2.0);
    let score = values.bf16s(labels * width, -2.0, 2.0);
    let index: Vec<u32> = (0..rows).map(|_| values.below(states) as u32).collect();
    let state = |i: u32| &hidden[i as usize * width..][..width];
    let weights = |l: usize| &score[l * width..][..width];
    let live_rows = live.map_or(rows, |n| n as usize);

    let hidden_at = upload(device, &hidden);
    let score_at = upload(device, &score);
    let out = device.alloc(rows * labels * 4).unwrap();
    let params = ClassifyParams {
        index: upload(device, &index),
        hidden: hidden_at,
        score: score_at,
        bias: DevicePtr::NULL,
        out,
        live: live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
        rows: rows as u32,
        labels: labels as u32,
        width: width as u32,
        hidden_stride: width as u32,
    };
    launch(device, params.launch(), &params);
    let got: Vec<f32> = device.download(out, rows * labels).unwrap();
    let expected =
        (0..live_rows * labels).map(|i| dot(state(index[i / labels]), weights(i % labels)));
    let (got, rest) = got.split_at(live_rows * labels);
    let got: Vec<f64> = got.iter().map(|&x| f64::from(x)).collect();
    assert_within(&what, &got, expected);
    assert!(
        rest.iter().all(|x| x.to_bits() == u32::MAX),
        "{what}: beyond the live rows"
    );

    // The same with a bias for each label.
    let bias = values.bf16s(labels, -2.0, 2.0);
    let biased = ClassifyParams {
        bias: upload(device, &bias),
        ..params
    };
    launch(device, biased.launch(), &biased);
    let got: Vec<f32> = device.download(out, live_rows * labels).unwrap();
    let got: Vec<f64> = got.iter().map(|&x| f64::from(x)).collect();
    let expected = (0..live_rows * labels).map(|i| {
        let (value, bound) = dot(state(index[i / labels]), weights(i % labels));
        let bias = bias[i % labels].to_f64();
        (value + bias, bound + 2.0 * U32 * (value.abs() + bias.abs()))
    });
    assert_within(&format!("{what} biased"), &got, expected);

    // The same through pairs, in another order.
    let n = rows * labels;
    let pairs: Vec<(u32, u32)> = (0..n)
        .map(|i| n - 1 - i)
        .map(|i| (index[i / labels], (i % labels) as u32))
        .collect();
    let out = device.alloc(n * 4).unwrap();
    let column =
        |f: fn(&(u32, u32)) -> u32| upload(device, &pairs.iter().map(f).collect::<Vec<_>>());
    let params = LabelDotsParams {
        row: column(|p| p.0),
        id: column(|p| p.1),
        hidden: hidden_at,
        table: score_at,
        out,
        live: live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
        products: n as u32,
        width: width as u32,
        hidden_stride: width as u32,
        cap: 0.0,
    };
    launch(device, params.launch(), &params);
    let got: Vec<f32> = device.download(out, n).unwrap();
    let live = live.map_or(n, |live| live as usize);
    let (got, rest) = got.split_at(live);
    let got: Vec<f64> = got.iter().map(|&x| f64::from(x)).collect();
    let expected = pairs[..live]
        .iter()
        .map(|&(row, id)| dot(state(row), weights(id as usize)));
    assert_within(&what, &got, expected);
    assert!(
        rest.iter().all(|x| x.to_bits() == u32::MAX),
        "{what}: beyond the live pairs"
    );
    // The same, bounded: a bound's own roundings on top.
    let cap = 3.0;
    let capped = LabelDotsParams { cap, ..params };
    launch(device, capped.launch(), &capped);
    let got: Vec<f32> = device.download(out, n).unwrap();
    let got: Vec<f64> = got[..live].iter().map(|&x| f64::from(x)).collect();
    let expected = pairs[..live].iter().map(|&(row, id)| {
        let (value, bound) = dot(state(row), weights(id as usize));
        let cap = f64::from(cap);
        (cap * (value / cap).tanh(), bound + 16.0 * U32 * cap)
    });
    assert_within(&format!("{what} capped"), &got, expected);
}

#[test]
fn products() {
    under_all_schedules(|device| {
        for width in [8, 56, 264, 1024] {
            check(device, 1, 1, width, None);
            check(device, 3, 5, width, None);
            check(device, 7, 3, width, Some(4));
        }
    });
}
