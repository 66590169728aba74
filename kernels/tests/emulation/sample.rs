//! Tokens, bit for bit: the definition in `prelude-exec-cpu/src/heads/sample.rs`, written out
//! again with a full sort and a scan.

use std::collections::BTreeMap;

use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{AdjustParams, AdjustRow, ArgmaxParams, SampleParams, SampleRow, SampleStatus},
};

use crate::support::{Values, launch, under_all_schedules, upload};

/// Computes the CPU executor's exponential (`prelude-exec-cpu/src/kernels/elementwise.rs`).
pub(crate) fn exp(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    let clamped = x.clamp(-87.0, 88.0);
    let t = clamped * std::f32::consts::LOG2_E + MAGIC;
    let n = t - MAGIC;
    let r = clamped - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let mut p = 1.987_569_1e-4;
    for c in [
        1.398_199_9e-3,
        8.333_452e-3,
        4.166_579_6e-2,
        1.666_666_5e-1,
        0.5,
    ] {
        p = p * r + c;
    }
    let value = p * r * r + r + 1.0;
    let power = f32::from_bits((t.to_bits() << 23).wrapping_add(127 << 23));
    if x < -87.0 { 0.0 } else { value * power }
}

/// Philox4x32-10 as a table of rounds; known answers are in the CPU executor's tests.
fn draw(seed: u64, position: u32, choice: u32) -> u64 {
    let (mut k, mut c) = ([seed as u32, (seed >> 32) as u32], [position, choice, 0, 0]);
    for _ in 0..10 {
        let (a, b) = (
            0xd251_1f53u64 * u64::from(c[0]),
            0xcd9e_8d57u64 * u64::from(c[2]),
        );
        c = [
            (b >> 32) as u32 ^ c[1] ^ k[0],
            b as u32,
            (a >> 32) as u32 ^ c[3] ^ k[1],
            a as u32,
        ];
        k = [
            k[0].wrapping_add(0x9e37_79b9),
            k[1].wrapping_add(0xbb67_ae85),
        ];
    }
    u64::from(c[0]) | u64::from(c[1]) << 32
}

/// A row's rules.
#[derive(Clone, Debug)]
struct Rules {
    temperature: f32,
    top_k: u32,
    top_p: f32,
    min_p: f32,
    seed: u64,
    output_position: u32,
    choice: u32,
    draws: u32,
}

const GREEDY: Rules = Rules {
    temperature: 0.0,
    top_k: 0,
    top_p: 1.0,
    min_p: 0.0,
    seed: 0,
    output_position: 0,
    choice: 0,
    draws: 1,
};

/// Steps 5 to 9.
fn sample(logits: &[f32], rules: &Rules) -> Vec<i32> {
    const ONE: f64 = (1u64 << 40) as f64;
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if rules.temperature == 0.0 {
        let best = logits.iter().position(|&x| x == max).unwrap();
        return vec![best as i32; rules.draws as usize];
    }
    let weight = |x: f32| (f64::from(exp((x - max) / rules.temperature)) * ONE) as u64;
    let mut all: Vec<(f32, usize, u64)> = logits
        .iter()
        .enumerate()
        .map(|(i, &x)| (x, i, weight(x)))
        .filter(|c| c.2 > 0)
        .collect();
    all.sort_by(|a, b| b.0.partial_cmp(&a.0).unwrap().then(a.1.cmp(&b.1)));
    if rules.top_k > 0 {
        all.truncate(rules.top_k as usize);
    }
    if rules.top_p < 1.0 {
        let sum: u64 = all.iter().map(|c| c.2).sum();
        let enough = (f64::from(rules.top_p) * sum as f64).ceil() as u64;
        let mut running = 0;
        all.retain(|c| {
            let before = running;
            running += c.2;
            before < enough
        });
    }
    all.retain(|c| c.2 as f64 >= f64::from(rules.min_p) * ONE);
    all.sort_by_key(|c| c.1);
    let total: u64 = all.iter().map(|c| c.2).sum();
    (0..rules.draws)
        .map(|i| {
            let random = draw(rules.seed, rules.output_position, rules.choice + i);
            let at = ((u128::from(random) * u128::from(total)) >> 64) as u64;
            let mut running = 0;
            let found = all.iter().find(|c| {
                running += c.2;
                running > at
            });
            found.unwrap().1 as i32
        })
        .collect()
}

