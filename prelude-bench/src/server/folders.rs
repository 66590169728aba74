//! Model folders that measurements make, by the table in `models.toml`.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
    sync::LazyLock,
};

use anyhow::{Context as _, Result};
use prelude_models::Checkpoint;
use prelude_server::demo;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use prelude_measure::random::Random;

/// Number of tokens of the demo models' vocabulary.
pub(crate) const VOCABULARY: u32 = 4_096;

/// The folder of the golden models.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../golden");

/// The documents of a model that a folder takes over, those that are there.
const FILES: [&str; 9] = [
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "modules.json",
    "1_Pooling/config.json",
    "rl_agent_config.json",
    "encoder/config.json",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
];
/// Shapes of tensors by their names, in the order of the file.
type Shapes = BTreeMap<String, Vec<usize>>;

const WEIGHTS: &str = "model.safetensors";

/// A folder to make.
#[derive(Clone, Debug, Deserialize)]
struct Made {
    /// The demo model, or the golden model, that it is like.
    like: String,
    /// True for random weights of the shape that its configuration says.
    #[serde(default)]
    random: bool,
    /// The tensors beside the body: those of a decision model's head.
    #[serde(default)]
    head: Shapes,
    /// The fields that are changed, by document.
    #[serde(flatten)]
    changed: BTreeMap<String, Map<String, Value>>,
}

static MADE: LazyLock<BTreeMap<String, Made>> =
    LazyLock::new(|| toml::from_str(include_str!("models.toml")).expect("a test reads the table"));

/// Makes the folder `name` of the table below `out`, unless it is there, and returns it.
///
/// # Errors
/// If there is no such entry, or a file cannot be written.
pub(crate) fn make(out: &Path, name: &str) -> Result<PathBuf> {
    let made = MADE.get(name);
    let made = made.with_context(|| format!("models.toml has no {name}"))?;
    made.make(&out.join("models").join(name))
}

impl Made {
    fn make(&self, folder: &Path) -> Result<PathBuf> {
        if folder.join(WEIGHTS).exists() {
            return Ok(folder.to_owned());
        }
        // Renamed when it is whole.
        let part = PathBuf::from(format!("{}.part", folder.display()));
        for (file, bytes) in self.documents()? {
            write(&part.join(file), &bytes)?;
        }
        match self.random {
            true => write_random(&part.join(WEIGHTS), &self.shapes(&part)?)?,
            false => write(&part.join(WEIGHTS), &self.weights()?)?,
        }
        fs::rename(&part, folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(folder.to_owned())
    }

    /// Returns the documents with their changes, by file.
    fn documents(&self) -> Result<BTreeMap<&'static str, Vec<u8>>> {
        let mut documents = BTreeMap::new();
        for (file, mut bytes) in FILES
            .iter()
            .filter_map(|&file| Some((file, self.read(file)?)))
        {
            if let Some(fields) = self.changed.get(file) {
                let mut document: Map<String, Value> = serde_json::from_slice(&bytes)?;
                document.extend(fields.clone());
                bytes = json!(document).to_string().into_bytes();
            }
            documents.insert(file, bytes);
        }
        Ok(documents)
    }

    /// Returns the shapes of the tensors that the documents in `part` ask for. The names of the model
    /// that it is like, which are written there first, say which form of names the files of a family
    /// have.
    fn shapes(&self, part: &Path) -> Result<Shapes> {
        let like = match self.like == demo::LM.name {
            true => Checkpoint::from_bytes(demo::LM.config, demo::LM.weights)?,
            false => Checkpoint::open(&self.golden())?,
        };
        let of_body = |body: &Checkpoint| -> Shapes {
            // A checkpoint gives attention's product of a Laya's head the name that others have.
            let named = |(name, shape): (&str, &[usize])| {
                (name.replace(".in_proj.", ".in_proj_"), shape.to_vec())
            };
            body.shapes().map(named).chain(self.head.clone()).collect()
        };
        write_random(&part.join(WEIGHTS), &of_body(&like))?;
        Ok(of_body(&Checkpoint::open(part)?))
    }

    fn weights(&self) -> Result<Vec<u8>> {
        let weights = self.read(WEIGHTS);
        weights.with_context(|| format!("{} has no {WEIGHTS}", self.like))
    }

    /// Returns the folder of the golden model that it is like.
    fn golden(&self) -> PathBuf {
        Path::new(GOLDEN).join(&self.like).join("model")
    }

