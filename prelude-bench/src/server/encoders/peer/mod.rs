//! Others that compute encoders: libraries in a process of their own, and servers.

mod library;
mod server;

use std::{path::Path, thread, time::Duration};

use anyhow::Result;

use super::{models::Model, texts::Texts};
use crate::{
    load::Load,
    server::{Config, rival::Rival},
};
use library::Library;
use server::Server;

/// The rest before a measurement, in which the threads of the engine before go to sleep.
const REST: Duration = Duration::from_millis(250);

/// A way in which a rival is measured.
pub(super) struct Way {
    pub(super) title: &'static str,
    form: Form,
}

/// The kind of process that a rival runs in.
#[derive(Clone, Copy)]
enum Form {
    /// Python calls it; these are the arguments of the script.
    Library([&'static str; 2]),
    /// The rival is asked over HTTP, as ours is.
    Server,
}

/// Returns the ways in which a rival is measured.
pub(super) const fn ways(rival: Rival) -> &'static [Way] {
    const fn library(title: &'static str, arguments: [&'static str; 2]) -> Way {
        let form = Form::Library(arguments);
        Way { title, form }
    }
    match rival {
        Rival::SentenceTransformers => {
            const {
                &[
                    library("sentence-transformers, bfloat16", ["torch", "bfloat16"]),
                    library("sentence-transformers, float32", ["torch", "float32"]),
                ]
            }
        }
        Rival::OnnxRuntime => const { &[library("ONNX Runtime, float32", ["onnx", "float32"])] },
        Rival::Vllm | Rival::Infinity => {
            const {
                &[Way {
                    title: "over HTTP, bfloat16",
                    form: Form::Server,
                }]
            }
        }
        Rival::Tei => {
            const {
                &[Way {
                    title: "over HTTP, float32",
                    form: Form::Server,
                }]
            }
        }
        Rival::LlamaCpp => &[],
    }
}

/// A rival that has loaded a model.
pub(super) enum Peer {
    Library(Library),
    Server(Server),
}

impl Peer {
    /// Starts a rival on a model's folder and waits until it is loaded.
    pub(super) fn start(
        config: &Config,
        rival: Rival,
        way: &Way,
        model: &Model,
        folder: &Path,
    ) -> Result<Self> {
        Ok(match way.form {
            Form::Library(arguments) => {
                let out = &config.out;
                Self::Library(Library::start(out, way.title, &arguments, model, folder)?)
            }
            Form::Server => Self::Server(Server::start(config, rival, model, folder)?),
        })
    }

    /// Returns the title of its column.
    pub(super) const fn title(&self) -> &'static str {
        match self {
            Self::Library(library) => library.title,
            Self::Server(server) => server.title,
        }
    }

    /// Returns the median of milliseconds for a text alone, or the texts per second where there are as
    /// many at once as the load has connections.
    pub(super) fn measure(&mut self, texts: &Texts, load: &Load) -> Result<f64> {
        thread::sleep(REST);
        match self {
            Self::Library(library) => library.measure(texts, load),
            Self::Server(server) => server.measure(texts, load),
        }
    }
}
