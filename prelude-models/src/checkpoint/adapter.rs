//! LoRA adapters as PEFT saves them, in the place that they have in a base: matrices that become sums
//! ([`super::merged`]), and modules that are replaced whole.

use std::{collections::BTreeMap, path::Path};

use serde_json::Value;

use super::{
    CONFIG_FILE, Checkpoint, container,
    open::required,
    stored::{Entry, Merged, Stored},
    weights::{Bytes, WeightFile, Weights},
};
use crate::{
    Error, ModelConfig, ModelKind,
    config::architecture,
    error::TensorDefects,
    families, fields,
    json::{self, Fields, short},
    modules::MODULES,
};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
const PICKLED: &str = "adapter_model.bin";
const CONVERT: &str = "Prelude reads safetensors. Convert adapter_model.bin once, in the folder: \
     python -c \"import torch, safetensors.torch as s; s.save_file({k: v.clone().contiguous() for k, v in \
     torch.load('adapter_model.bin', map_location='cpu', weights_only=True).items()}, \
     'adapter_model.safetensors', {'format': 'pt'})\"";

/// The beginning of the names of an adapter's tensors, before their names in the model.
const PREFIX: &str = "base_model.model.";

/// Rank and factor where the file does not say.
const DEFAULT: usize = 8;
/// Bound of the rank, far above any published one.
const RANK_MAX: usize = 1 << 16;

/// An adapter whose files are checked by themselves.
#[derive(Debug)]
pub(super) struct Adapter {
    rank: usize,
    scale: f32,
    /// The end of the name of the architecture that the adapter is for, if it is a classifier.
    class: Option<&'static str>,
    /// The ends of the names of modules that are replaced.
    replaces: Vec<String>,
    /// The `config.json` beside the adapter, if there is one.
    config: Option<Vec<u8>>,
    /// True if the folder has the `modules.json` of sentence-transformers.
    pub(super) has_modules: bool,
    warnings: Vec<String>,
    file: Option<WeightFile>,
    /// The two matrices of a product, by the name of the module that it is added to, and by whether they
    /// are those of a table, which are transposed.
    pairs: BTreeMap<(String, bool), [Option<Entry>; 2]>,
    /// Tensors of the model that take the place of the base's, by their names in it.
    saved: BTreeMap<String, Entry>,
    /// Names of tensors of no known form.
    unknown: Vec<String>,
}

impl Adapter {
    /// Reads an adapter's configuration and the header of its weights.
    pub(super) fn open(folder: &Path) -> Result<Self, Error> {
        let (map, warnings) = fields::read(CONFIG, &required(&folder.join(CONFIG))?)?;
        let fields = Fields::new(CONFIG, &map);
        fields.required("peft_type", fields.text("peft_type")?)?;
        let rank = fields.count("r", RANK_MAX)?.unwrap_or(DEFAULT);
        let alpha = fields.number("lora_alpha", "a number", |_| true)?;
        let divisor = match fields.boolean("use_rslora")? {
            Some(true) => (rank as f64).sqrt(),
            _ => rank as f64,
        };
        let mut adapter = Self {
            rank,
            scale: (alpha.unwrap_or(DEFAULT as f64) / divisor) as f32,
            class: class(&fields)?,
            replaces: names(&fields, "modules_to_save")?,
            config: json::read(&folder.join(CONFIG_FILE))?,
            has_modules: folder.join(MODULES).exists(),
            warnings,
            file: None,
            pairs: BTreeMap::new(),
            saved: BTreeMap::new(),
            unknown: Vec::new(),
        };
        let path = folder.join(WEIGHTS);
        if !path.exists() {
            return Err(Error::NoWeights {
                path: folder.to_owned(),
                hint: match folder.join(PICKLED).exists() {
                    true => CONVERT,
                    false => {
                        "the weights of an adapter are read from its adapter_model.safetensors"
                    }
                },
            });
        }
        let bytes = Bytes::mapped(&path)?;
        for entry in container::parse(WEIGHTS, &bytes)? {
            adapter.add(entry)?;
        }
        if adapter.pairs.is_empty() && adapter.saved.is_empty() && adapter.unknown.is_empty() {
            return Err(Error::Container {
                file: WEIGHTS.to_owned(),
                what: "it has no tensors, so it changes nothing".to_owned(),
            });
        }
        let name = WEIGHTS.to_owned();
        adapter.file = Some(WeightFile { name, bytes });
        Ok(adapter)
    }

