//! An engine that tells what its cache holds, and a router that follows it, in one process.
//!
//! `cargo run -p prelude-kv-events --example follow`
#![expect(clippy::print_stdout, reason = "an example that prints")]

use std::time::Duration;

use prelude_core::{KvEvent, StoredBlocks};
use prelude_kv_events::{
    Address, Format, Publisher, PublisherConfig, Subscriber, SubscriberConfig, Update,
};
use tokio::{sync::mpsc, time};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().build()?.block_on(follow())
}

async fn follow() -> Result<(), Box<dyn std::error::Error>> {
    let any_port: Address = "tcp://127.0.0.1:0".parse()?;
    let engine = Publisher::bind(&PublisherConfig {
        endpoint: any_port.clone(),
        replay_endpoint: Some(any_port),
        topic: String::new(),
        format: Format::Maps,
        buffer_steps: 100,
    })
    .await?;
    let replay = engine
        .replay_address()
        .map(|at| format!("tcp://{at}").parse());
    let router = Subscriber::new(SubscriberConfig {
        endpoint: format!("tcp://{}", engine.address()).parse()?,
        replay_endpoint: replay.transpose()?,
        topic: String::new(),
        check_every: Duration::from_millis(50),
    });
    let (send, mut updates) = mpsc::unbounded_channel();
    let following = tokio::spawn(router.run(move |update| {
        // The receiver is gone once the example ends.
        let _ = send.send(update);
    }));
    let stored = KvEvent::Stored(StoredBlocks {
        hashes: vec![11, 12],
        parent: None,
        tokens: (0..32).collect(),
        salt: None,
    });
    engine.publish(vec![stored.clone()]);
    loop {
        let update = time::timeout(Duration::from_secs(10), updates.recv()).await?;
        println!("{update:?}");
        if let Some(Update::Events(events)) = update {
            assert_eq!(events, [stored]);
            following.abort();
            return Ok(());
        }
    }
}
