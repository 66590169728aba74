//! The way of weights from a checkpoint to a loader.

use crate::{
    Checkpoint, DType, Decoder, Encoder, EncoderConfig, Error, RopeConfig, Tensor, TensorView,
    WeightLoader,
    source::{Form, Place, TensorSource},
    tensors::norm_parts,
};

impl<W> Decoder<W> {
    /// Converts the checkpoint's weights, with rotations for positions `0..max_positions`.
    ///
    /// # Errors
    /// [`Error::Tensors`] if names or shapes are not the architecture's, [`Error::NotFinite`] for damaged
    /// weights, [`Error::Loader`] for what the device says.
    pub fn load<L: WeightLoader<Weight = W>>(
        checkpoint: &Checkpoint,
        max_positions: usize,
        loader: &mut L,
    ) -> Result<Self, Error> {
        let mut source = WeightSource::new(checkpoint, max_positions, loader)?;
        Self::define(checkpoint.config(), checkpoint.kind(), &mut source)
    }
}

impl<W> Encoder<W> {
    /// Converts the checkpoint's weights, with rotations for positions `0..max_positions`.
    ///
    /// # Errors
    /// [`Error::Tensors`] if names or shapes are not the architecture's, [`Error::NotFinite`] for damaged
    /// weights, [`Error::Loader`] for what the device says.
    pub fn load<L: WeightLoader<Weight = W>>(
        checkpoint: &Checkpoint,
        encoder: &EncoderConfig,
        max_positions: usize,
        loader: &mut L,
    ) -> Result<Self, Error> {
        let config = checkpoint.config();
        let contains = |name: &str| checkpoint.contains(name);
        let parts = norm_parts(contains, config.prefix(contains));
        let mut source = WeightSource::new(checkpoint, max_positions, loader)?;
        Self::define((config, encoder), checkpoint.kind(), parts, &mut source)
    }
}

/// A checkpoint, and the loader that its weights go to.
pub(crate) struct WeightSource<'a, L> {
    checkpoint: &'a Checkpoint,
    prefix: &'static str,
    max_positions: usize,
    loader: &'a mut L,
}

impl<'a, L: WeightLoader> WeightSource<'a, L> {
    /// Returns the source of a checkpoint's weights, with rotations for positions `0..max_positions`.
    ///
    /// # Errors
    /// [`Error::Tensors`] if the checkpoint's tensors are not the architecture's.
    pub(crate) fn new(
        checkpoint: &'a Checkpoint,
        max_positions: usize,
        loader: &'a mut L,
    ) -> Result<Self, Error> {
        checkpoint.check_tensors()?;
        Ok(Self {
            checkpoint,
            prefix: { checkpoint.config() }.prefix(|name| checkpoint.contains(name)),
            max_positions,
            loader,
        })
    }

    /// Returns the matrix of `parts` as they are stored, if all are in fp8 and the loader takes them so;
    /// `None` for heads and routers, too.
    fn stored_fp8(
        &mut self,
        name: &str,
        parts: &[(String, usize)],
        biased: bool,
        place: Place,
    ) -> Result<Option<L::Weight>, Error> {
        if let Place::Head = place {
            return Ok(None);
        }
        let names = parts.iter().map(|(part, _)| format!("{part}.weight"));
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
        let biases = self.biases(parts, biased)?;
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

    fn biases(&self, parts: &[(String, usize)], biased: bool) -> Result<Vec<Tensor<'a>>, Error> {
        let biases = parts.iter().filter(|_| biased);
        let biases = biases.map(|(part, _)| self.finite(&format!("{part}.bias")));
        biases.collect()
    }

    /// Returns a tensor without infinities and NaNs.
    fn finite(&self, name: &str) -> Result<Tensor<'a>, Error> {
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

impl<L: WeightLoader> TensorSource for WeightSource<'_, L> {
    type Weight = L::Weight;

    fn of_body(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }

    fn tensor(&mut self, name: String, _: &[usize], form: Form<'_>) -> Result<L::Weight, Error> {
        let tensor = self.finite(&name)?;
        let view = tensor.view();
        let made = |make: &dyn Fn(&[f32]) -> Vec<f32>| {
            let mut values = Vec::with_capacity(view.len());
            view.read_f32(0..view.len(), &mut values);
            let made = make(&values);
            made.into_iter()
                .flat_map(f32::to_le_bytes)
                .collect::<Vec<u8>>()
        };
        let loaded = match form {
            Form::Norm {
                factor: 1.0,
                offset,
            } => self.loader.norm(&name, &view, offset),
            Form::Norm { factor, offset } => {
                let scaled = made(&|values| values.iter().map(|x| x * factor).collect());
                self.loader.norm(&name, &floats(&scaled), offset)
            }
            Form::Vector => self.loader.vector(&name, &view),
            Form::Made(make) => self.loader.vector(&name, &floats(&made(make))),
            Form::Table { rows, is_head } => {
                let row_bytes = view.shape[1] * view.dtype.size();
                let rows = TensorView {
                    dtype: view.dtype,
                    shape: vec![rows.len(), view.shape[1]],
                    bytes: &view.bytes[rows.start * row_bytes..rows.end * row_bytes],
                };
                self.loader.embedding(&name, &rows, is_head)
            }
        };
        self.checkpoint.release(&name);
        loaded.map_err(|e| loader_error(&name, e))
    }

    fn stack(
        &mut self,
        name: String,
        parts: &[(String, usize)],
        (_, biased): (usize, bool),
        place: Place,
    ) -> Result<L::Weight, Error> {
        let name = format!("{name}.weight");
        if let Some(loaded) = self.stored_fp8(&name, parts, biased, place)? {
            return Ok(loaded);
        }
        let names = parts.iter().map(|(part, _)| format!("{part}.weight"));
        let names: Vec<String> = names.collect();
        let weights = names.iter().map(|name| self.finite(name));
        let weights = weights.collect::<Result<Vec<_>, _>>()?;
        let biases = self.biases(parts, biased)?;
        let weights: Vec<_> = weights.iter().map(Tensor::view).collect();
        let biases: Vec<_> = biases.iter().map(Tensor::view).collect();
        let loaded = match place {
            Place::Layer => self.loader.linear(&name, &weights, &biases),
            Place::Head => self.loader.head(&name, &weights, &biases),
            Place::Stack(place) => self.loader.linear_of_stack(&name, place, &weights),
        };
        names.iter().for_each(|name| self.checkpoint.release(name));
        loaded.map_err(|e| loader_error(&name, e))
    }

    fn zeros(&mut self, name: String, width: usize) -> Result<L::Weight, Error> {
        let bytes = vec![0; width * size_of::<f32>()];
        let loaded = self.loader.vector(&name, &floats(&bytes));
        loaded.map_err(|e| loader_error(&name, e))
    }

    fn rope(&mut self, name: &str, rope: &RopeConfig, head_dim: usize) -> Result<L::Weight, Error> {
        let (inv_freq, scaling) = (rope.inv_freq(head_dim), rope.attention_scaling());
        let table = self.loader.rope(&inv_freq, scaling, self.max_positions);
        table.map_err(|e| loader_error(name, e))
    }
}

/// Returns a vector of f32.
fn floats(bytes: &[u8]) -> TensorView<'_> {
    TensorView {
        dtype: DType::F32,
        shape: vec![bytes.len() / size_of::<f32>()],
        bytes,
    }
}

/// Returns the error that a loader could not take a weight.
fn loader_error(weight: &str, source: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::Loader {
        weight: weight.to_owned(),
        source: Box::new(source),
    }
}
