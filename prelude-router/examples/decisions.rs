//! Counts the decisions a second that one thread makes, over 16 endpoints:
//! `cargo run --release -p prelude-router --example decisions`.
#![expect(clippy::print_stdout, reason = "an example that prints")]
#![expect(clippy::disallowed_methods, reason = "an example that measures")]

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use prelude_core::{RequestId, ServiceTime, Timestamp};
use prelude_router::{
    EndpointSpec, Finish, Prefix, Prompt, Root, RouteRequest, Router, RouterConfig,
};

/// Prompts in the shape of one of the workloads of the Preble paper, table 1.
struct Shape {
    name: &'static str,
    /// Tokens that all prompts share, those that a key portion's share, and a prompt's own.
    tokens: [u32; 3],
    /// Key portions.
    keys: u64,
}

const SHAPES: [Shape; 3] = [
    Shape {
        name: "Toolbench",
        tokens: [160, 1400, 275],
        keys: 320,
    },
    Shape {
        name: "Video QA",
        tokens: [0, 9770, 95],
        keys: 150,
    },
    Shape {
        name: "LooGLE",
        tokens: [13, 22060, 1400],
        keys: 24,
    },
];

/// Mixes the bits of `n` as splitmix64 does.
fn mix(n: u64) -> u64 {
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

fn prompt(shape: &Shape, request: u64) -> Vec<u32> {
    let key = mix(request) % shape.keys;
    let streams = [1, 1000 + key, 1_000_000 + request];
    let runs = streams.into_iter().zip(shape.tokens);
    let run = |(stream, len): (u64, u32)| {
        (0..len).map(move |at| (mix(stream << 32 | u64::from(at)) % 150_000) as u32)
    };
    runs.flat_map(run).collect()
}

/// The time that routing some prompts took.
struct Measured {
    /// The time of each prompt, with hashing and without it.
    times: Vec<Duration>,
    routing: Duration,
    cached: f64,
}

/// Routes `count` prompts at 200 a second, of which 100 are under way.
fn measure(shape: &Shape, count: u64) -> Result<Measured, Box<dyn std::error::Error>> {
    let config = RouterConfig::default();
    let granule = config.granule_tokens;
    let mut router = Router::new(config)?;
    for _ in 0..16 {
        let spec = EndpointSpec {
            kv_capacity_tokens: 198_516,
            service: ServiceTime::default(),
            pool: None,
        };
        router.join(Timestamp::ZERO, spec)?;
    }
    let root = Root::new("model", None, "r1", None);
    let mut under_way = VecDeque::new();
    let mut times = Vec::new();
    let mut routing = Duration::ZERO;
    let (mut cached, mut all) = (0, 0);
    for n in 0..count {
        let tokens = prompt(shape, n);
        let now = Timestamp::from_nanos(n * 5_000_000);
        let id = RequestId(n);
        let began = Instant::now();
        let prefix = Prefix::new(root, Prompt::Tokens(&tokens), granule);
        let hashed = began.elapsed();
        let pick = router.route(
            now,
            &RouteRequest {
                id,
                prefix: &prefix,
                max_output_tokens: None,
                user: None,
                sheddable: false,
                subset: None,
                deadline: None,
            },
        )?;
        under_way.push_back(id);
        if under_way.len() > 100
            && let Some(id) = under_way.pop_front()
        {
            let finish = Finish {
                output_tokens: Some(40),
                ..Finish::default()
            };
            router.finished(now, id, finish);
        }
        let took = began.elapsed();
        times.push(took);
        routing += took - hashed;
        cached += u64::from(pick.cached_tokens);
        all += u64::from(pick.prompt_tokens);
    }
    times.sort_unstable();
    Ok(Measured {
        times,
        routing,
        cached: cached as f64 / all as f64,
    })
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("prompts        tokens  decisions/s  median µs   P99 µs  hashed before, 1/s   cached");
    for shape in &SHAPES {
        let len = shape.tokens.iter().sum::<u32>();
        let Measured {
            times,
            routing,
            cached,
        } = measure(shape, 60_000_000 / u64::from(len))?;
        let rate = |total: Duration| times.len() as f64 / total.as_secs_f64();
        let us = |at: usize| times[at].as_secs_f64() * 1e6;
        println!(
            "{:<12} {len:>8} {:>12.0} {:>10.1} {:>8.1} {:>19.0} {:>6.1} %",
            shape.name,
            rate(times.iter().sum()),
            us(times.len() / 2),
            us(times.len() * 99 / 100),
            rate(routing),
            100.0 * cached,
        );
    }
    Ok(())
}
