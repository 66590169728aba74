//! The way of weights from a checkpoint to a loader.

use crate::{Checkpoint, DenseConfig, DenseModule, Error, TensorView, WeightLoader};

/// The source of weights, and the loader that they go to.
pub(crate) struct WeightSource<'a, L> {
    pub(crate) checkpoint: &'a Checkpoint,
    /// The beginning of the names of the body's tensors.
    pub(crate) prefix: &'static str,
    pub(crate) loader: &'a mut L,
}

impl<'a, L: WeightLoader> WeightSource<'a, L> {
    /// Returns the weight `name.weight` of an RMS norm of the body, `offset` added to each element.
    pub(crate) fn norm(&mut self, name: &str, offset: f32) -> Result<L::Weight, Error> {
        let name = format!("{}{name}.weight", self.prefix);
        let view = self.finite(&name)?;
        let loaded = self.loader.norm(&name, &view, offset);
        self.checkpoint.release(&name);
        loaded.map_err(|e| loader_error(&name, e))
    }

    /// Returns the vector `name` of the body.
    pub(crate) fn tensor(&mut self, name: &str) -> Result<L::Weight, Error> {
        let name = format!("{}{name}", self.prefix);
        let view = self.finite(&name)?;
        let loaded = self.loader.vector(&name, &view);
        self.checkpoint.release(&name);
        loaded.map_err(|e| loader_error(&name, e))
    }

    /// Returns `parts` of the body stacked into one matrix, known to the loader as `name`.
    pub(crate) fn linear(
        &mut self,
        name: &str,
        parts: &[&str],
        biased: bool,
    ) -> Result<L::Weight, Error> {
        let parts: Vec<String> = parts
            .iter()
            .map(|part| format!("{}{part}", self.prefix))
            .collect();
        self.stack(format!("{}{name}.weight", self.prefix), &parts, biased)
    }

    /// Returns the table `name.weight` of the body.
    pub(crate) fn embedding(&mut self, name: &str, is_head: bool) -> Result<L::Weight, Error> {
        let name = format!("{}{name}.weight", self.prefix);
        let view = self.finite(&name)?;
        let loaded = self.loader.embedding(&name, &view, is_head);
        self.checkpoint.release(&name);
        loaded.map_err(|e| loader_error(&name, e))
    }

    /// Returns the modules `Dense` behind the pooling.
    pub(crate) fn dense(&mut self) -> Result<Vec<DenseModule<L::Weight>>, Error> {
        let modules = self.checkpoint.config().dense.iter();
        let module = |of: &DenseConfig| {
            Ok(DenseModule {
                weight: self.head(&of.name(), of.bias)?,
                activation: of.activation,
            })
        };
        modules.map(module).collect()
    }

    /// Returns a matrix of a head, which lies outside the body, so its name has no prefix.
    pub(crate) fn head(&mut self, name: &str, biased: bool) -> Result<L::Weight, Error> {
        self.stack(format!("{name}.weight"), &[name.to_owned()], biased)
    }

    fn stack(&mut self, name: String, parts: &[String], biased: bool) -> Result<L::Weight, Error> {
        let views = |what: &str| {
            parts
                .iter()
                .map(|part| self.finite(&format!("{part}.{what}")))
                .collect::<Result<Vec<_>, _>>()
        };
        let weights = views("weight")?;
        let biases = if biased { views("bias")? } else { Vec::new() };
        let loaded = self.loader.linear(&name, &weights, &biases);
        for part in parts {
            self.checkpoint.release(&format!("{part}.weight"));
        }
        loaded.map_err(|e| loader_error(&name, e))
    }

    /// Returns a tensor without infinities and NaNs.
    pub(crate) fn finite(&self, name: &str) -> Result<TensorView<'a>, Error> {
        let view = self.checkpoint.tensor(name)?;
        match self.loader.first_non_finite(&view) {
            None => Ok(view),
            Some(index) => Err(Error::NotFinite {
                tensor: name.to_owned(),
                index,
            }),
        }
    }
}

/// Returns the error that a loader could not take a weight.
pub(crate) fn loader_error(
    weight: &str,
    source: impl std::error::Error + Send + Sync + 'static,
) -> Error {
    Error::Loader {
        weight: weight.to_owned(),
        source: Box::new(source),
    }
}
