//! The tensors that a model is loaded from: one answer for all who look at a checkpoint, be it to
//! check, to plan memory, to pack, or to name what was served.
//!
//! They are those that the model's definition asks for. A file may hold more: buffers of integers that
//! old releases of transformers saved, heads of training, scales of a cache. A family names them, and
//! a checkpoint does not have them, whatever their type. Any other tensor is refused when the model is
//! loaded.

use std::collections::BTreeMap;

use crate::{
    Decoder, Encoder, Error, ModelConfig, ModelKind, RopeConfig,
    source::{Form, Place, TensorSource},
};

/// Names and shapes of tensors.
pub(crate) type Shapes = BTreeMap<String, Vec<usize>>;

/// Returns the tensors that a model reads; `contains` says whether the files have a tensor.
///
/// # Errors
/// None: a definition's are those of its source, and this one has none.
pub(crate) fn read_by(
    config: &ModelConfig,
    kind: &ModelKind,
    contains: impl Fn(&str) -> bool,
) -> Result<Shapes, Error> {
    let mut names = Names {
        prefix: config.prefix(&contains),
        shapes: Shapes::new(),
    };
    match &config.encoder {
        None => Decoder::define(config, kind, &mut names).map(drop)?,
        Some(encoder) => {
            let parts = norm_parts(contains, names.prefix);
            Encoder::define((config, encoder), kind, parts, &mut names).map(drop)?;
        }
    }
    Ok(names.shapes)
}

/// Returns the names of the two tensors of an encoder's norm: old checkpoints, made from TensorFlow's,
/// have names of their own, which transformers reads too.
pub(crate) fn norm_parts(contains: impl Fn(&str) -> bool, prefix: &str) -> [&'static str; 2] {
    match contains(&format!("{prefix}embeddings.LayerNorm.gamma")) {
        true => ["gamma", "beta"],
        false => ["weight", "bias"],
    }
}

/// Keeps the names and shapes of what a definition asks for.
struct Names {
    prefix: &'static str,
    shapes: Shapes,
}

impl TensorSource for Names {
    type Weight = ();

    fn of_body(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn tensor(&mut self, name: String, shape: &[usize], _: Form<'_>) -> Result<(), Error> {
        self.shapes.insert(name, shape.to_vec());
        Ok(())
    }

    fn stack(
        &mut self,
        _: String,
        parts: &[(String, usize)],
        (inputs, biased): (usize, bool),
        _: Place,
    ) -> Result<(), Error> {
        for (part, outputs) in parts {
            self.shapes
                .insert(format!("{part}.weight"), vec![*outputs, inputs]);
            if biased {
                self.shapes.insert(format!("{part}.bias"), vec![*outputs]);
            }
        }
        Ok(())
    }

    fn zeros(&mut self, _: String, _: usize) -> Result<(), Error> {
        Ok(())
    }

    fn rope(&mut self, _: &str, _: &RopeConfig, _: usize) -> Result<(), Error> {
        Ok(())
    }
}

/// Returns the tensors of modules behind a pooling.
#[cfg(test)]
pub(crate) fn of_modules(modules: &[crate::DenseConfig]) -> Shapes {
    let mut names = Names {
        prefix: "",
        shapes: Shapes::new(),
    };
    names.dense(modules).unwrap();
    names.shapes
}
