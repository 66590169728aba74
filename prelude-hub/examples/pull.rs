//! Downloads a model, or finds it in the cache, and prints its folder.
//!
//! `cargo run -p prelude-hub --example pull -- Qwen/Qwen3-0.6B`
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program to run by hand"
)]

use std::error::Error;

use prelude_hub::{Hub, HubConfig};

fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).ok_or("give a name: OWNER/MODEL")?;
    let hub = Hub::new(HubConfig::from_variables(|name| std::env::var_os(name))?)?;
    let model = hub.open(&name.parse()?, &"main".parse()?, &|progress| {
        eprint!("\r{} of {} bytes", progress.bytes, progress.bytes_total);
    })?;
    eprintln!();
    if let Some(warning) = &model.warning {
        eprintln!("warning: {warning}");
    }
    println!("{}", model.folder.display());
    Ok(())
}
