use half::bf16;
use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{ExpertsOrderParams, ExpertsRouteParams, ExpertsSumParams, expert_tiles},
};

use crate::support::{
    U16, U32, Values, assert_untouched, assert_within, launch, room_bf16, under_all_schedules,
    upload, wide,
};

/// Most rows of a tile.
const TILE: usize = 64;

/// Choices sorted by expert and then by token, in the device's memory and in the test's.
pub(crate) struct Sorted {
    pub(crate) tokens: Vec<u32>,
    pub(crate) places: Vec<u32>,
    pub(crate) tiles: Vec<[u32; 4]>,
    pub(crate) at_tokens: DevicePtr,
    pub(crate) at_places: DevicePtr,
    pub(crate) at_tiles: DevicePtr,
    pub(crate) at_count: DevicePtr,
}

/// Sorts by the kernel, and compares with a stable sort.
pub(crate) fn sort(device: &Device, chosen: &[u32], per_token: usize, experts: usize) -> Sorted {
    let n = chosen.len();
    let most = expert_tiles(n as u32, experts as u32) as usize;
    let room = |words: usize| device.alloc(words.max(1) * 4).unwrap();
    let params = ExpertsOrderParams {
        chosen: upload(device, chosen),
        tokens: room(n),
        places: room(n),
        tiles: room(4 * most),
        tile_count: room(1),
        choices: n as u32,
        per_token: per_token as u32,
        experts: experts as u32,
        reserved: 0,
    };
    launch(device, params.launch(), &params);
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by_key(|&c| chosen[c]);
    let tokens: Vec<u32> = order.iter().map(|&c| (c / per_token) as u32).collect();
    let mut places = vec![0; n];
    for (row, &choice) in order.iter().enumerate() {
        places[choice] = row as u32;
    }
    let mut tiles = Vec::new();
    let mut row = 0;
    for expert in 0..experts as u32 {
        let end = row + chosen.iter().filter(|&&of| of == expert).count();
        while row < end {
            let rows = TILE.min(end - row);
            tiles.push([expert, row as u32, rows as u32, 0]);
            row += rows;
        }
    }
    let what = format!("{n} choices of {per_token} among {experts}");
    assert!(tiles.len() <= most, "{what}: {} tiles", tiles.len());
    let read = |at, len| device.download::<u32>(at, len).unwrap();
    assert_eq!(read(params.tokens, n), tokens, "{what}");
    assert_eq!(read(params.places, n), places, "{what}");
    assert_eq!(read(params.tile_count, 1), [tiles.len() as u32], "{what}");
    let got = read(params.tiles, 4 * most);
    let made = got.len().min(4 * tiles.len());
    assert_eq!(got[..made], tiles.concat(), "{what}");
    assert!(got[made..].iter().all(|&word| word == u32::MAX), "{what}");
    Sorted {
        tokens,
        places,
        tiles,
        at_tokens: params.tokens,
        at_places: params.places,
        at_tiles: params.tiles,
        at_count: params.tile_count,
    }
}

/// Different experts for each token, ascending; some experts for none.
pub(crate) fn choices(
    values: &mut Values,
    tokens: usize,
    per_token: usize,
    experts: usize,
) -> Vec<u32> {
    let mut chosen = Vec::new();
    for _ in 0..tokens {
        let mut all: Vec<u32> = (0..experts as u32).collect();
        for i in 0..per_token {
            // The first ones more often.
            let other = i + values.below(experts - i).min(values.below(experts - i));
            all.swap(i, other);
        }
        all.truncate(per_token);
        all.sort_unstable();
        chosen.extend(all);
    }
    chosen
}

/// The chosen experts and their shares, in f64.
fn route(logits: &[f32], per_token: usize, normalise: bool) -> Vec<(u32, f64)> {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let weight = |&e: &usize| (f64::from(logits[e]) - f64::from(logits[order[0]])).exp();
    let over = match normalise {
        true => order[..per_token].iter().map(weight).sum::<f64>(),
        false => order.iter().map(weight).sum(),
    };
    let mut chosen = order[..per_token].to_vec();
    chosen.sort_unstable();
    chosen
        .iter()
        .map(|e| (*e as u32, weight(e) / over))
        .collect()
}

#[test]
fn routes() {
    under_all_schedules(|device| {
        let mut values = Values::new(4);
        for (rows, experts, per_token, normalise) in [
            (1, 1, 1, true),
            (3, 5, 2, false),
            (9, 8, 8, true),
            (10, 70, 6, true),
            (2, 33, 32, false),
        ] {
            let what = format!("{per_token} of {experts}, {normalise}");
            let stride = experts + 3;
            let mut logits = values.f32s(rows * stride, -9.0, 9.0);
            // Equal ones, zeros of either sign, and a large one.
            if experts >= 5 {
                logits[1] = logits[4];
                logits[stride..][..3].copy_from_slice(&[-0.0, 0.0, 60.0]);
            }
            let params = ExpertsRouteParams {
                logits: upload(device, &logits),
                chosen: device.alloc(rows * per_token * 4).unwrap(),
                shares: device.alloc(rows * per_token * 4).unwrap(),
                rows: rows as u32,
                experts: experts as u32,
                per_token: per_token as u32,
                logits_stride: stride as u32,
                normalise: u32::from(normalise),
                reserved: 0,
            };
            launch(device, params.launch(), &params);
            let n = rows * per_token;
            let chosen: Vec<u32> = device.download(params.chosen, n).unwrap();
            let shares: Vec<f32> = device.download(params.shares, n).unwrap();
            for row in 0..rows {
                let logits = &logits[row * stride..][..experts];
                // As the kernel has them: zeros are equal.
                let plain: Vec<f32> = logits.iter().map(|x| x + 0.0).collect();
                let expected = route(&plain, per_token, normalise);
                let at = row * per_token..(row + 1) * per_token;
                let experts: Vec<u32> = expected.iter().map(|&(e, _)| e).collect();
                assert_eq!(chosen[at.clone()], experts, "{what}, row {row}");
                let got: Vec<f64> = shares[at].iter().map(|&x| f64::from(x)).collect();
                // The exponents' differences and the sum.
                let bounds = expected.iter().map(|&(_, p)| (p, 128.0 * U32 * p + 1e-30));
                let what = format!("{what}, row {row}");
                assert_within(&what, &got, bounds.collect::<Vec<_>>().into_iter());
            }
        }
    });
}