    /// Returns a file of the model that it is like, if there is one.
    fn read(&self, file: &str) -> Option<Vec<u8>> {
        if self.like != demo::LM.name {
            return fs::read(self.golden().join(file)).ok();
        }
        let bytes = match file {
            "config.json" => demo::LM.config,
            "tokenizer.json" => demo::LM.tokenizer,
            "tokenizer_config.json" => demo::LM.tokenizer_config,
            WEIGHTS => demo::LM.weights,
            _ => return None,
        };
        Some(bytes.to_vec())
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let made = path.parent().map_or(Ok(()), fs::create_dir_all);
    let written = made.and_then(|()| fs::write(path, bytes));
    written.with_context(|| format!("cannot write {}", path.display()))
}

/// Writes a safetensors file of bfloat16: norms are 1, biases are 0, and weights are random numbers
/// between -0.03 and 0.03.
fn write_random(path: &Path, tensors: &Shapes) -> Result<()> {
    let (mut head, mut end) = (Map::new(), 0);
    for (name, shape) in tensors {
        let from = end;
        end += 2 * shape.iter().product::<usize>();
        let about = json!({"dtype": "BF16", "shape": shape, "data_offsets": [from, end]});
        head.insert(name.clone(), about);
    }
    let head = Value::Object(head).to_string();
    let file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    let mut out = BufWriter::new(file);
    out.write_all(&(head.len() as u64).to_le_bytes())?;
    out.write_all(head.as_bytes())?;
    let mut random = Random::new(1);
    for (name, shape) in tensors {
        for _ in 0..shape.iter().product() {
            let value = match shape.len() {
                1 if name.ends_with("bias") => 0.0,
                1 => 1.0,
                _ => 0.03 * uniform(&mut random),
            };
            // A bf16 is the upper half of an f32.
            out.write_all(&value.to_bits().to_le_bytes()[2..])?;
        }
    }
    out.flush()
        .with_context(|| format!("cannot write {}", path.display()))
}

/// Returns a number between -1 and 1.
fn uniform(random: &mut Random) -> f32 {
    let bits = u16::try_from(random.next() >> 48).expect("16 bits are left");
    f32::from(bits) / 32_768.0 - 1.0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn temporary(name: &str) -> PathBuf {
        let name = format!("prelude-made-{name}-{}", std::process::id());
        std::env::temp_dir().join(name)
    }

    #[test]
    fn parameters_are_as_many_as_published() {
        let check = |name: &str, millions: f64| {
            let made = &MADE[name];
            let part = temporary(&format!("{name}-shapes"));
            for (file, bytes) in made.documents().unwrap() {
                write(&part.join(file), &bytes).unwrap();
            }
            let shapes = made.shapes(&part).unwrap();
            fs::remove_dir_all(&part).unwrap();
            let sizes = shapes.values().map(|shape| shape.iter().product::<usize>());
            let found = sizes.sum::<usize>() as f64 / 1e6;
            assert!((found / millions - 1.0).abs() < 0.02, "{name}: {found} M");
        };
        // The published counts, less the pooling layers for next-sentence prediction, which have no use
        // here.
        check("MiniLM-L6", 22.6);
        check("bge-base", 108.9);
        check("bge-reranker-base", 278.0);
        check("ModernBERT-base", 149.0);
        // Its encoder and, by its authors' code, two layers and three small heads behind it.
        check("laya-base", 149.0 + 15.0);
        check("qwen3-0.6b-random", 596.0);
    }

    #[test]
    fn a_small_model_of_each_kind_loads() {
        let small = [
            ("num_hidden_layers", 2),
            ("hidden_size", 48),
            ("num_attention_heads", 4),
            ("intermediate_size", 64),
            ("vocab_size", 500),
        ];
        for (name, made) in MADE.iter().filter(|(_, made)| made.random) {
            let mut made = made.clone();
            let mut configs = made.changed.values_mut();
            let config = configs
                .find(|of| of.contains_key("num_hidden_layers"))
                .unwrap();
            config.extend(small.map(|(field, value)| (field.to_owned(), json!(value))));
            if config.contains_key("head_dim") {
                config.insert("num_key_value_heads".to_owned(), json!(2));
                config.insert("vocab_size".to_owned(), json!(VOCABULARY));
            }
            if let Some(pooling) = made.changed.get_mut("1_Pooling/config.json") {
                pooling.insert("word_embedding_dimension".to_owned(), json!(48));
            }
            for width in made.head.values_mut().flatten().filter(|w| **w >= 768) {
                *width -= 768 - 48;
            }
            let folder = made.make(&temporary(name)).unwrap();
            let checkpoint = Checkpoint::open(&folder).unwrap();
            let config = prelude_exec_cpu::CpuConfig::default();
            let pool = Arc::new(prelude_exec_cpu::ComputePool::new(1));
            prelude_exec_cpu::CpuExecutor::new(&checkpoint, config, pool).unwrap();
            fs::remove_dir_all(&folder).unwrap();
        }
    }

    #[test]
    fn random_weights_lie_around_zero() {
        let mut random = Random::new(7);
        let values: Vec<f32> = (0..10_000).map(|_| uniform(&mut random)).collect();
        assert!(values.iter().all(|value| (-1.0..1.0).contains(value)));
        let mean = values.iter().sum::<f32>() / 10_000.0;
        assert!(mean.abs() < 0.05, "{mean}");
    }
}
