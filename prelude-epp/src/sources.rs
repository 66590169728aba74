//! The sources of engines that the flags name, joined to the picker.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use prelude_epp::{
    Picker,
    endpoints::{DnsName, EndpointLine, FileWatch},
    log,
    picker::Engine,
};
use tokio::{net::lookup_host, time::sleep};

use crate::args::EndpointArgs;

/// Time between looks at a file.
const FILE_EVERY: Duration = Duration::from_secs(1);
/// Time between resolutions of a name.
const DNS_EVERY: Duration = Duration::from_secs(5);

/// The source of the flags; the file and the names follow.
const FLAGS: usize = 0;
const FILE: usize = 1;

/// Puts the engines of all sources into service, and starts to watch the sources that change.
///
/// # Errors
/// If a flag's name cannot be resolved, or the file has a fault at the start.
pub(crate) async fn start(picker: &Arc<Picker>, args: &EndpointArgs) -> Result<()> {
    set(picker, FLAGS, resolved(&args.endpoints).await?)?;
    if let Some(path) = &args.endpoints_file {
        let mut watch = FileWatch::new(path.clone(), FILE_EVERY);
        follow(picker, FILE, watch.next().await?).await?;
        tokio::spawn(follow_file(Arc::clone(picker), watch));
    }
    for (at, name) in args.dns.iter().enumerate() {
        let source = FILE + 1 + at;
        // With addresses or without, the picker answers: a name may get its first one later.
        resolve(picker, source, name).await;
        tokio::spawn(follow_name(Arc::clone(picker), source, name.clone()));
    }
    picker.set_known();
    Ok(())
}

/// Follows a file's changes.
async fn follow_file(picker: Arc<Picker>, mut watch: FileWatch) {
    loop {
        let applied = match watch.next().await {
            Ok(lines) => follow(&picker, FILE, lines).await,
            Err(error) => Err(error.into()),
        };
        if let Err(error) = applied {
            log::line(format_args!("endpoints file: {error:#}; its engines stay"));
        }
    }
}

async fn follow(picker: &Picker, source: usize, lines: Vec<EndpointLine>) -> Result<()> {
    set(picker, source, resolved(&lines).await?)
}

/// Follows the addresses of a name.
async fn follow_name(picker: Arc<Picker>, source: usize, name: DnsName) {
    loop {
        sleep(DNS_EVERY).await;
        resolve(&picker, source, &name).await;
    }
}

/// Puts the addresses of a name into service.
async fn resolve(picker: &Picker, source: usize, name: &DnsName) {
    let applied = match name.resolve().await {
        Ok(found) => {
            let found = found.into_iter().map(|address| (address, None).into());
            set(picker, source, found.collect())
        }
        Err(error) => Err(error.into()),
    };
    if let Err(error) = applied {
        log::line(format_args!("dns {}: {error}; its engines stay", name.0));
    }
}

/// Replaces the engines of a source, and logs what has changed.
fn set(picker: &Picker, source: usize, engines: Vec<Engine>) -> Result<()> {
    let change = picker.replace(source, engines)?;
    for address in &change.left {
        log::line(format_args!("endpoint {address} left"));
    }
    for address in &change.joined {
        log::line(format_args!("endpoint {address} joined"));
    }
    Ok(())
}

/// Finds the addresses of engines.
async fn resolved(lines: &[EndpointLine]) -> Result<Vec<Engine>> {
    let mut found = Vec::with_capacity(lines.len());
    for line in lines {
        let address = match line.ip() {
            Some(address) => address,
            None => {
                let name = &line.address;
                let failed = || format!("cannot resolve the engine {name}");
                let mut all = lookup_host(name).await.with_context(failed)?;
                all.next().with_context(failed)?
            }
        };
        found.push(Engine {
            address,
            kv_tokens: line.kv_tokens,
            pool: line.pool,
        });
    }
    Ok(found)
}
