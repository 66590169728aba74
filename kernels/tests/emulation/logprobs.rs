use prelude_kernels::{
    DevicePtr,
    emu::Device,
    families::{LogprobRow, LogprobsParams},
};

use crate::{
    sample::exp,
    support::{Values, launch, under_all_schedules, upload},
};

/// Computes the CPU executor's log-sum-exp: f32 in 16 lanes within runs of 1,024, f64 across.
fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0f64;
    for run in logits.chunks(1024) {
        let mut lanes = [0.0f32; 16];
        for (i, &x) in run.iter().enumerate() {
            lanes[i % 16] += exp(x - max);
        }
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                lanes[i] += lanes[i + half];
            }
        }
        sum += f64::from(lanes[0]);
    }
    f64::from(max) + sum.ln()
}

fn check(device: &Device, vocab: usize, top_ns: &[u32], live: Option<u32>) {
    let mut values = Values::new(31);
    let rows = top_ns.len();
    let logits: Vec<Vec<f32>> = (0..rows)
        .map(|r| match r % 2 {
            0 => (0..vocab)
                .map(|_| (values.below(90) as f32 - 40.0) / 8.0)
                .collect(),
            _ => values.f32s(vocab, -15.0, 15.0),
        })
        .collect();
    let (mut table, mut targets, mut tops) = (Vec::new(), Vec::new(), 0);
    for (logits, &top_n) in logits.iter().zip(top_ns) {
        let own = [
            0,
            vocab as i32 - 1,
            values.below(vocab) as i32,
            vocab as i32,
            -1,
        ];
        table.push(LogprobRow {
            logits: upload(device, logits),
            target_first: targets.len() as u32,
            target_count: own.len() as u32,
            top_first: tops,
            top_n,
        });
        targets.extend(own);
        tops += top_n;
    }
    let room = |n: usize| device.alloc(n * 4).unwrap();
    let params = LogprobsParams {
        row: upload(device, &table),
        target: upload(device, &targets),
        lp: room(targets.len()),
        rank: room(targets.len()),
        top_id: room(tops as usize),
        top_lp: room(tops as usize),
        lse: room(rows),
        live: live.map_or(DevicePtr::NULL, |n| upload(device, &[n])),
        rows: rows as u32,
        vocab: vocab as u32,
    };
    launch(device, params.launch(), &params);
    let lp: Vec<f32> = device.download(params.lp, targets.len()).unwrap();
    let rank: Vec<u32> = device.download(params.rank, targets.len()).unwrap();
    let top_id: Vec<i32> = device.download(params.top_id, tops as usize).unwrap();
    let top_lp: Vec<f32> = device.download(params.top_lp, tops as usize).unwrap();
    let lse: Vec<f32> = device.download(params.lse, rows).unwrap();
    for (r, (row, logits)) in table.iter().zip(&logits).enumerate() {
        let first = row.target_first as usize;
        if live.is_some_and(|n| r >= n as usize) {
            assert_eq!((lse[r].to_bits(), rank[first]), (u32::MAX, u32::MAX));
            continue;
        }
        // `ln` of f64 may differ in its last place between libraries: the same f32 all the same,
        // but for once in 2^28.
        let exact = log_sum_exp(logits);
        assert_eq!(lse[r], exact as f32, "row {r}");
        let lp_of = |x: f32| (f64::from(x) - exact) as f32;
        for (i, &target) in targets[first..][..5].iter().enumerate() {
            let (lp, rank) = (lp[first + i], rank[first + i]);
            let Some(&logit) = usize::try_from(target).ok().and_then(|t| logits.get(t)) else {
                assert!(lp.is_nan() && rank == 0);
                continue;
            };
            assert_eq!(lp, lp_of(logit));
            let above = logits.iter().filter(|&&x| x > logit).count();
            assert_eq!(rank as usize, above + 1);
        }
        let mut order: Vec<usize> = (0..vocab).collect();
        order.sort_by(|&a, &b| logits[b].total_cmp(&(logits[a] + 0.0)).then(a.cmp(&b)));
        let wanted = (row.top_n as usize).min(64).min(vocab);
        for i in 0..row.top_n as usize {
            let at = row.top_first as usize + i;
            if i >= wanted {
                assert_eq!(top_id[at] as u32, u32::MAX, "beyond what is found");
                continue;
            }
            assert_eq!(
                top_id[at] as usize, order[i],
                "row {r} place {i} of {wanted}"
            );
            assert_eq!(top_lp[at], lp_of(logits[order[i]]));
        }
    }
}

#[test]
fn scores_ranks_and_the_likeliest() {
    under_all_schedules(|device| {
        check(device, 1, &[0, 1], None);
        check(device, 331, &[5, 64, 0, 1, 70], None);
        check(device, 1024, &[20, 64], Some(1));
        check(device, 70_001, &[64, 3], None);
    });
}

#[test]
fn rows_with_bad_numbers_say_so() {
    under_all_schedules(|device| {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut logits = vec![0.5f32; 50];
            logits[40] = bad;
            let row = LogprobRow {
                logits: upload(device, &logits),
                target_first: 0,
                target_count: 1,
                top_first: 0,
                top_n: 2,
            };
            let room = |n: usize| device.alloc(n * 4).unwrap();
            let params = LogprobsParams {
                row: upload(device, &[row]),
                target: upload(device, &[3i32]),
                lp: room(1),
                rank: room(1),
                top_id: room(2),
                top_lp: room(2),
                lse: room(1),
                live: DevicePtr::NULL,
                rows: 1,
                vocab: 50,
            };
            launch(device, params.launch(), &params);
            assert!(device.download::<f32>(params.lp, 1).unwrap()[0].is_nan());
            assert!(device.download::<f32>(params.lse, 1).unwrap()[0].is_nan());
            assert_eq!(device.download::<u32>(params.rank, 1).unwrap(), [0]);
            assert_eq!(device.download::<i32>(params.top_id, 2).unwrap(), [-1, -1]);
        }
    });
}