    /// Adds a tensor of the file, by what its name says. Some releases of PEFT keep the adapter's own
    /// name in it, `default`.
    fn add(&mut self, entry: Entry) -> Result<(), Error> {
        if !matches!(entry.dtype, Stored::Float(_)) {
            return Err(refused_type(WEIGHTS, &entry.name, &entry.dtype));
        }
        let Some(name) = entry.name.strip_prefix(PREFIX) else {
            self.unknown.push(entry.name);
            return Ok(());
        };
        let Some((module, part)) = name.rsplit_once(".lora_") else {
            let name = name.replacen(".modules_to_save.default.", ".", 1);
            let name = name.replacen(".modules_to_save.", ".", 1);
            let name = name.replacen(".base_layer.", ".", 1);
            if let Some(other) = self.saved.insert(name, entry) {
                self.unknown.push(other.name);
            }
            return Ok(());
        };
        let (is_table, at) = match part {
            "A.weight" | "A.default.weight" => (false, 0),
            "B.weight" | "B.default.weight" => (false, 1),
            "embedding_A" | "embedding_A.default" => (true, 0),
            "embedding_B" | "embedding_B.default" => (true, 1),
            _ => {
                self.unknown.push(entry.name);
                return Ok(());
            }
        };
        let pair = self.pairs.entry((module.to_owned(), is_table)).or_default();
        if let Some(other) = pair[at].replace(entry) {
            self.unknown.push(other.name);
        }
        Ok(())
    }

    /// Returns true if the adapter makes its base a classifier, so that the steps by which the base makes
    /// vectors are not the model's.
    pub(super) const fn is_classifier(&self) -> bool {
        self.class.is_some()
    }

    /// Returns the `config.json` of the base for the class of models that the adapter is for: another
    /// architecture, and as many labels as the saved head has rows.
    pub(super) fn configured(&self, base: Vec<u8>) -> Result<Vec<u8>, Error> {
        let Some(class) = self.class else {
            return Ok(base);
        };
        let mut map = json::object(CONFIG_FILE, &base)?;
        let (own, _) = architecture(&Fields::new(CONFIG_FILE, &map))?;
        let family = families::of(&own)?;
        let mut named = family.architectures.iter();
        let Some(architecture) = named.find(|name| name.ends_with(class)) else {
            return Err(Error::Unsupported {
                file: CONFIG.to_owned(),
                what: format!("an adapter for `…{class}` of a base of the architecture {own}"),
            });
        };
        map.insert("architectures".to_owned(), vec![*architecture].into());
        let head = match class {
            OF_TEXTS => &family.text_classes,
            _ => &family.token_classes,
        };
        let beside = match &self.config {
            Some(bytes) => json::object(CONFIG_FILE, bytes)?,
            None => serde_json::Map::new(),
        };
        if let Some(problem) = beside.get("problem_type") {
            map.insert("problem_type".to_owned(), problem.clone());
        }
        if let Some(score) = self.saved.get(&format!("{}.weight", head.score)) {
            let rows = score.shape.first().copied().unwrap_or(0);
            let fits = |labels: &&Value| labels.as_object().is_some_and(|of| of.len() == rows);
            let labels = [beside.get("id2label"), map.get("id2label")];
            let labels = labels.into_iter().flatten().find(fits).cloned();
            map.insert("num_labels".to_owned(), rows.into());
            map.insert("id2label".to_owned(), labels.unwrap_or_default());
        }
        Ok(Value::Object(map).to_string().into_bytes())
    }

