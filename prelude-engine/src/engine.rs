//! A running engine: its thread, and how that starts and stops.

use std::{
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

use prelude_core::{Executor, KvEvent};
use prelude_sched::{Scheduler, SchedulerPolicy};

use crate::{
    EngineConfig, EngineError, EngineHandle,
    engine_core::{EngineCore, Over},
    inline_step::SharedCore,
    shared::{Shared, kv_event_blocks, lock},
};

/// A running engine. Dropping it stops the thread and waits for it; requests that have not
/// finished end with [`AnswerEvent::EngineStopped`](crate::AnswerEvent::EngineStopped).
#[derive(Debug)]
pub struct ScheduledEngine {
    handle: EngineHandle,
    thread: Option<JoinHandle<()>>,
}

impl ScheduledEngine {
    /// Starts the engine's thread, called `prelude-<name>`.
    ///
    /// # Errors
    /// [`EngineError`] if the scheduler refuses its configuration or no thread can be started.
    pub fn spawn(
        name: &str,
        config: EngineConfig,
        executor: Box<dyn Executor>,
    ) -> Result<Self, EngineError> {
        let scheduler = Scheduler::new(config.scheduler.clone(), executor.capacity())?;
        Self::start(name, &config, scheduler, executor)
    }

    /// Does what [`Self::spawn`] does, with a policy of the caller's in place of
    /// `config.scheduler.policy`.
    ///
    /// # Errors
    /// Those of [`Self::spawn`].
    pub fn spawn_with_policy(
        name: &str,
        config: EngineConfig,
        policy: Box<dyn SchedulerPolicy>,
        executor: Box<dyn Executor>,
    ) -> Result<Self, EngineError> {
        let capacity = executor.capacity();
        let scheduler = Scheduler::with_policy(config.scheduler.clone(), capacity, policy)?;
        Self::start(name, &config, scheduler, executor)
    }

    fn start(
        name: &str,
        config: &EngineConfig,
        mut scheduler: Scheduler,
        executor: Box<dyn Executor>,
    ) -> Result<Self, EngineError> {
        let capacity = executor.capacity();
        let shared = Arc::new(Shared::new(config, capacity));
        if let Some(events) = &shared.kv_events {
            scheduler.record_kv_events(kv_event_blocks(capacity));
            events.push(vec![KvEvent::Cleared], || vec![KvEvent::Cleared]);
        }
        let core = EngineCore::new(scheduler, executor);
        let core: Arc<SharedCore> = Arc::new(Mutex::new(Some(core)));
        let thread = std::thread::Builder::new()
            .name(format!("prelude-{name}"))
            .spawn({
                let (core, shared) = (Arc::clone(&core), Arc::clone(&shared));
                move || run(&core, &shared)
            })?;
        Ok(Self {
            handle: EngineHandle { shared, core },
            thread: Some(thread),
        })
    }

    /// Returns a handle through which to submit requests.
    #[must_use]
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }

    /// Stops the engine and waits for its thread.
    pub fn stop(self) {}
}

impl Drop for ScheduledEngine {
    fn drop(&mut self) {
        self.handle.shared.inbox.stop();
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of the engine's thread, and `Closing` has ended
            // all answers.
            let _ = thread.join();
        }
    }
}

/// Closes the engine, also when its thread panics.
struct Closing<'a> {
    core: &'a SharedCore,
    shared: &'a Shared,
}

impl Drop for Closing<'_> {
    fn drop(&mut self) {
        let core = lock(self.core).take();
        self.shared.close();
        // The channels of the core's live requests close with it, which their answers take for
        // `EngineStopped`.
        drop(core);
    }
}

/// Runs steps and commands until the engine ends, as the engine's thread.
fn run(core: &SharedCore, shared: &Shared) {
    let _closing = Closing { core, shared };
    loop {
        let rest = {
            // The core is locked while there is work: no caller computes between two steps of this
            // thread.
            let mut engine = lock(core);
            // `None` if a step on a caller's thread has ended the engine.
            let Some(engine) = engine.as_mut() else {
                return;
            };
            match engine.run(shared) {
                Ok(rest) => rest,
                Err(Over) => return,
            }
        };
        shared.inbox.wait(rest);
    }
}