/// Runs rows, each from its own logits.
fn run(device: &Device, rows: &[(&[f32], Rules)], live: Option<u32>) -> (Vec<Vec<i32>>, Vec<u32>) {
    let vocab = rows[0].0.len();
    let mut table = Vec::new();
    let mut ids = 0;
    for (logits, rules) in rows {
        let logits = upload(device, logits);
        table.push(SampleRow {
            logits,
            raw: logits,
            seed: rules.seed,
            output_position: rules.output_position,
            choice: rules.choice,
            draws: rules.draws,
            first: ids,
            top_k: rules.top_k,
            temperature: rules.temperature,
            top_p: rules.top_p,
            min_p: rules.min_p,
        });
        ids += rules.draws;
    }
    let ids_at = device.alloc(ids as usize * 4).unwrap();
    let status = device.alloc(rows.len() * 4).unwrap();
    let params = SampleParams {
        row: upload(device, &table),
        ids: ids_at,
        status,
        live: live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
        rows: rows.len() as u32,
        vocab: vocab as u32,
    };
    launch(device, params.launch(), &params);
    let all: Vec<i32> = device.download(ids_at, ids as usize).unwrap();
    let each = table
        .iter()
        .map(|row| all[row.first as usize..][..row.draws as usize].to_vec());
    (each.collect(), device.download(status, rows.len()).unwrap())
}

/// Returns logits with many ties: eighths, as the CPU executor's property test draws them.
fn tied(values: &mut Values, n: usize) -> Vec<f32> {
    (0..n)
        .map(|_| (values.below(80) as f32 - 40.0) / 8.0)
        .collect()
}

#[test]
fn tokens_are_those_of_the_definition() {
    under_all_schedules(|device| {
        let mut values = Values::new(21);
        for vocab in [1, 331, 3001] {
            let ties = tied(&mut values, vocab);
            let smooth = values.f32s(vocab, -12.0, 4.0);
            let mut flat = vec![0.0f32; vocab];
            flat[vocab / 2] = -0.0;
            let mut rows: Vec<(&[f32], Rules)> = Vec::new();
            for (i, logits) in [&ties, &smooth, &flat].into_iter().enumerate() {
                rows.push((logits, GREEDY));
                for (temperature, top_k, top_p, min_p) in [
                    (1.0, 0, 1.0, 0.0),
                    (0.7, 7, 1.0, 0.0),
                    (1.3, 0, 0.4, 0.0),
                    (0.25, 50, 0.9, 0.0),
                    (2.0, 300, 0.999, 0.02),
                    (1.0, 1, 0.1, 1.0),
                    (1.0, 0, 1e-6, 0.0),
                    // So warm that the last token kept is drawn as often as the first.
                    (60.0, 7, 1.0, 0.0),
                    (60.0, 9, 0.6, 0.0),
                ] {
                    let rules = Rules {
                        temperature,
                        top_k,
                        top_p,
                        min_p,
                        seed: values.bits(),
                        output_position: 3 + i as u32,
                        choice: 2,
                        draws: if temperature > 50.0 { 60 } else { 6 },
                    };
                    rows.push((logits, rules));
                }
            }
            let (got, status) = run(device, &rows, None);
            assert!(status.iter().all(|&s| s == 0));
            for ((logits, rules), got) in rows.iter().zip(got) {
                assert_eq!(got, sample(logits, rules), "vocab {vocab} {rules:?}");
            }
        }
    });
}

