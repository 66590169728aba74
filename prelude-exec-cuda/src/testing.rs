//! Emulated devices, small executors and golden checkpoints for this crate's tests.

use std::{
    io::Write as _,
    sync::{Arc, OnceLock},
};

use prelude_kernels::emu::{Build, Device, Error, Library, Schedule};
use prelude_models::{
    Checkpoint,
    conformance::{
        fp8::{self, Stored},
        golden::model_folder,
    },
};

use crate::CudaConfig;

/// Prints a line past the test harness, which keeps what passing tests print to itself.
pub(crate) fn say(line: &str) {
    let _ = std::io::stderr().write_all(format!("{line}\n").as_bytes());
}

fn library() -> Option<&'static Library> {
    static LIBRARY: OnceLock<Option<Library>> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| match Library::build(&Build::default()) {
        Ok(library) => Some(library),
        Err(Error::NoCompiler { program, why }) => {
            let skip = format!("SKIP: no C++ compiler `{program}` ({why})");
            assert!(std::env::var_os("PRELUDE_REQUIRE_EMU").is_none(), "{skip}");
            say(&skip);
            None
        }
        Err(error) => panic!("{error}"),
    });
    library.as_ref()
}

/// Returns a device; `None`, said aloud, where there is no C++ compiler.
pub(crate) fn emulation() -> Option<Arc<Device>> {
    emulation_with(Schedule::WarpGreedy)
}

/// Returns a device whose threads run in this order.
pub(crate) fn emulation_with(schedule: Schedule) -> Option<Arc<Device>> {
    Some(Arc::new(library()?.device(schedule)))
}

/// The models of [`prelude_models::conformance::fp8`]: one stored with scales of blocks, a mixture of experts
/// stored so, and a mixture in bf16.
pub(crate) const FP8_BLOCKS: &str = "fp8-blocks";
pub(crate) const FP8_MIXTURE: &str = "fp8-mixture";
pub(crate) const BF16_MIXTURE: &str = "bf16-mixture";

/// Returns the checkpoint of a golden model, or of one of those above.
pub(crate) fn checkpoint(name: &str) -> Checkpoint {
    match name {
        FP8_BLOCKS => fp8::checkpoint(),
        FP8_MIXTURE => fp8::mixture(Stored::Blocks),
        BF16_MIXTURE => fp8::mixture(Stored::Bf16),
        name => Checkpoint::open(&model_folder(name)).unwrap(),
    }
}

/// Returns a configuration that is small enough to make many executors, with chunks of 64 so that
/// steps have several; none is padded, and no graph captured at start.
pub(crate) fn small() -> CudaConfig {
    CudaConfig {
        num_blocks: Some(64),
        max_step_tokens: 512,
        chunk_tokens: 64,
        max_context_len: Some(1024),
        logits_rows_max: 8,
        metadata_bytes: 1 << 20,
        results_bytes: 1 << 20,
        graph_tokens: 0,
        graph_start_ms: 0,
        ..CudaConfig::default()
    }
}