/// A row that is not finite chooses experts that exist, and its shares say that it failed.
#[test]
fn rows_that_are_not_finite_choose_too() {
    under_all_schedules(|device| {
        let (experts, per_token) = (6, 2);
        let mut logits = vec![0.5f32; 4 * experts];
        logits[..experts].fill(f32::from_bits(0x7fff_ffff));
        logits[experts..2 * experts].fill(f32::NAN);
        logits[2 * experts + 3] = f32::INFINITY;
        let params = ExpertsRouteParams {
            logits: upload(device, &logits),
            chosen: device.alloc(4 * per_token * 4).unwrap(),
            shares: device.alloc(4 * per_token * 4).unwrap(),
            rows: 4,
            experts: experts as u32,
            per_token: per_token as u32,
            logits_stride: experts as u32,
            normalise: 1,
            reserved: 0,
        };
        launch(device, params.launch(), &params);
        let chosen: Vec<u32> = device.download(params.chosen, 8).unwrap();
        let shares: Vec<f32> = device.download(params.shares, 8).unwrap();
        assert_eq!(chosen, [0, 1, 0, 1, 0, 3, 0, 1]);
        assert!(shares[..6].iter().all(|share| share.is_nan()), "{shares:?}");
        assert_eq!(shares[6..], [0.5, 0.5]);
    });
}

#[test]
fn orders() {
    under_all_schedules(|device| {
        let mut values = Values::new(8);
        for (tokens, per_token, experts) in [(1, 1, 1), (1, 2, 7), (70, 1, 1), (3, 4, 5)] {
            let chosen = choices(&mut values, tokens, per_token, experts);
            sort(device, &chosen, per_token, experts);
        }
        // More choices than threads, more experts than lanes, several tiles of an expert.
        let chosen = choices(&mut values, 301, 3, 40);
        sort(device, &chosen, 3, 40);
        // One expert for all.
        sort(device, &[2; 130], 1, 4);
    });
}

#[test]
fn sums() {
    under_all_schedules(|device| {
        for (rows, per_token, width, gap) in [(1, 1, 8, 0), (5, 3, 72, 8), (40, 2, 80, 0)] {
            let mut values = Values::new((rows + width) as u64);
            let chosen = choices(&mut values, rows, per_token, 4);
            let n = rows * per_token;
            let stride = width + gap;
            let sorted = sort(device, &chosen, per_token, 4);
            let out = values.bf16s(n * stride, -2.0, 2.0);
            let shares = values.f32s(n, 0.0, 1.0);
            let before = values.bf16s(rows * stride, -4.0, 4.0);
            let params = ExpertsSumParams {
                out: upload(device, &out),
                places: sorted.at_places,
                shares: upload(device, &shares),
                h: upload(device, &before),
                rows: rows as u32,
                width: width as u32,
                per_token: per_token as u32,
                out_stride: stride as u32,
                h_stride: stride as u32,
                reserved: 0,
            };
            launch(device, params.launch(), &params);
            let got: Vec<bf16> = device.download(params.h, rows * stride).unwrap();
            for row in 0..rows {
                let beside = row * stride + width..(row + 1) * stride;
                assert_eq!(got[beside.clone()], before[beside], "row {row}");
                let expected = (0..width).map(|column| {
                    let mut sum = before[row * stride + column].to_f64();
                    let mut magnitude = sum.abs();
                    let choices = row * per_token..(row + 1) * per_token;
                    for (share, place) in
                        shares[choices.clone()].iter().zip(&sorted.places[choices])
                    {
                        let at = *place as usize * stride + column;
                        let product = f64::from(*share) * out[at].to_f64();
                        sum += product;
                        magnitude += product.abs();
                    }
                    let bound = U16 * sum.abs() * 1.001 + 8.0 * U32 * magnitude;
                    (sum, bound)
                });
                let got = wide(&got[row * stride..][..width]);
                assert_within(&format!("row {row}"), &got, expected);
            }
        }
    });
}

/// Rows that are not there stay unwritten, in a launch whose last block is not full.
#[test]
fn nothing_is_written_beside_the_rows() {
    under_all_schedules(|device| {
        let h = room_bf16(device, 16);
        device.write(h, &[bf16::ONE; 8]).unwrap();
        let params = ExpertsSumParams {
            out: upload(device, &[bf16::ONE; 8]),
            places: upload(device, &[0u32]),
            shares: upload(device, &[0.5f32]),
            h,
            rows: 1,
            width: 8,
            per_token: 1,
            out_stride: 8,
            h_stride: 8,
            reserved: 0,
        };
        launch(device, params.launch(), &params);
        let got: Vec<bf16> = device.download(h, 16).unwrap();
        assert_eq!(got[..8], [bf16::from_f32(1.5); 8]);
        assert_untouched("behind the row", &got[8..]);
    });
}
