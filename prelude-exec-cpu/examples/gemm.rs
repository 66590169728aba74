//! Rates of products of the shapes of Qwen3-0.6B, on every path of this machine.
//!
//! `cargo run --release -p prelude-exec-cpu --example gemm [threads]`
#![expect(clippy::print_stdout, reason = "an example reports on standard output")]

use std::time::{Duration, Instant};

use prelude_exec_cpu::{
    ComputePool, CpuDtype, Isa,
    measure::{Product, peak_flops_per_second},
};

/// Outputs by inputs: q and o projections, gate and up, down.
const SHAPES: [(usize, usize); 3] = [(2048, 1024), (6144, 1024), (1024, 3072)];
const ROWS: [usize; 6] = [1, 8, 32, 128, 512, 1024];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = match std::env::args().nth(1) {
        Some(threads) => ComputePool::new(threads.parse()?),
        None => ComputePool::for_machine(),
    };
    println!("{} threads; GFLOP/s (percent of peak)", pool.threads());
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        println!("\n{} int8", isa.as_str());
        for shape in SHAPES {
            print!("{:>5} x {:<5}", shape.0, shape.1);
            for rows in ROWS {
                let rate = rate(&pool, Product::int8(&pool, isa, rows, shape)?);
                print!("  {rows:>4}: {:>4.0}        ", rate / 1e9);
            }
            println!();
        }
        for dtype in [CpuDtype::Bf16, CpuDtype::F32] {
            let peak = peak_flops_per_second(&pool, isa, dtype);
            let shown = peak.map_or_else(|| "-".to_owned(), |p| format!("{:.0}", p / 1e9));
            println!("\n{} {dtype:?}, peak {shown}", isa.as_str());
            for shape in SHAPES {
                print!("{:>5} x {:<5}", shape.0, shape.1);
                for rows in ROWS {
                    let rate = rate(&pool, Product::new(&pool, isa, dtype, rows, shape)?);
                    let percent = peak.map_or(f64::NAN, |peak| 100.0 * rate / peak);
                    print!("  {rows:>4}: {:>4.0} ({percent:>3.0} %)", rate / 1e9);
                }
                println!();
            }
        }
    }
    Ok(())
}

/// Returns the rate, measured over a fifth of a second and at least five runs: the median, or on
/// one thread the mean by the thread's own time on a core, which other processes disturb less.
fn rate(pool: &ComputePool, mut product: Product) -> f64 {
    product.run(pool);
    let start = Instant::now();
    let core_start = time_on_core();
    let mut times: Vec<Duration> = Vec::new();
    while times.len() < 5 || start.elapsed() < Duration::from_millis(200) {
        let before = Instant::now();
        product.run(pool);
        times.push(before.elapsed());
    }
    let core = core_start.zip(time_on_core()).map(|(a, b)| b - a);
    times.sort();
    let time = match core {
        Some(core) if pool.threads() == 1 => core / u32::try_from(times.len()).unwrap_or(1),
        _ => times[times.len() / 2],
    };
    product.flops() as f64 / time.as_secs_f64()
}

/// Returns the time that this thread has run so far, if the system tells it.
fn time_on_core() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanoseconds = stat.split(' ').next()?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}