#[test]
fn rows_that_fail_and_rows_that_do_not_count() {
    under_all_schedules(|device| {
        let vocab = 100;
        let fine = vec![1.0f32; vocab];
        let with = |x: f32| {
            let mut logits = fine.clone();
            logits[77] = x;
            logits
        };
        let bad = [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY].map(with);
        let warm = Rules {
            temperature: 1.0,
            ..GREEDY
        };
        let mut rows: Vec<(&[f32], Rules)> = vec![(&fine, GREEDY)];
        rows.extend(bad.iter().map(|l| (&l[..], warm.clone())));
        rows.push((&fine, warm));
        let (got, status) = run(device, &rows, Some(5));
        assert_eq!(status, [0, 1, 1, 1, 1, u32::MAX]);
        assert_eq!(got[0], [0]);
        assert!(got[1..5].iter().all(|ids| ids == &[-1]));
        assert_eq!(SampleStatus::from_code(1), Some(SampleStatus::NotFinite));
        assert_eq!(SampleStatus::from_code(9), None);
    });
}

#[test]
fn argmax() {
    under_all_schedules(|device| {
        let mut values = Values::new(22);
        let (vocab, stride, rows) = (1500, 1504, 5);
        let mut logits = tied(&mut values, rows * stride);
        logits[2 * stride + 9] = f32::NAN;
        // A zero of either sign is the same number.
        logits[stride..][..vocab].fill(-1.0);
        (logits[stride + 30], logits[stride + 20]) = (0.0, -0.0);
        let ids = device.alloc(rows * 4).unwrap();
        let status = device.alloc(rows * 4).unwrap();
        let params = ArgmaxParams {
            logits: upload(device, &logits),
            ids,
            status,
            live: upload(device, &[4u32]),
            rows: rows as u32,
            vocab: vocab as u32,
            logits_stride: stride as u32,
            reserved: 0,
        };
        launch(device, params.launch(), &params);
        let row = |r: usize| sample(&logits[r * stride..][..vocab], &GREEDY)[0];
        let got: Vec<i32> = device.download(ids, rows).unwrap();
        assert_eq!(got, [row(0), 20, -1, row(3), -1]);
        let got: Vec<u32> = device.download(status, rows).unwrap();
        assert_eq!(got, [0, 0, 1, 0, u32::MAX]);
    });
}

/// The changes of a row's logits.
#[derive(Clone, Debug, Default)]
struct Changes {
    prompt: Vec<u32>,
    output: Vec<u32>,
    repetition: f32,
    frequency: f32,
    presence: f32,
    bias: Vec<(u32, f32)>,
    allowed: Option<Vec<u32>>,
    masked: Vec<u32>,
}

/// Steps 1 to 4.
fn adjusted(logits: &[f32], changes: &Changes) -> Vec<f32> {
    let mut logits = logits.to_vec();
    for (&id, &occurrences) in &seen(changes) {
        let x = &mut logits[id as usize];
        *x = if *x > 0.0 {
            *x / changes.repetition
        } else {
            *x * changes.repetition
        };
        if occurrences > 0 {
            *x -= changes.frequency * occurrences as f32;
            *x -= changes.presence;
        }
    }
    for &(id, bias) in &changes.bias {
        logits[id as usize] += bias;
    }
    if let Some(allowed) = &changes.allowed {
        for (id, x) in logits.iter_mut().enumerate() {
            if !allowed.contains(&(id as u32)) {
                *x = f32::NEG_INFINITY;
            }
        }
    }
    for &id in &changes.masked {
        logits[id as usize] = f32::NEG_INFINITY;
    }
    logits
}

/// Each id seen, with its occurrences in the output.
fn seen(changes: &Changes) -> BTreeMap<u32, u32> {
    let mut seen: BTreeMap<u32, u32> = changes.prompt.iter().map(|&id| (id, 0)).collect();
    for &id in &changes.output {
        *seen.entry(id).or_default() += 1;
    }
    seen
}

