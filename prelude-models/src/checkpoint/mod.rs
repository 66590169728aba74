//! Checkpoints in the Hugging Face layout: `config.json` and one or several safetensors files.

mod adapter;
mod container;
mod gguf;
mod index;
mod map;
mod merged;
mod open;
mod quantised;
mod stored;
mod weights;

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

pub use self::weights::FileIdentity;
use self::{
    stored::{Entry, Stored},
    weights::{Bytes, WeightFile},
};
use crate::{
    DType, Decision, Error, Fp8Matrix, GenerationConfig, LogitScore, ModelConfig, ModelKind,
    Tensor, TensorView, error::TensorDefects, tensors::Shapes,
};

const CONFIG_FILE: &str = "config.json";

/// A model on disk or in memory: its configuration and its tensors, checked but not converted.
///
/// Opening reads headers only; weights are paged in as an executor converts them, and given back
/// ([`Checkpoint::release`]) tensor by tensor.
///
/// ```no_run
/// let checkpoint = prelude_models::Checkpoint::open("Qwen3-0.6B".as_ref())?;
/// let norm = checkpoint.tensor("model.norm.weight")?;
/// assert_eq!(norm.shape, [checkpoint.config().hidden_size]);
/// # Ok::<(), prelude_models::Error>(())
/// ```
#[derive(Debug)]
pub struct Checkpoint {
    config: ModelConfig,
    generation: GenerationConfig,
    kind: ModelKind,
    logit_score: Option<LogitScore>,
    decision: Option<Arc<Decision>>,
    warnings: Vec<String>,
    chat_template: Option<String>,
    files: Vec<WeightFile>,
    /// The tensors, without those that the family does not read.
    tensors: Tensors,
    /// Names and shapes of the tensors that the model reads.
    shapes: Shapes,
}

/// Tensors by name: the number of the file that holds one, and its entry there.
type Tensors = BTreeMap<String, (usize, Entry)>;

/// The files of a checkpoint that is embedded in a program or otherwise in memory.
#[derive(Clone, Debug, Default)]
pub struct CheckpointFiles<'a> {
    /// `config.json`.
    pub config: &'a [u8],
    /// `generation_config.json`, if there is one.
    pub generation_config: Option<&'a [u8]>,
    /// `modules.json`, which marks an embedding model or a cross-encoder.
    pub modules: Option<&'a [u8]>,
    /// `1_Pooling/config.json`.
    pub pooling: Option<&'a [u8]>,
    /// `config.json` of the module `Normalize`, if there is one.
    pub normalize: Option<&'a [u8]>,
    /// The files of the modules `Dense`, in the order of `modules.json`.
    pub dense: Vec<DenseFiles<'a>>,
    /// `1_LogitScore/config.json`.
    pub logit_score: Option<&'a [u8]>,
    /// `model.safetensors`.
    pub weights: Cow<'static, [u8]>,
}

/// The files of a module `Dense` in memory.
#[derive(Clone, Debug)]
pub struct DenseFiles<'a> {
    /// Name of the module's folder.
    pub folder: &'a str,
    /// `config.json`.
    pub config: &'a [u8],
    /// `model.safetensors`.
    pub weights: Cow<'static, [u8]>,
}

impl Checkpoint {
    /// Returns the checked content of `config.json`.
    #[must_use]
    pub const fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the end tokens and sampling defaults.
    #[must_use]
    pub const fn generation(&self) -> &GenerationConfig {
        &self.generation
    }

    /// Returns the purpose of the model.
    #[must_use]
    pub const fn kind(&self) -> &ModelKind {
        &self.kind
    }

    /// Returns the tokens whose logits are the score of a text, if the files say that the language
    /// model is a cross-encoder.
    #[must_use]
    pub const fn logit_score(&self) -> Option<LogitScore> {
        self.logit_score
    }

    /// Returns what makes the model a decision model, if it is one.
    #[must_use]
    pub const fn decision(&self) -> Option<&Arc<Decision>> {
        self.decision.as_ref()
    }

    /// Notes for the operator: fields of the files that are passed over.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the source of the chat template in a GGUF file. Other checkpoints have theirs beside the
    /// weights.
    #[must_use]
    pub fn chat_template(&self) -> Option<&str> {
        self.chat_template.as_deref()
    }

    /// Returns the names of all tensors, sorted. Those that the architecture is known not to read,
    /// such as buffers of integers that old releases of transformers saved, are not among them.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns the names and shapes of the tensors that the architecture reads, sorted, whether or not
    /// the files have them.
    pub fn shapes(&self) -> impl Iterator<Item = (&str, &[usize])> {
        { self.shapes.iter() }.map(|(name, shape)| (name.as_str(), shape.as_slice()))
    }

    /// Returns true if a tensor of this name exists.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Returns the bytes of the tensors that are read, in the dtypes in which the checkpoint stores them.
    #[must_use]
    pub fn weight_bytes(&self) -> usize {
        self.tensors.values().map(|(_, e)| e.bytes.len()).sum()
    }

    /// Returns the tensor `name`, borrowed: one that is not stored in a form that is widened.
    ///
    /// # Errors
    /// [`Error::NoTensor`]; [`Error::DType`] if it is not bf16, f16 or f32.
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>, Error> {
        let (file, entry) = self.entry(name)?;
        match &entry.dtype {
            Stored::Float(dtype) if entry.paired_rows.is_none() => Ok(TensorView {
                dtype: *dtype,
                shape: entry.shape.clone(),
                bytes: &file.bytes[entry.bytes.clone()],
            }),
            other => Err(Error::DType {
                file: file.name.clone(),
                tensor: name.to_owned(),
                dtype: other.name().to_owned(),
            }),
        }
    }

