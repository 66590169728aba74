//! The properties of a world that follow from its seed alone.

use std::sync::atomic::AtomicU64;

use prelude_core::{PassCapacity, ServiceTime, TokenId};

use super::{
    super::{
        auto_twin::{CheckedAuto, HadTheirs},
        chaos::Chaos,
        groups_twin::CheckedGroups,
        laps_twin::CheckedLaps,
        round_robin_twin::CheckedRoundRobin,
        srjf_twin::CheckedSrjf,
        workload::Steady,
    },
    *,
};
use crate::{Fcfs, LapsConfig, SchedulerPolicy};

impl World {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        // Apart, so that other worlds are what they were.
        let mut of_steady = Random::new(mix(seed, 1));
        let is_steady = of_steady.one_in(3);
        let mut capacity = capacity(&mut random);
        if is_steady {
            // Little more than what the longest generation needs.
            let least = capacity.max_context_len / capacity.block_size;
            capacity.num_blocks = capacity.num_blocks.clamp(least, least * 3 / 2);
        }
        let mut of_passes = Random::new(mix(seed, 0x9a55));
        if of_passes.one_in(2) {
            capacity.passes = Some(PassCapacity {
                layers: of_passes.in_range(1, 4),
                tokens: of_passes.in_range(8, 200),
                passes: of_passes.in_range(1, 4),
                outputs: of_passes.in_range(1, 64),
                slice_ms: 20,
            });
        }
        let mut of_host = Random::new(mix(seed, 0x4057));
        if of_host.one_in(2) {
            // From hardly any to more than all prompts of a world fill.
            let most = *of_host.pick(&[4, capacity.num_blocks, 20 * capacity.num_blocks]);
            capacity.host_blocks = of_host.in_range(1, most);
        }
        let mut config = config(&mut random);
        config.slice_ms = Some(of_passes.in_range(1, 3));
        let arrivals = arrivals(&mut random);
        let mut workload = Workload::random(&mut random, capacity);
        workload.priorities &= random.one_in(2);
        let gatherings = Arc::new(AtomicU64::new(0));
        let had_theirs = HadTheirs::default();
        // Prompts that are cut into chunks are computed in no passes.
        let chunk = (capacity.passes.is_none()).then_some(config.prefill_chunk_tokens);
        let (name, policy, laps_chunk) = policy(&mut random, seed, chunk, &gatherings, &had_theirs);
        let scheduler = Scheduler::with_policy(config.clone(), capacity, policy);
        let mut scheduler = scheduler.expect("the config is in range");
        let mut told = Random::new(mix(seed, 0x701d));
        let mut of_steps = Random::new(mix(seed, 0x57e9));
        let mut max_oneshot_tokens = config.oneshot_step_tokens(&capacity);
        if of_steps.one_in(2) {
            let most = capacity.max_step_tokens;
            max_oneshot_tokens = of_steps.in_range(max_oneshot_tokens, most);
            scheduler.widen_oneshot_steps(max_oneshot_tokens);
        }
        scheduler.limit_told(*told.pick(&[1, 2, 5, 20, 256]));
        let (fault_every, abort_every) =
            (*random.pick(&[0, 0, 6, 50, 300]), *random.pick(&[0, 4, 20]));
        let mut world = Self {
            now: Timestamp::ZERO,
            scheduler,
            executor: SimExecutor::new(capacity),
            cost: CostModel::default(),
            workload,
            arrivals,
            fault_every,
            abort_every,
            max_rows: config.max_batch_rows,
            max_tokens: config.shared_step_tokens(&capacity),
            max_oneshot_tokens,
            max_idle: Duration::from_millis(u64::from(config.max_idle_ms)),
            idle_since: None,
            next_arrival: Timestamp::ZERO,
            arriving: 1,
            aborts: Vec::new(),
            running: VecDeque::new(),
            waits: (name != "chaos").then(|| Waits::new(&config, capacity, laps_chunk, had_theirs)),
            ledger: Ledger::new(Twin {
                vocab_size: capacity.vocab_size,
                attention: capacity.attention,
            }),
            events: Vec::new(),
            next_id: 0,
            gatherings,
            summary: Summary {
                policy: name,
                pipeline_depth: capacity.pipeline_depth,
                ..Summary::default()
            },
            capacity,
            random,
        };
        let mut of_answers = Random::new(mix(seed, 0xa225));
        if of_answers.one_in(4) {
            world.executor.answers = of_answers.in_range(1, 6) as usize;
            world.ledger.computes_again = true;
        }
        if is_steady {
            world.make_steady(&mut of_steady, config.shared_step_tokens(&capacity));
        }
        world
    }

    /// Lets short one-shot requests over one prefix come at a constant rate for as long as there is
    /// traffic, so that a step that reads the prefix is nearly always in flight.
    fn make_steady(&mut self, random: &mut Random, step_tokens: u32) {
        let capacity = self.capacity;
        let pool = capacity.num_blocks * capacity.block_size;
        let longest = (capacity.max_context_len - 8).min(pool / 2);
        let token =
            |random: &mut Random| -> TokenId { random.in_range(0, capacity.vocab_size - 1) };
        let len = random.in_range(longest / 4 + 1, longest);
        self.workload.steady = Some(Steady {
            prefix: (0..len).map(|_| token(random)).collect(),
            max_suffix: random.in_range(1, 7),
            others_every: u64::from(random.in_range(4, 40)),
        });
        let long = random.in_range(longest / 2 + 1, longest.max(2));
        let prompt = (0..long).map(|_| token(random)).collect();
        self.workload.prefixes.push(prompt);
        // From half of what the device computes to somewhat more, where rows have no common steps.
        let interval_us = f64::from(random.in_range(300, 1200));
        let rows = f64::from(step_tokens.min(16)) / 8.0;
        self.arrivals = Arrivals::Steady {
            interval_us: interval_us / rows.max(1.0),
        };
    }
}

