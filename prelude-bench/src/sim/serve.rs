//! Modelled engines as HTTP servers: the twin of real ones, for proxies and pickers.
//!
//! Each engine is a [`super::Engine`], the real scheduler before a device that takes time and
//! computes nothing, driven by the clock in place of virtual time. It answers the endpoints of a
//! server with its headers and metrics, so one process stands in for a rack of engines. Texts and
//! verdicts are made up; when they come, and what was cached, is not.

mod answer;
mod clock;
mod http;
mod question;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use anyhow::{Context as _, Result, ensure};
use tokio::{net::TcpListener, task::JoinSet};

use self::clock::ClockedEngine;
use super::{Engine, EngineConfig};

/// Engines that listen and do not answer yet.
#[derive(Debug)]
pub struct Serving {
    engines: Vec<(TcpListener, Arc<ClockedEngine>)>,
}

impl Serving {
    /// Binds `count` engines of a kind to consecutive ports from `port` on, or to free ports if
    /// that is 0.
    ///
    /// # Errors
    /// If an engine cannot be built, or a port is taken or beyond 65,535.
    pub async fn bind(config: &EngineConfig, count: u16, ip: IpAddr, port: u16) -> Result<Self> {
        ensure!(count > 0, "there must be at least one engine");
        let mut engines = Vec::new();
        for at in 0..count {
            let port = match port {
                0 => 0,
                first => first.checked_add(at).with_context(|| {
                    format!("{count} engines from port {first} on need ports beyond 65535")
                })?,
            };
            let address = SocketAddr::from((ip, port));
            let listener = TcpListener::bind(address).await;
            let listener = listener.with_context(|| format!("cannot listen on {address}"))?;
            let slowdown = if at == 0 { config.slow_first } else { 1.0 };
            let engine = Engine::new(config)?.slowed(slowdown);
            let engine = ClockedEngine::new(engine, config.model.name());
            engines.push((listener, Arc::new(engine)));
        }
        Ok(Self { engines })
    }

    /// Returns the addresses of the engines.
    ///
    /// # Errors
    /// If the system does not tell.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>> {
        let all = self.engines.iter();
        all.map(|(listener, _)| Ok(listener.local_addr()?))
            .collect()
    }

    /// Answers for as long as the future is polled.
    ///
    /// # Errors
    /// If an engine's scheduler fails: a defect.
    pub async fn run(self) -> Result<()> {
        let mut tasks = JoinSet::new();
        for (listener, engine) in self.engines {
            tasks.spawn(Arc::clone(&engine).drive());
            tasks.spawn(async move {
                http::serve(listener, engine).await;
                Ok(())
            });
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        Ok(())
    }
}