#[test]
fn penalties_biases_and_masks() {
    under_all_schedules(|device| {
        let vocab = 1333u32;
        let mut values = Values::new(23);
        let logits = values.f32s(vocab as usize, -6.0, 6.0);
        let some = |values: &mut Values, n: usize| -> Vec<u32> {
            (0..n)
                .map(|_| values.below(vocab as usize) as u32)
                .collect()
        };
        let plain = Changes {
            repetition: 1.0,
            ..Changes::default()
        };
        let mut all = vec![plain.clone()];
        all.push(Changes {
            prompt: some(&mut values, 300),
            output: [some(&mut values, 40), vec![7, 7, 7, 1332]].concat(),
            repetition: 1.3,
            frequency: 0.2,
            presence: 0.7,
            ..plain.clone()
        });
        let ids = some(&mut values, 50);
        all.push(Changes {
            // Twice the same id: added in order.
            bias: ids
                .iter()
                .chain(&ids[..9])
                .map(|&id| (id, values.f32(-9.0, 9.0)))
                .collect(),
            allowed: Some([some(&mut values, 60), ids, vec![0, 31, 32, 1332]].concat()),
            masked: vec![31, 5],
            ..plain.clone()
        });
        all.push(Changes {
            allowed: Some(vec![5]),
            masked: vec![5],
            ..plain
        });

        let (mut table, mut outs) = (Vec::new(), Vec::new());
        let [mut seen_list, mut bias, mut allowed, mut masked] = [const { Vec::<u32>::new() }; 4];
        let source = upload(device, &logits);
        for changes in &all {
            let out = device.alloc(vocab as usize * 4).unwrap();
            outs.push(out);
            table.push(AdjustRow {
                logits: source,
                out,
                seen_first: seen_list.len() as u32 / 2,
                seen_count: seen(changes).len() as u32,
                bias_first: bias.len() as u32 / 2,
                bias_count: changes.bias.len() as u32,
                allowed_first: allowed.len() as u32,
                allowed_count: changes.allowed.as_ref().map_or(0, Vec::len) as u32,
                masked_first: masked.len() as u32,
                masked_count: changes.masked.len() as u32,
                repetition: changes.repetition,
                frequency: changes.frequency,
                presence: changes.presence,
                allows_all: u32::from(changes.allowed.is_none()),
            });
            seen_list.extend(seen(changes).into_iter().flat_map(|(id, n)| [id, n]));
            bias.extend(changes.bias.iter().flat_map(|&(id, x)| [id, x.to_bits()]));
            allowed.extend(changes.allowed.iter().flatten().copied());
            masked.extend(&changes.masked);
        }
        let params = AdjustParams {
            row: upload(device, &table),
            seen: upload(device, &seen_list),
            bias: upload(device, &bias),
            allowed: upload(device, &allowed),
            masked: upload(device, &masked),
            rows: table.len() as u32,
            vocab,
        };
        launch(device, params.launch(), &params);
        for (changes, &out) in all.iter().zip(&outs) {
            let got: Vec<f32> = device.download(out, vocab as usize).unwrap();
            assert_eq!(got, adjusted(&logits, changes), "{changes:?}");
        }
        // Draws from changed rows, and from one where nothing is left.
        let rules = Rules {
            temperature: 0.9,
            top_p: 0.8,
            ..GREEDY
        };
        let row = |&out: &DevicePtr| SampleRow {
            logits: out,
            raw: source,
            seed: 5,
            output_position: 0,
            choice: 0,
            draws: 1,
            first: 0,
            top_k: 0,
            temperature: 0.9,
            top_p: 0.8,
            min_p: 0.0,
        };
        let mut rows: Vec<SampleRow> = outs.iter().map(row).collect();
        for (i, row) in rows.iter_mut().enumerate() {
            row.first = i as u32;
        }
        let ids = device.alloc(16).unwrap();
        let status = device.alloc(16).unwrap();
        let params = SampleParams {
            row: upload(device, &rows),
            ids,
            status,
            live: DevicePtr::NULL,
            rows: 4,
            vocab,
        };
        launch(device, params.launch(), &params);
        assert_eq!(device.download::<u32>(status, 4).unwrap(), [0, 0, 0, 2]);
        let rules = Rules { seed: 5, ..rules };
        let mut expected: Vec<i32> = all[..3]
            .iter()
            .map(|c| sample(&adjusted(&logits, c), &rules)[0])
            .collect();
        expected.push(-1);
        assert_eq!(device.download::<i32>(ids, 4).unwrap(), expected);
    });
}