fn capacity(random: &mut Random) -> Capacity {
    let block_size = *random.pick(&[1, 2, 4, 4, 8]);
    let max_context_len = *random.pick(&[24, 48, 96]);
    // From barely one long sequence to plenty.
    let least = max_context_len / block_size;
    Capacity {
        block_size,
        num_blocks: random.in_range(least / 2 + 1, least * 5),
        max_step_tokens: random.in_range(8, 160),
        full_step_tokens: 2048,
        max_context_len,
        vocab_size: 16,
        pipeline_depth: *random.pick(&[1, 2]),
        passes: None,
        attention: prelude_core::Attention::Causal,
        host_blocks: 0,
    }
}

fn config(random: &mut Random) -> SchedulerConfig {
    SchedulerConfig {
        max_batch_tokens: Some(random.in_range(4, 160)),
        max_batch_rows: random.in_range(1, 24),
        max_num_seqs: random.in_range(1, 12),
        max_queued_rows: random.in_range(8, 48),
        max_queued_tokens: u64::from(random.in_range(100, 2000)),
        prefill_chunk_tokens: random.in_range(1, 64),
        oneshot_share_percent: random.in_range(1, 99),
        enable_prefix_caching: !random.one_in(5),
        defer_max: random.in_range(0, 4),
        mask_patience_ms: random.in_range(0, 20),
        max_wait_ms: random.in_range(1, 60),
        max_idle_ms: random.in_range(0, 30),
        ..SchedulerConfig::default()
    }
}

fn arrivals(random: &mut Random) -> Arrivals {
    let interval_us = f64::from(random.in_range(200, 3000));
    if random.one_in(2) {
        Arrivals::Poisson { interval_us }
    } else {
        Arrivals::Bursts {
            interval_us: interval_us * 4.0,
            size: 8,
        }
    }
}

/// Returns a policy with its name and, of LAPS, the tokens of its chunks; `turns_chunk`: those of
/// prompts in turns, if the world may have them. All but `chaos`, which makes no sense, are compared
/// with a rescan.
fn policy(
    random: &mut Random,
    seed: u64,
    turns_chunk: Option<u32>,
    gatherings: &Arc<AtomicU64>,
    had_theirs: &HadTheirs,
) -> (&'static str, Box<dyn SchedulerPolicy>, Option<u32>) {
    let chaos = random.one_in(8);
    let srjf = random.one_in(3);
    let fairness = *random.pick(&[0, 1, 500, 1_000_000]);
    let saturation = *random.pick(&[1, 16, 64, 2048]);
    let groups = random.one_in(3);
    let laps = random.one_in(3).then(|| laps_config(random));
    // Apart, so that other worlds are what they were.
    let turns = turns_chunk.filter(|_| Random::new(mix(seed, 0x7042)).one_in(2));
    if chaos {
        let random = Random::new(seed);
        ("chaos", Box::new(Chaos { random }), None)
    } else if let Some(laps) = laps {
        let chunk = laps.chunk_tokens;
        let policy = CheckedLaps::new(laps, Arc::clone(gatherings));
        ("laps", Box::new(policy), Some(chunk))
    } else if srjf {
        // Apart, so that other worlds are what they were.
        let mut random = Random::new(mix(seed, 0x5e41));
        let service = random.one_in(2).then(|| service_time(&mut random));
        let policy = CheckedSrjf::new(fairness, saturation, service);
        ("srjf", Box::new(policy), None)
    } else if groups {
        ("groups", Box::new(CheckedGroups::default()), None)
    } else if let Some(chunk) = turns {
        let policy = CheckedRoundRobin::new(chunk);
        ("round-robin", Box::new(policy), None)
    } else if Random::new(mix(seed, 0xa070)).one_in(2) {
        let mut random = Random::new(mix(seed, 0xa071));
        let service = random.one_in(2).then(|| service_time(&mut random));
        let policy = CheckedAuto::new(service, Arc::clone(had_theirs));
        ("auto", Box::new(policy), None)
    } else {
        ("fcfs", Box::new(Fcfs), None)
    }
}

/// Returns times by which the order is another than that of tokens: attention takes as long as all
/// else.
fn service_time(random: &mut Random) -> ServiceTime {
    let mut ms = |most| f64::from(random.in_range(0, most)) / 1e3;
    ServiceTime {
        floor_ms: ms(1000),
        per_cached_ms: ms(20),
        base_ms: ms(500),
        per_token_ms: ms(20),
        per_pair_ms: ms(1),
        decode_ms: ms(100),
    }
}

/// Knobs of the size of these worlds: few tokens, short steps.
fn laps_config(random: &mut Random) -> LapsConfig {
    LapsConfig {
        boundary_tokens: *random.pick(&[4, 16, 40, 1000]),
        chunk_tokens: random.in_range(1, 64),
        batch_tokens: random.in_range(1, 64),
        share_floor_percent: random.in_range(1, 50),
        ttft_target_ms: *random.pick(&[0, 20, 400, 400]),
        slack_us: random.in_range(0, 3000),
        max_window_us: *random.pick(&[0, 1000, 10_000, 10_000]),
    }
}
