//! `/ui`: a page for people, from files in the program. It holds no data, so it needs no key; what it
//! shows it asks the other endpoints for.

use bytes::Bytes;
use schemars::SchemaGenerator;

use crate::endpoint::{Access, Bodies, Endpoint, Reply};

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const JAVASCRIPT: &str = "text/javascript; charset=utf-8";

/// `GET /ui`, and `/`, to which a browser goes that was given the server's address.
pub(crate) const PAGE: Endpoint = Endpoint {
    group: "page",
    summary: "A page for people: decide, see the cost, watch steps, compare texts",
    responses: |generator| text(generator, "text/html"),
    access: Access::Open,
    ..Endpoint::get(&["/ui", "/"], |_, _| {
        Box::pin(async { Ok(file(HTML, include_str!("ui/page.html"))) })
    })
};

/// `GET /ui/style.css`.
pub(crate) const STYLE: Endpoint = Endpoint {
    group: "page",
    summary: "The style of the page",
    responses: |generator| text(generator, "text/css"),
    access: Access::Open,
    ..Endpoint::get(&["/ui/style.css"], |_, _| {
        Box::pin(async { Ok(file(CSS, include_str!("ui/style.css"))) })
    })
};

/// `GET /ui/script.js`: a file for each tab, and what they share before them.
pub(crate) const SCRIPT: Endpoint = Endpoint {
    group: "page",
    summary: "The script of the page",
    responses: |generator| text(generator, "text/javascript"),
    access: Access::Open,
    ..Endpoint::get(&["/ui/script.js"], |_, _| {
        Box::pin(async { Ok(file(JAVASCRIPT, SCRIPTS)) })
    })
};

const SCRIPTS: &str = concat!(
    include_str!("ui/shared.js"),
    include_str!("ui/decide.js"),
    include_str!("ui/cost.js"),
    include_str!("ui/live.js"),
    include_str!("ui/compare.js"),
    include_str!("ui/start.js"),
);

fn file(content_type: &'static str, body: &'static str) -> Reply {
    let body = Bytes::from_static(body.as_bytes());
    Reply::Page { content_type, body }
}

fn text(_: &mut SchemaGenerator, media: &'static str) -> Bodies {
    vec![(media, schemars::json_schema!({ "type": "string" }))]
}
