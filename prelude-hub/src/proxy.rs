//! The connection to a server, direct or through a proxy.

use std::{
    error::Error as StdError,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use hyper::Uri;
use hyper_util::{
    client::{
        legacy::connect::{HttpConnector, proxy::Tunnel},
        proxy::matcher::Matcher,
    },
    rt::TokioIo,
};
use tokio::net::TcpStream;
use tower_service::Service;

type BoxError = Box<dyn StdError + Send + Sync>;

/// A connector that asks the matcher for each address if a proxy is in between. Every connection
/// through a proxy is a tunnel (`CONNECT`).
#[derive(Clone, Debug)]
pub(crate) struct Route {
    direct: HttpConnector,
    proxies: Arc<Matcher>,
}

impl Route {
    pub(crate) fn new(direct: HttpConnector, proxies: Matcher) -> Self {
        Self {
            direct,
            proxies: Arc::new(proxies),
        }
    }
}

impl Service<Uri> for Route {
    type Response = TokioIo<TcpStream>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.direct.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, to: Uri) -> Self::Future {
        let Some(proxy) = self.proxies.intercept(&to) else {
            let connecting = self.direct.call(to);
            return Box::pin(async { Ok(connecting.await?) });
        };
        if proxy.uri().scheme_str() != Some("http") {
            let scheme = proxy.uri().scheme_str().unwrap_or_default().to_owned();
            return Box::pin(async move {
                Err(format!(
                    "a proxy of the kind {scheme:?} is not supported; give an http:// proxy"
                )
                .into())
            });
        }
        let mut tunnel = Tunnel::new(proxy.uri().clone(), self.direct.clone());
        if let Some(secret) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(secret.clone());
        }
        let connecting = tunnel.call(to);
        Box::pin(async { connecting.await.map_err(Into::into) })
    }
}