    /// Puts the saved tensors in the place of the base's.
    pub(super) fn replace(&mut self, config: &mut ModelConfig, weights: &mut Weights) {
        let family = config.family;
        let tensors = &mut weights.tensors;
        if self.class.is_some() && family.prefix(|name| tensors.contains_key(name)).is_empty() {
            // The head of a classifier lies beside a body, whose tensors' names begin with its own then.
            let all = std::mem::take(tensors).into_iter();
            *tensors = all
                .map(|(name, entry)| (format!("{}{name}", family.prefix), entry))
                .collect();
        }
        let words = format!("{}{}.weight", family.prefix, family.words);
        let is_untied = ["lm_head.weight", &words].map(|name| self.saved.contains_key(name));
        config.tie_word_embeddings &= is_untied != [true, true];
        let file = weights.files.len();
        weights.files.extend(self.file.take());
        for (name, entry) in &self.saved {
            let name = resolved(name, config, |name| tensors.contains_key(name));
            tensors.insert(name, (file, entry.clone()));
        }
    }

    /// Makes sums of the base's matrices and the adapter's products. Nothing is computed.
    pub(super) fn merge(mut self, checkpoint: &mut Checkpoint) -> Result<(), Error> {
        let mut defects = TensorDefects {
            unexpected: std::mem::take(&mut self.unknown),
            ..TensorDefects::default()
        };
        let config = &checkpoint.config;
        let replaced = self.replaced(checkpoint, &mut defects);
        let sums = self.sums(checkpoint, &mut defects);
        if config.tie_word_embeddings && checkpoint.kind == ModelKind::CausalLm {
            let words = format!("{}.weight", config.family.words);
            let words = resolved(&words, config, |name| checkpoint.shapes.contains_key(name));
            if replaced.contains(&words) || sums.iter().any(|(name, ..)| *name == words) {
                return Err(Error::Unsupported {
                    file: WEIGHTS.to_owned(),
                    what: format!("a change of {words:?}, which is the output head too,"),
                });
            }
        }
        if !defects.is_empty() {
            return Err(Error::Tensors {
                architecture: format!("the adapter's {}", config.architecture),
                defects,
            });
        }
        let file = checkpoint.files.len() - 1;
        for (name, factors, is_transposed) in sums {
            let Some((at, entry)) = checkpoint.tensors.get_mut(&name) else {
                // The base lacks a matrix, which is told when it is loaded.
                continue;
            };
            // Neither a number, nor a sum already, by another name of the module.
            if let Stored::Other(_) | Stored::Merged(_) = entry.dtype {
                let file = &checkpoint.files[*at].name;
                return Err(refused_type(file, &name, &entry.dtype));
            }
            let base = std::mem::replace(&mut entry.dtype, Stored::Other(""));
            entry.dtype = Stored::Merged(Box::new(Merged {
                base,
                file,
                factors,
                is_transposed,
                scale: self.scale.to_le_bytes(),
            }));
        }
        checkpoint.warnings.append(&mut self.warnings);
        Ok(())
    }

    /// Returns the names of the tensors that the adapter replaces, and notes which of them do not fit or
    /// are not there.
    fn replaced(&self, base: &Checkpoint, defects: &mut TensorDefects) -> Vec<String> {
        let mut replaced = Vec::new();
        for (name, entry) in &self.saved {
            let contains = |name: &str| base.shapes.contains_key(name);
            let name = resolved(name, &base.config, contains);
            match base.shapes.get(&name) {
                None if is_unread(&name, base) => {}
                None => defects.unexpected.push(entry.name.clone()),
                Some(shape) if *shape != entry.shape => misshaped(defects, entry, shape),
                Some(_) => replaced.push(name),
            }
        }
        for name in base.shapes.keys().filter(|name| !replaced.contains(name)) {
            let mut modules = name.match_indices('.').map(|(end, _)| &name[..end]);
            let is_listed = |module: &str| self.replaces.iter().any(|end| module.ends_with(end));
            if modules.any(is_listed) {
                defects.missing.push(format!("{PREFIX}{name}"));
            }
        }
        replaced
    }

