//! KV events of served models: sockets bound before loading, and tasks that publish.

use prelude_engine::KvEventStream;
use prelude_kv_events::{Address, Format, Publisher, PublisherConfig};
use serde::{Deserialize, Serialize};

use super::{Code, Failure, say};

/// Settings of KV events: messages in vLLM's format that say which blocks the KV cache stores and
/// drops, for routers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct KvEventSettings {
    /// Address of the ZeroMQ PUB socket, such as `tcp://*:5557` (default none: no events). Every
    /// program that can connect reads the token ids of prompts, so bind to a private address. Of
    /// several models each has the next port.
    pub(crate) endpoint: Option<Address>,
    /// Address of the ROUTER socket that sends past messages again, such as `tcp://*:5558` (default
    /// none). Without it a reader that has missed a message has to forget what it knew. Of several
    /// models each has the next port.
    pub(crate) replay_endpoint: Option<Address>,
    /// First frame of each message (default empty); `{model}` is the model's name. llm-d expects
    /// `kv@ENGINE@{model}`.
    pub(crate) topic: String,
    /// Form of events: `maps` (default) as vLLM writes them since June 2026, or `arrays` for older
    /// readers.
    pub(crate) format: Format,
    /// Messages kept for replay (default 10,000), of at most 64 MiB together. More let a reader be
    /// away for longer before it has to forget what it knew.
    pub(crate) buffer_steps: usize,
}

impl Default for KvEventSettings {
    fn default() -> Self {
        Self {
            endpoint: None,
            replay_endpoint: None,
            topic: String::new(),
            format: Format::default(),
            buffer_steps: 10_000,
        }
    }
}

/// Upper bound of `buffer_steps`: the queue's own memory stays far below that of the messages.
const BUFFER_STEPS_MAX: usize = 1 << 20;

impl KvEventSettings {
    /// Returns true if events are to be published.
    pub(crate) const fn is_on(&self) -> bool {
        self.endpoint.is_some()
    }

    /// Returns the sockets of the n-th model.
    fn of_model(&self, n: usize, model: &str) -> Result<PublisherConfig, Failure> {
        let wrong = |message: &str| Err(Failure::new(Code::Usage, message));
        let Some(endpoint) = &self.endpoint else {
            return wrong("kv_events.replay_endpoint needs kv_events.endpoint");
        };
        if !(1..=BUFFER_STEPS_MAX).contains(&self.buffer_steps) {
            return wrong("kv_events.buffer_steps must be from 1 to 1048576");
        }
        let port = |address: &Address| {
            let offset = u16::try_from(n).ok().and_then(|n| address.offset(n));
            offset.ok_or_else(|| {
                let message = format!("{address}: there is no port for model {}", n + 1);
                Failure::new(Code::Usage, message)
            })
        };
        Ok(PublisherConfig {
            endpoint: port(endpoint)?,
            replay_endpoint: self.replay_endpoint.as_ref().map(port).transpose()?,
            topic: self.topic.replace("{model}", model),
            format: self.format,
            buffer_steps: self.buffer_steps,
        })
    }

    /// Binds the sockets of each model, in order; none if no events are to be published.
    pub(crate) async fn bind(&self, models: &[String]) -> Result<Vec<Publisher>, Failure> {
        if !self.is_on() && self.replay_endpoint.is_none() {
            return Ok(Vec::new());
        }
        let mut publishers = Vec::new();
        for (n, model) in models.iter().enumerate() {
            let config = self.of_model(n, model)?;
            let publisher = Publisher::bind(&config).await.map_err(|error| {
                let (own, replay) = (&config.endpoint, &config.replay_endpoint);
                let replay = replay.as_ref().map(|address| format!(" or {address}"));
                let replay = replay.unwrap_or_default();
                let message = format_args!("cannot publish events on {own}{replay}: {error}");
                Failure::new(Code::Failed, message)
            })?;
            let address = publisher.address();
            match publisher.replay_address() {
                Some(replay) => say(format_args!(
                    "kv events: {model}: on tcp://{address}, replay on tcp://{replay}"
                )),
                None => say(format_args!("kv events: {model}: on tcp://{address}")),
            }
            publishers.push(publisher);
        }
        Ok(publishers)
    }
}

/// Publishes an engine's events until it stops.
pub(crate) async fn publish(publisher: Publisher, mut events: KvEventStream) {
    while let Some(events) = events.next().await {
        publisher.publish(events);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> KvEventSettings {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn each_model_has_its_ports_and_topic() {
        let on = settings(
            "endpoint = 'tcp://*:5557'\nreplay_endpoint = 'tcp://*:6557'\ntopic = 'kv@a@{model}'",
        );
        let second = on.of_model(1, "demo").unwrap();
        assert_eq!(second.endpoint.to_string(), "tcp://*:5558");
        assert_eq!(second.replay_endpoint.unwrap().to_string(), "tcp://*:6558");
        assert_eq!((&*second.topic, second.buffer_steps), ("kv@a@demo", 10_000));
        assert_eq!(second.format, Format::Maps);
    }

    #[test]
    fn wrong_settings_are_refused() {
        let fault = |text: &str| settings(text).of_model(1, "m").unwrap_err().to_string();
        let last = "endpoint = 'tcp://*:65535'";
        assert!(fault(last).contains("no port for model 2"));
        assert!(fault("replay_endpoint = 'tcp://*:1'").contains("needs kv_events.endpoint"));
        let none = "endpoint = 'tcp://*:1'\nbuffer_steps = 0";
        assert!(fault(none).contains("from 1 to"));
        let wrong = toml::from_str::<KvEventSettings>("endpoint = 'ipc://x'").unwrap_err();
        assert!(wrong.to_string().contains("tcp://HOST:PORT"));
    }
}
