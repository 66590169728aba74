//! The files of weights of a checkpoint, and the tensors in them.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet, btree_map},
    io,
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::{Stored, Tensors, adapter::Adapter, container, index, map};
use crate::{
    Error, TensorView,
    decision::{DecisionFiles, HeadTensors, widened},
    error::first_few,
    json,
};

pub(super) const SINGLE_FILE: &str = "model.safetensors";
pub(super) const INDEX_FILE: &str = "model.safetensors.index.json";

/// Weights as PyTorch pickles them, and the advice where there are no others.
pub(super) const PICKLED: &str = "pytorch_model.bin";
const CONVERT: &str = "Prelude reads safetensors. Convert pytorch_model.bin once, in the folder: \
     python -c \"import torch, safetensors.torch as s; s.save_file({k: v.clone().contiguous() for k, v in \
     torch.load('pytorch_model.bin', map_location='cpu', weights_only=True).items()}, \
     'model.safetensors', {'format': 'pt'})\"";

/// The files of weights, and the tensors in them.
#[derive(Default)]
pub(super) struct Weights {
    pub(super) files: Vec<WeightFile>,
    pub(super) tensors: Tensors,
    /// The adapter that is to be merged into them.
    pub(super) adapter: Option<Adapter>,
}

#[derive(Debug)]
pub(super) struct WeightFile {
    pub(super) name: String,
    pub(super) bytes: Bytes,
}

#[derive(Debug)]
pub(super) enum Bytes {
    Mapped {
        map: memmap2::Mmap,
        identity: FileIdentity,
    },
    Memory(Cow<'static, [u8]>),
}

impl Bytes {
    /// Maps a file, and notes which one it is.
    pub(super) fn mapped(path: &Path) -> Result<Self, Error> {
        let mapped = FileIdentity::of(path).and_then(|of| Ok((of, map::map(path)?)));
        let (identity, map) = mapped.map_err(|source| Error::Io {
            path: path.to_owned(),
            source,
        })?;
        Ok(Self::Mapped { map, identity })
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped { map, .. } => map,
            Self::Memory(bytes) => bytes,
        }
    }
}

/// A file as the system tells it from others and from its own earlier content.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FileIdentity {
    /// The path, links resolved.
    pub path: PathBuf,
    /// The length in bytes.
    pub bytes: u64,
    /// The time of the last change.
    pub modified: SystemTime,
}

impl FileIdentity {
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let path = path.canonicalize()?;
        let metadata = path.metadata()?;
        Ok(Self {
            path,
            bytes: metadata.len(),
            modified: metadata.modified()?,
        })
    }
}

impl Weights {
    /// Maps the weights of a folder and reads their headers.
    pub(super) fn open(folder: &Path) -> Result<Self, Error> {
        let mut weights = Self::default();
        // As in transformers, a single file wins over an index.
        if folder.join(SINGLE_FILE).exists() {
            weights.add_mapped(folder, "", SINGLE_FILE)?;
            return Ok(weights);
        }
        let path = folder.join(INDEX_FILE);
        let Some(bytes) = json::read(&path)? else {
            return Err(Error::NoWeights {
                path: folder.to_owned(),
                hint: match folder.join(PICKLED).exists() {
                    true => CONVERT,
                    false => {
                        "Prelude reads model.safetensors, or the shards that model.safetensors.index.json names; convert other formats to safetensors"
                    }
                },
            });
        };
        let file = path.display().to_string();
        let map = index::parse(&file, &bytes)?;
        let shards: BTreeSet<&String> = map.values().collect();
        for shard in shards {
            weights.add_mapped(folder, "", shard)?;
        }
        weights.check_index(&file, &map)?;
        Ok(weights)
    }

    /// Takes the head's tensors out of a decision model's, and calls the others as definitions do.
    pub(super) fn take_head(&mut self, of: &DecisionFiles) -> Result<HeadTensors, Error> {
        let mut head = Vec::new();
        for (name, (file, entry)) in std::mem::take(&mut self.tensors) {
            if !of.is_of_head(&name) {
                self.tensors.insert(of.renamed(&name), (file, entry));
            } else if let Stored::Float(dtype) = entry.dtype {
                let view = TensorView {
                    dtype,
                    shape: entry.shape.clone(),
                    bytes: &self.files[file].bytes[entry.bytes],
                };
                head.push((name, entry.shape, widened(&view)));
            }
        }
        Ok(HeadTensors::new(SINGLE_FILE, head))
    }

    /// Checks that every tensor lies in the shard that the index names, and that the shards hold no
    /// others: shards of two different savings in one folder would otherwise load as a model that never
    /// existed.
    pub(super) fn check_index(
        &self,
        file: &str,
        map: &BTreeMap<String, String>,
    ) -> Result<(), Error> {
        let wrong = |what| {
            Err(Error::Index {
                file: file.to_owned(),
                what,
            })
        };
        for (tensor, shard) in map {
            let Some((at, _)) = self.tensors.get(tensor) else {
                return wrong(format!("tensor {tensor:?} is in none of the shards"));
            };
            let found = &self.files[*at].name;
            if found != shard {
                return wrong(format!(
                    "tensor {tensor:?} should be in {shard}, but is in {found}"
                ));
            }
        }
        let unknown = self.tensors.keys().filter(|name| !map.contains_key(*name));
        let unknown: Vec<String> = unknown.cloned().collect();
        if !unknown.is_empty() {
            return wrong(format!(
                "the shards hold tensors that the index lacks: {}",
                first_few(&unknown)
            ));
        }
        Ok(())
    }

    /// Adds the weights of the module `Dense` in a folder of the checkpoint's.
    pub(super) fn add_dense(&mut self, folder: &Path, name: &str) -> Result<(), Error> {
        let path = folder.join(name);
        if !path.join(SINGLE_FILE).exists() {
            return Err(Error::NoWeights {
                path,
                hint: "the weights of a module `Dense` are read from its model.safetensors; convert other formats to safetensors",
            });
        }
        self.add_mapped(folder, &format!("{name}/"), SINGLE_FILE)
    }

    /// Maps a file of a folder, and adds the file. `prefix` is put before its name and those of its
    /// tensors.
    pub(super) fn add_mapped(
        &mut self,
        folder: &Path,
        prefix: &str,
        name: &str,
    ) -> Result<(), Error> {
        let name = format!("{prefix}{name}");
        let bytes = Bytes::mapped(&folder.join(&name))?;
        self.add((prefix, name), bytes)
    }

    /// Adds a file of tensors, whose names get a prefix.
    pub(super) fn add(
        &mut self,
        (prefix, name): (&str, String),
        bytes: Bytes,
    ) -> Result<(), Error> {
        for entry in container::parse(&name, &bytes)? {
            match self.tensors.entry(format!("{prefix}{}", entry.name)) {
                btree_map::Entry::Vacant(slot) => {
                    slot.insert((self.files.len(), entry));
                }
                btree_map::Entry::Occupied(slot) => {
                    let other = &self.files[slot.get().0].name;
                    let what = format!("tensor {:?} is also in {other}", entry.name);
                    return Err(Error::Container { file: name, what });
                }
            }
        }
        self.files.push(WeightFile { name, bytes });
        Ok(())
    }
}