    /// Returns the matrices that become sums: name, factors, and whether these are transposed. Notes
    /// tensors of the adapter that do not fit or are not there.
    fn sums(
        &mut self,
        base: &Checkpoint,
        defects: &mut TensorDefects,
    ) -> Vec<(String, [Entry; 2], bool)> {
        let mut sums = Vec::new();
        for ((module, is_table), pair) in std::mem::take(&mut self.pairs) {
            let contains = |name: &str| base.shapes.contains_key(name);
            let name = resolved(&format!("{module}.weight"), &base.config, contains);
            if !contains(&name) && is_unread(&name, base) {
                continue;
            }
            let [Some(a), Some(b)] = pair else {
                let kind = if is_table { "embedding_" } else { "" };
                let part = if pair[0].is_none() { 'A' } else { 'B' };
                let lacking = format!("{PREFIX}{module}.lora_{kind}{part}");
                defects.missing.push(lacking);
                continue;
            };
            let Some(&[rows, columns]) = base.shapes.get(&name).map(Vec::as_slice) else {
                defects.unexpected.extend([a.name, b.name]);
                continue;
            };
            let (inputs, outputs) = if is_table {
                (rows, columns)
            } else {
                (columns, rows)
            };
            for (of, expected) in [(&a, [self.rank, inputs]), (&b, [outputs, self.rank])] {
                if of.shape != expected {
                    misshaped(defects, of, &expected);
                }
            }
            sums.push((name, if is_table { [a, b] } else { [b, a] }, is_table));
        }
        sums
    }
}

/// Returns true for a tensor of a part that the base's class has and no model of its kind reads, such as
/// the pooler of an embedder: an adapter of all products changes that too.
fn is_unread(name: &str, base: &Checkpoint) -> bool {
    let embeds = matches!(base.kind, ModelKind::Embedding { .. });
    base.kind != ModelKind::CausalLm && base.config.family.is_unread(name, embeds)
}

fn misshaped(defects: &mut TensorDefects, entry: &Entry, expected: &[usize]) {
    let (name, found) = (entry.name.clone(), entry.shape.clone());
    defects.misshaped.push((name, expected.to_vec(), found));
}

const OF_TEXTS: &str = "ForSequenceClassification";
const OF_TOKENS: &str = "ForTokenClassification";

/// Returns the end of the name of the architecture that an adapter is for, if it is a classifier.
fn class(fields: &Fields<'_>) -> Result<Option<&'static str>, Error> {
    let mapping = fields.object("auto_mapping")?;
    let mapped = mapping.and_then(|of| of.get("base_model_class")?.as_str());
    match fields.text("task_type")? {
        Some("SEQ_CLS") => Ok(Some(OF_TEXTS)),
        Some("TOKEN_CLS") => Ok(Some(OF_TOKENS)),
        Some("CAUSAL_LM" | "FEATURE_EXTRACTION") => Ok(None),
        None => {
            let mut classes = [OF_TEXTS, OF_TOKENS].into_iter();
            Ok(mapped.and_then(|name| classes.find(|end| name.ends_with(end))))
        }
        Some(other) => {
            let other = short(&other.into());
            Err(fields.unsupported(format!("`task_type` of {other}")))
        }
    }
}

/// Returns a list of names, which may be absent.
fn names(fields: &Fields<'_>, field: &str) -> Result<Vec<String>, Error> {
    let list = fields.array(field)?.unwrap_or_default().iter();
    let names = list.map(|name| name.as_str().map(str::to_owned));
    let names: Option<Vec<String>> = names.collect();
    names.ok_or_else(|| fields.wrong(field, "must be a list of names"))
}

/// Returns the name by which the base has a tensor: an adapter of a body alone has names without what
/// they begin with beside a head, and one of a model with a head has those with it.
fn resolved(name: &str, config: &ModelConfig, contains: impl Fn(&str) -> bool) -> String {
    let family = config.family;
    let own = name.strip_prefix(family.prefix).unwrap_or(name);
    let within = format!("{}{own}", family.prefix(&contains));
    match !contains(name) && contains(&within) {
        true => within,
        false => name.to_owned(),
    }
}

fn refused_type(file: &str, tensor: &str, dtype: &Stored) -> Error {
    Error::DType {
        file: file.to_owned(),
        tensor: tensor.to_owned(),
        dtype: dtype.name().to_owned(),
    }
}

#[cfg(test)]
mod tests;
