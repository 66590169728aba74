//! Signals to a process that serves.

use std::{
    io,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use prelude_server::App;
use signal_hook::{
    consts::{SIGINT, SIGTERM, SIGUSR1, SIGUSR2},
    flag,
};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{Code, Failure, say, serve::read_keys, supervisor};

fn failure(error: io::Error) -> Failure {
    Failure::new(Code::Failed, format_args!("cannot watch signals: {error}"))
}

/// Takes SIGUSR1 and SIGUSR2, which tools send to have logs opened again, so that they do not end
/// the process.
pub(crate) fn outlive_users() -> Result<(), Failure> {
    for user in [SIGUSR1, SIGUSR2] {
        flag::register(user, Arc::default()).map_err(failure)?;
    }
    Ok(())
}

/// Watches signals: the first SIGTERM or SIGINT drains, the second one exits at once; SIGHUP reads
/// the keys again.
pub(crate) fn watch(app: &Arc<App>, key_file: Option<&Path>) -> Result<(), Failure> {
    let listen = |kind| -> Result<Signal, Failure> { signal(kind).map_err(failure) };
    let mut terminate = listen(SignalKind::terminate())?;
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut hang_up = listen(SignalKind::hangup())?;
    let is_told = Arc::new(AtomicBool::new(false));
    for stop in [SIGTERM, SIGINT] {
        // In the handler itself, in this order: the second signal ends the process whatever its
        // threads wait for.
        flag::register_conditional_shutdown(stop, 0, Arc::clone(&is_told)).map_err(failure)?;
        flag::register(stop, Arc::clone(&is_told)).map_err(failure)?;
    }
    tokio::spawn({
        let app = Arc::clone(app);
        async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            supervisor::stopping();
            say(format_args!(
                "draining; press Ctrl-C again to exit immediately"
            ));
            app.drain().await;
        }
    });
    let key_file = key_file.map(Path::to_owned);
    let app = Arc::clone(app);
    tokio::spawn(async move {
        while hang_up.recv().await.is_some() {
            let Some(path) = &key_file else { continue };
            match read_keys(path) {
                Ok(keys) => {
                    app.set_keys(keys);
                    say(format_args!("keys were read again"));
                }
                Err(failure) => say(format_args!("keys stay as they were: {failure}")),
            }
        }
    });
    Ok(())
}