    /// Returns the tensor `name`, widened if it is stored in such a form, and with an adapter's product
    /// added if there is one. Then it is computed anew at each call.
    ///
    /// # Errors
    /// The errors of [`Checkpoint::tensor`].
    pub fn read(&self, name: &str) -> Result<Tensor<'_>, Error> {
        let (_, entry) = self.entry(name)?;
        let Stored::Merged(merged) = &entry.dtype else {
            return self.read_as(name, &entry.dtype);
        };
        let base = self.read_as(name, &merged.base)?;
        let mut values = Vec::with_capacity(base.view().len());
        base.view().read_f32(0..base.view().len(), &mut values);
        let columns = base.shape.last().copied().unwrap_or(0);
        merged.add(&self.files, columns, &mut values);
        let mut bytes = vec![0; values.len() * DType::F32.size()];
        quantised::write(values.into_iter(), DType::F32, &mut bytes);
        Ok(Tensor {
            dtype: DType::F32,
            shape: base.shape,
            bytes: Cow::Owned(bytes),
        })
    }

    /// Returns a tensor whose bytes are of the type `stored`.
    fn read_as(&self, name: &str, stored: &Stored) -> Result<Tensor<'_>, Error> {
        let (file, entry) = self.entry(name)?;
        let mut bytes = Cow::Borrowed(&file.bytes[entry.bytes.clone()]);
        if let Some(rows) = entry.paired_rows {
            bytes = Cow::Owned(quantised::unpaired(&bytes, &entry.shape, rows));
        }
        let dtype = match stored {
            Stored::Float(dtype) => *dtype,
            Stored::Quantised(quantised) => {
                bytes = Cow::Owned(quantised.widen(&self.files, &entry.shape, &bytes));
                quantised.dtype
            }
            Stored::Merged(_) | Stored::Other(_) => return self.tensor(name).map(Tensor::from),
        };
        Ok(Tensor {
            dtype,
            shape: entry.shape.clone(),
            bytes,
        })
    }

    /// Returns the matrix `name` as it is stored, if that is in fp8.
    #[must_use]
    pub fn fp8(&self, name: &str) -> Option<Fp8Matrix<'_>> {
        let (file, entry) = self.tensors.get(name)?;
        let (Stored::Quantised(quantised), &[rows, columns]) = (&entry.dtype, &entry.shape[..])
        else {
            return None;
        };
        let (scales, block) = quantised.scales(&self.files)?;
        Some(Fp8Matrix {
            shape: [rows, columns],
            block,
            data: &self.files[*file].bytes[entry.bytes.clone()],
            scales,
        })
    }

    /// Returns the element type and the shape that [`Checkpoint::read`] gives of a tensor; `None` if
    /// it cannot be read.
    #[must_use]
    pub fn form(&self, name: &str) -> Option<(DType, &[usize])> {
        let (_, entry) = self.tensors.get(name)?;
        let dtype = match &entry.dtype {
            Stored::Float(dtype) => *dtype,
            Stored::Quantised(quantised) => quantised.dtype,
            Stored::Merged(_) => DType::F32,
            Stored::Other(_) => return None,
        };
        Some((dtype, &entry.shape))
    }

    /// Returns all that a tensor's numbers follow from: its bytes in its file, and behind them the
    /// factor and the two matrices that an adapter adds to it, if there is one. Empty for a tensor that
    /// is not there.
    #[must_use]
    pub fn stored_parts(&self, name: &str) -> Vec<&[u8]> {
        let Some((file, entry)) = self.tensors.get(name) else {
            return Vec::new();
        };
        let mut parts = vec![&self.files[*file].bytes[entry.bytes.clone()]];
        if let Stored::Merged(merged) = &entry.dtype {
            parts.push(&merged.scale);
            parts.extend(merged.factor_bytes(&self.files));
        }
        parts
    }

    fn entry(&self, name: &str) -> Result<(&WeightFile, &Entry), Error> {
        let found = self.tensors.get(name);
        let (file, entry) = found.ok_or_else(|| Error::NoTensor(name.to_owned()))?;
        Ok((&self.files[*file], entry))
    }

    /// Returns the identities of the files that hold the tensors; `None` if one was given in memory.
    #[must_use]
    pub fn weight_files(&self) -> Option<Vec<&FileIdentity>> {
        let identities = self.files.iter().map(|file| match &file.bytes {
            Bytes::Mapped { identity, .. } => Some(identity),
            Bytes::Memory(_) => None,
        });
        identities.collect()
    }

    /// Gives the memory back into which the tensor's bytes were read from its file. Reading the
    /// tensor again is right, and reads the file again. Does nothing for a tensor that is not there
    /// or whose file was given in memory.
    pub fn release(&self, name: &str) {
        if let Some((file, entry)) = self.tensors.get(name)
            && let Bytes::Mapped { map, .. } = &self.files[*file].bytes
        {
            map::release(map, entry.bytes.clone());
        }
    }

    /// Compares names and shapes with what the architecture reads.
    pub(crate) fn check_tensors(&self) -> Result<(), Error> {
        let mut defects = TensorDefects::default();
        for (name, shape) in &self.shapes {
            match self.tensors.get(name) {
                None => defects.missing.push(name.clone()),
                Some((_, entry)) if entry.shape != *shape => {
                    defects
                        .misshaped
                        .push((name.clone(), shape.clone(), entry.shape.clone()));
                }
                Some(_) => (),
            }
        }
        defects.unexpected = self
            .names()
            .filter(|name| !self.shapes.contains_key(*name))
            .map(str::to_owned)
            .collect();
        if defects.is_empty() {
            return Ok(());
        }
        Err(Error::Tensors {
            architecture: self.config.architecture.clone(),
            defects,
        })
    }
}

#[cfg(test)]
mod tests;
