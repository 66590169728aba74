//! The tensors of a head, by name, in f32: each is taken once, and none may be left.

use std::{collections::BTreeMap, path::Path};

use super::wrong;
use crate::{Error, TensorView, error::first_few, file};

/// The most bytes of a file with a head: far above what the largest model has.
const HEAD_BYTES_MAX: u64 = 256 << 20;

/// A tensor by name, with its shape and its numbers.
pub(crate) type NamedTensor = (String, Vec<usize>, Vec<f32>);

/// Reads the tensors of a safetensors file, whose name in messages comes first.
pub(crate) type Parse = fn(&str, &[u8]) -> Result<Vec<NamedTensor>, Error>;

/// Tensors of a file that have not been taken.
#[derive(Debug)]
pub(crate) struct HeadTensors {
    file: String,
    /// Shape and numbers by name.
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl HeadTensors {
    /// Returns tensors by name, of this file.
    pub(crate) fn new(file: &str, tensors: impl IntoIterator<Item = NamedTensor>) -> Self {
        let tensors = tensors.into_iter();
        Self {
            file: file.to_owned(),
            tensors: { tensors }
                .map(|(name, shape, numbers)| (name, (shape, numbers)))
                .collect(),
        }
    }

    /// Reads a safetensors file `name` of a folder.
    pub(super) fn open(folder: &Path, name: &str, parse: Parse) -> Result<Self, Error> {
        let bytes = read_head(folder, name)?;
        Ok(Self::new(name, parse(name, &bytes)?))
    }

    /// Returns the shape of a tensor that has not been taken.
    pub(super) fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|(shape, _)| shape.as_slice())
    }

    /// Takes the numbers of a tensor.
    pub(super) fn take(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        let Some((found, numbers)) = self.tensors.remove(name) else {
            return Err(wrong(&self.file, format!("lacks the tensor {name:?}")));
        };
        if found != shape {
            let what = format!("has the tensor {name:?} of shape {found:?}, must be {shape:?}");
            return Err(wrong(&self.file, what));
        }
        match numbers.iter().position(|x| !x.is_finite()) {
            None => Ok(numbers),
            Some(index) => {
                let tensor = name.to_owned();
                Err(Error::NotFinite { tensor, index })
            }
        }
    }

    /// Refuses tensors that were not taken.
    pub(super) fn finish(self) -> Result<(), Error> {
        let left: Vec<String> = self.tensors.into_keys().collect();
        match left.is_empty() {
            true => Ok(()),
            false => {
                let what = format!(
                    "has tensors that are no part of the head: {}",
                    first_few(&left)
                );
                Err(wrong(&self.file, what))
            }
        }
    }
}

/// Reads the file of a head, of a bounded length.
pub(super) fn read_head(folder: &Path, name: &str) -> Result<Vec<u8>, Error> {
    let path = folder.join(name);
    file::read(&path, HEAD_BYTES_MAX).map_err(|source| Error::Io { path, source })
}

/// Returns the numbers of a tensor in f32.
pub(crate) fn widened(view: &TensorView<'_>) -> Vec<f32> {
    let mut numbers = Vec::with_capacity(view.len());
    view.read_f32(0..view.len(), &mut numbers);
    numbers
}
