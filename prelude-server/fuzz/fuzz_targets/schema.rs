//! Schemas with numbers at edges: each is compiled as the server does and answered, or refused by
//! name. A stack that overflows ends the process.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use prelude_server_fuzz::{World, schemas};

static WORLD: LazyLock<World> = LazyLock::new(World::open);

fuzz_target!(|bytes: &[u8]| {
    let (path, body) = schemas::request(bytes);
    WORLD.ask(path, body.into_bytes());
});
