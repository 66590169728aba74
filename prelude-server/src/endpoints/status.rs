//! `/v1/status` and `/v1/status/events`: queues, steps, times and caches of every model, once or as
//! they change.
//!
//! A stream asks the engines for what is new while its client reads, and at no other time: without a
//! client it costs nothing, and a slow client misses steps, whose number it is told.

mod body;

use std::{pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use prelude_core::StepId;
use schemars::SchemaGenerator;

use crate::{
    app::App,
    endpoint::{Bodies, Endpoint, Reply, json},
    lifecycle::Phase,
    sse::{EventStream, Events},
};

use body::{Changes, Gauges, ModelChanges, QueueBody, Status, Step};

/// `GET /v1/status`.
pub(crate) const STATUS: Endpoint = Endpoint {
    group: "state",
    summary: "Queues, latest steps, times and caches of every model",
    responses: json::<Status<'static>>,
    ..Endpoint::get(&["/v1/status"], |call, _| {
        Box::pin(async { Ok(Reply::json(&Status::of(&call.app))) })
    })
};

/// `GET /v1/status/events`.
pub(crate) const EVENTS: Endpoint = Endpoint {
    group: "state",
    summary: "New steps, queues and caches of every model, as they change",
    responses: changes,
    watches: true,
    ..Endpoint::get(&["/v1/status/events"], |call, _| {
        Box::pin(async { Ok(Reply::Stream(watch(Arc::clone(&call.app)))) })
    })
};

/// The time between two looks at the engines.
const PERIOD: Duration = Duration::from_millis(250);

/// Most steps of a model in one answer or event.
const STEPS_MAX: usize = 200;

fn changes(generator: &mut SchemaGenerator) -> Bodies {
    let event = generator.subschema_for::<Changes<'static>>();
    // The schema has no type: to some tools a stream is one text, to others each event is an
    // object.
    let mut schema = schemars::json_schema!({ "x-event": event });
    let what = "Events `data: StatusChanges`, at most four a second, as long as the client listens. \
                The first has the latest steps.";
    schema.insert("description".to_owned(), what.into());
    vec![("text/event-stream", schema)]
}

/// Returns the stream of changes. It ends as the process drains.
fn watch(app: Arc<App>) -> EventStream {
    EventStream::paced(|mut sender| async move {
        let mut watcher = Watcher::default();
        let mut draining = pin!(app.lifecycle.reached(Phase::Draining));
        loop {
            if let Some(event) = watcher.look(&app) {
                sender.send(event).await;
            }
            tokio::select! {
                () = tokio::time::sleep(PERIOD) => {}
                () = &mut draining => break,
            }
        }
    })
}

/// The facts that the client of a stream has been told.
#[derive(Default)]
struct Watcher {
    is_begun: bool,
    phase: &'static str,
    queues: Vec<QueueBody>,
    models: Vec<Seen>,
}

/// The facts that the client has been told of one model.
#[derive(Default)]
struct Seen {
    last_step: Option<StepId>,
    now: Option<Gauges>,
}

impl Watcher {
    /// Returns the event with what has changed since the last look, if anything has.
    fn look(&mut self, app: &App) -> Option<Bytes> {
        self.models.resize_with(app.models().len(), Seen::default);
        let queues = QueueBody::all(app);
        let phase = app.lifecycle.phase().as_str();
        let mut is_new = !self.is_begun || queues != self.queues || phase != self.phase;
        let mut models = Vec::with_capacity(self.models.len());
        for (model, seen) in app.models().iter().zip(&mut self.models) {
            let now = Gauges::of(&model.engine.snapshot());
            let (steps, missed_steps) = seen.steps(model.engine.steps_after(seen.last_step));
            is_new |= !steps.is_empty() || seen.now.as_ref() != Some(&now);
            seen.now = Some(now.clone());
            models.push(ModelChanges {
                id: &model.name,
                now,
                steps,
                missed_steps,
            });
        }
        self.is_begun = true;
        self.phase = phase;
        self.queues.clone_from(&queues);
        is_new.then(|| {
            let mut events = Events::default();
            events.push(&Changes {
                phase,
                queues,
                models,
            });
            events.take()
        })
    }
}

impl Seen {
    /// Notes the steps behind the last one seen, and returns the latest of them with the number of
    /// those that the client misses.
    fn steps(&mut self, mut new: Vec<prelude_engine::StepReport>) -> (Vec<Step>, u64) {
        let older = new.len().saturating_sub(STEPS_MAX);
        new.drain(..older);
        let (Some(first), Some(last)) = (new.first(), new.last()) else {
            return (Vec::new(), 0);
        };
        // Steps are numbered without a gap. A client that has just come misses nothing.
        let missed = { self.last_step }.map_or(0, |seen| first.step.0 - seen.0 - 1);
        self.last_step = Some(last.step);
        (new.iter().map(Step::of).collect(), missed)
    }
}

#[cfg(test)]
mod tests {
    use prelude_engine::{StepKind, StepReport};
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{answer, demos};

    fn steps(ids: std::ops::Range<u64>) -> Vec<StepReport> {
        let report = |id| StepReport {
            step: StepId(id),
            kind: StepKind::OneShot,
            oneshot_tokens: 1,
            prefill_tokens: 0,
            decode_rows: 0,
            oneshot_rows: 1,
            submitted: prelude_core::Timestamp::ZERO,
            duration: Duration::from_millis(1),
            succeeded: true,
        };
        ids.map(report).collect()
    }

    #[test]
    fn an_event_has_a_bounded_number_of_steps_and_says_how_many_are_missed() {
        let mut seen = Seen::default();
        let mut check = |ids, expected: (usize, u64)| {
            let (steps, missed) = seen.steps(steps(ids));
            assert_eq!((steps.len(), missed), expected);
        };
        check(0..0, (0, 0));
        // A newcomer has missed nothing, whatever was before.
        check(50..300, (STEPS_MAX, 0));
        check(300..303, (3, 0));
        // The engine has forgotten 303 to 309.
        check(310..312, (2, 7));
        check(312..312 + 256, (STEPS_MAX, 56));
        check(568..569, (1, 0));
    }

    #[test]
    fn an_event_comes_only_if_something_has_changed() {
        let app = demos();
        let mut watcher = Watcher::default();
        let read = |event: Bytes| -> Value {
            let text = std::str::from_utf8(&event).unwrap();
            let data = text.strip_prefix("data: ").unwrap();
            serde_json::from_str(data.trim_end()).unwrap()
        };
        let first = read(watcher.look(app).unwrap());
        assert_eq!(first["phase"], "ready");
        assert_eq!(first["models"][0]["id"], "demo-lm");
        // Other tests use the same engines at the same time, so the steps asked for are looked for.
        let body = json!({"input": "Where is my card?", "model": "demo-classifier"});
        answer(app, "/classify", &body);
        let next = read(watcher.look(app).unwrap());
        let steps = next["models"][1]["steps"].as_array().unwrap();
        let last = steps.last().unwrap();
        assert!(last["oneshot_tokens"].as_u64().unwrap() > 0, "{last}");
        assert_eq!(last["succeeded"], true);
        assert!(last["ms"].as_f64().unwrap() > 0.0);
    }

    /// The sums of `/v1/status` are those that `/metrics` prints.
    #[test]
    fn histograms_hold_every_observation_once() {
        let app = demos();
        let body = json!({"input": "Where is my card?", "model": "demo-classifier"});
        answer(app, "/classify", &body);
        let status = serde_json::to_value(Status::of(app)).unwrap();
        let model = &status["models"][1];
        assert_eq!(model["id"], "demo-classifier");
        let latency = &model["latency"][0];
        assert_eq!(latency["class"], "oneshot");
        for name in ["queue_seconds", "exec_seconds"] {
            let histogram = &latency[name];
            let counts = histogram["counts"].as_array().unwrap();
            let sum: u64 = counts.iter().map(|n| n.as_u64().unwrap()).sum();
            assert!(sum > 0);
            assert_eq!(histogram["count"], sum);
            let bounds = histogram["le"].as_array().unwrap();
            assert_eq!(counts.len(), bounds.len() + 1);
        }
        let recent = model["recent_steps"].as_array().unwrap();
        assert!((1..=STEPS_MAX).contains(&recent.len()));
    }
}
