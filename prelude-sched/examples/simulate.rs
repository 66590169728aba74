//! Runs the world of one seed: `simulate [SEED] [STEPS]`. The way to reproduce a failed one.
#![expect(clippy::print_stdout, reason = "an example")]

fn main() {
    let mut args = std::env::args()
        .skip(1)
        .map(|arg| arg.parse().expect("SEED and STEPS are numbers"));
    let seed = args.next().unwrap_or(0);
    let steps = args.next().unwrap_or(2000);
    println!("{:#?}", prelude_sched::sim::simulate(seed, steps));
}
