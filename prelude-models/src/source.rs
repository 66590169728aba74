//! The way of weights from a checkpoint to a loader.

use crate::{Checkpoint, DType, DenseConfig, DenseModule, Error, Tensor, TensorView, WeightLoader};

/// The source of weights, and the loader that they go to.
pub(crate) struct WeightSource<'a, L> {
    pub(crate) checkpoint: &'a Checkpoint,
    /// The beginning of the names of the body's tensors.
    pub(crate) prefix: &'static str,
    pub(crate) loader: &'a mut L,
}

/// The place of a matrix in a model.
#[derive(Clone, Copy, Debug)]
enum Place {
    Layer,
    /// A head, or a router.
    Head,
    /// The tensor's index, and the number of tensors that are multiplied together.
    Stack((usize, usize)),
}

impl<'a, L: WeightLoader> WeightSource<'a, L> {
    /// Returns the weight `name.weight` of an RMS norm of the body, `offset` added to each element.
    pub(crate) fn norm(&mut self, name: &str, offset: f32) -> Result<L::Weight, Error> {
        let name = format!("{}{name}.weight", self.prefix);
        let tensor = self.finite(&name)?;
        let loaded = self.loader.norm(&name, &tensor.view(), offset);
        self.checkpoint.release(&name);
        loaded.map_err(|e| loader_error(&name, e))
    }

    /// Returns the weight `name.weight` of an RMS norm of the body, each element times `factor`, a power
    /// of two.
    pub(crate) fn scaled_norm(&mut self, name: &str, factor: f32) -> Result<L::Weight, Error> {
        let name = format!("{}{name}.weight", self.prefix);
        let tensor = self.finite(&name)?;
        let view = tensor.view();
        let mut values = Vec::with_capacity(view.len());
        view.read_f32(0..view.len(), &mut values);
        let scaled = values.iter().flat_map(|x| (x * factor).to_le_bytes());
        let scaled: Vec<u8> = scaled.collect();
        let view = TensorView {
            dtype: DType::F32,
            shape: view.shape,
            bytes: &scaled,
        };
        let loaded = self.loader.norm(&name, &view, 0.0);
        self.checkpoint.release(&name);
        loaded.map_err(|e| loader_error(&name, e))
    }

    /// Returns the vector `name` of the body.
    pub(crate) fn tensor(&mut self, name: &str) -> Result<L::Weight, Error> {
        let name = format!("{}{name}", self.prefix);
        let tensor = self.finite(&name)?;
        let loaded = self.loader.vector(&name, &tensor.view());
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
        self.stack(
            format!("{}{name}.weight", self.prefix),
            &parts,
            biased,
            Place::Layer,
        )
    }

    /// Returns the matrix `index` of `count` that are multiplied together, `parts` of the body
    /// stacked: see [`WeightLoader::linear_of_stack`].
    pub(crate) fn linear_of_stack(
        &mut self,
        name: &str,
        place: (usize, usize),
        parts: &[&str],
    ) -> Result<L::Weight, Error> {
        let parts = parts.iter().map(|part| format!("{}{part}", self.prefix));
        let parts: Vec<String> = parts.collect();
        let name = format!("{}{name}.weight", self.prefix);
        self.stack(name, &parts, false, Place::Stack(place))
    }

    /// Returns the matrix `name` of the body that chooses experts.
    pub(crate) fn router(&mut self, name: &str) -> Result<L::Weight, Error> {
        let parts = [format!("{}{name}", self.prefix)];
        let name = format!("{}{name}.weight", self.prefix);
        self.stack(name, &parts, false, Place::Head)
    }

    /// Returns the table `name.weight` of the body.
    pub(crate) fn embedding(&mut self, name: &str, is_head: bool) -> Result<L::Weight, Error> {
        let name = format!("{}{name}.weight", self.prefix);
        let tensor = self.finite(&name)?;
        let loaded = self.loader.embedding(&name, &tensor.view(), is_head);
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
        let parts = [name.to_owned()];
        self.stack(format!("{name}.weight"), &parts, biased, Place::Head)
    }

    fn stack(
        &mut self,
        name: String,
        parts: &[String],
        biased: bool,
        place: Place,
    ) -> Result<L::Weight, Error> {
        if let Some(loaded) = self.stored_fp8(&name, parts, biased, place)? {
            return Ok(loaded);
        }
        let read = |what: &str| {
            parts
                .iter()
                .map(|part| self.finite(&format!("{part}.{what}")))
                .collect::<Result<Vec<_>, _>>()
        };
        let weights = read("weight")?;
        let biases = if biased { read("bias")? } else { Vec::new() };
        let weights: Vec<_> = weights.iter().map(Tensor::view).collect();
        let biases: Vec<_> = biases.iter().map(Tensor::view).collect();
        let loaded = match place {
            Place::Layer => self.loader.linear(&name, &weights, &biases),
            Place::Head => self.loader.head(&name, &weights, &biases),
            Place::Stack(place) => self.loader.linear_of_stack(&name, place, &weights),
        };
        for part in parts {
            self.checkpoint.release(&format!("{part}.weight"));
        }
        loaded.map_err(|e| loader_error(&name, e))
    }

    /// Returns the matrix of `parts` as they are stored, if all are in fp8 and the loader takes them so;
    /// `None` for heads and routers, too.
    fn stored_fp8(
        &mut self,
        name: &str,
        parts: &[String],
        biased: bool,
        place: Place,
    ) -> Result<Option<L::Weight>, Error> {
        if let Place::Head = place {
            return Ok(None);
        }
        let names = parts.iter().map(|part| format!("{part}.weight"));
        let names: Vec<String> = names.collect();
        let stored = names.iter().map(|name| self.checkpoint.fp8(name));
        let Some(stored) = stored.collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        for (name, matrix) in names.iter().zip(&stored) {
            if let Some(index) = matrix.first_non_finite() {
                let tensor = name.clone();
                return Err(Error::NotFinite { tensor, index });
            }
        }
        let biases = parts.iter().filter(|_| biased);
        let biases = biases.map(|part| self.finite(&format!("{part}.bias")));
        let biases = biases.collect::<Result<Vec<_>, _>>()?;
        let biases: Vec<_> = biases.iter().map(Tensor::view).collect();
        let loaded = match place {
            Place::Stack(place) => self.loader.linear_fp8_of_stack(name, place, &stored),
            Place::Layer | Place::Head => self.loader.linear_fp8(name, &stored, &biases),
        };
        let loaded = loaded.map_err(|e| loader_error(name, e))?;
        if loaded.is_some() {
            names.iter().for_each(|name| self.checkpoint.release(name));
        }
        Ok(loaded)
    }

    /// Returns a tensor without infinities and NaNs.
    pub(crate) fn finite(&self, name: &str) -> Result<Tensor<'a>, Error> {
        let tensor = self.checkpoint.read(name)?;
        match self.loader.first_non_finite(&tensor.view()) {
            None => Ok(tensor),
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
