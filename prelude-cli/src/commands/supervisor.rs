//! Messages to a service manager such as systemd, if it asks for them (`NOTIFY_SOCKET`): the start
//! of service, the end, and signs of life.

use std::sync::Arc;

use prelude_server::App;
use sd_notify::NotifyState;

use super::say;

/// Says that requests are answered from now on, and gives signs of life from now on if they are
/// asked for (`WATCHDOG_USEC`).
pub(crate) fn ready(app: &Arc<App>) {
    let names: Vec<&str> = app.models().iter().map(|model| &*model.name).collect();
    let status = format!("serving {}", names.join(", "));
    tell(&[NotifyState::Ready, NotifyState::Status(&status)]);
    let Some(period) = sd_notify::watchdog_enabled() else {
        return;
    };
    let app = Arc::clone(app);
    // A runtime that stands still says nothing. A lost engine ends the process by itself.
    tokio::spawn(async move {
        let mut ticks = tokio::time::interval((period / 2).max(LEAST_PERIOD));
        while !app.engine_lost() {
            ticks.tick().await;
            tell(&[NotifyState::Watchdog]);
        }
    });
}

/// The time between two signs of life at least, whatever is asked for.
const LEAST_PERIOD: std::time::Duration = std::time::Duration::from_millis(10);

/// Says that the program is about to end.
pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("draining")]);
}

/// Tells the service manager, if there is one.
fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        // The service manager acts on the silence; this says why it heard nothing.
        say(format_args!(
            "warning: the service manager at NOTIFY_SOCKET is not told: {error}"
        ));
    }
}
