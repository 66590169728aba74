//! Checkpoints of random weights in the shapes of published encoders.
//!
//! Tokenizers and what else a folder has are those of the small golden models, which have the form of
//! the families' own; their vocabularies are small, so a text's ids are among the first of the table.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::server::folders::{Tensor, write_tensors};

/// The folder of the golden models.
const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../golden");

/// The most tokens of a text, for all models alike.
const CONTEXT: u32 = 512;

/// The files of a golden model that a folder takes over, those that are there.
const FILES: [&str; 4] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "modules.json",
    "1_Pooling/config.json",
];

/// The work that a model does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    /// A vector of a text.
    Embed,
    /// A score of a query and a text.
    Rank,
}

/// The names and the parts of a family's tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Bert,
    XlmRoberta,
    ModernBert,
}

/// The shape of a model.
pub(super) struct Model {
    pub(super) name: &'static str,
    pub(super) task: Task,
    family: Family,
    /// The golden model whose files it takes over.
    like: &'static str,
    layers: u32,
    hidden: u32,
    heads: u32,
    intermediate: u32,
    vocabulary: u32,
}

/// The models that are measured.
pub(super) const MODELS: [Model; 4] = [
    Model {
        name: "MiniLM-L6",
        task: Task::Embed,
        family: Family::Bert,
        like: "rand-bert-embed",
        layers: 6,
        hidden: 384,
        heads: 12,
        intermediate: 1_536,
        vocabulary: 30_522,
    },
    Model {
        name: "bge-base",
        task: Task::Embed,
        family: Family::Bert,
        like: "rand-bert-embed",
        layers: 12,
        hidden: 768,
        heads: 12,
        intermediate: 3_072,
        vocabulary: 30_522,
    },
    Model {
        name: "bge-reranker-base",
        task: Task::Rank,
        family: Family::XlmRoberta,
        like: "rand-xlmr-rank",
        layers: 12,
        hidden: 768,
        heads: 12,
        intermediate: 3_072,
        vocabulary: 250_002,
    },
    Model {
        name: "ModernBERT-base",
        task: Task::Embed,
        family: Family::ModernBert,
        like: "rand-modernbert-embed",
        layers: 22,
        hidden: 768,
        heads: 12,
        intermediate: 1_152,
        vocabulary: 50_368,
    },
];

impl Model {
    /// Makes the model's folder below `out`, unless it is there, and returns it.
    pub(super) fn make(&self, out: &Path) -> Result<PathBuf> {
        let folder = out.join("models").join(format!("{}-random", self.name));
        let weights = folder.join("model.safetensors");
        if weights.exists() {
            return Ok(folder);
        }
        let from = Path::new(GOLDEN).join(self.like).join("model");
        for file in FILES {
            let to = folder.join(file);
            fs::create_dir_all(to.parent().context("a file is in a folder")?)?;
            if from.join(file).exists() {
                fs::copy(from.join(file), &to)
                    .with_context(|| format!("cannot write {}", to.display()))?;
            }
        }
        let read = |file: &str| -> Result<Value> {
            let path = from.join(file);
            let text = fs::read(&path);
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            Ok(serde_json::from_slice(&text)?)
        };
        let write = |file: &str, value: &Value| {
            let path = folder.join(file);
            fs::write(&path, value.to_string())
                .with_context(|| format!("cannot write {}", path.display()))
        };
        write("config.json", &self.config(read("config.json")?))?;
        let tokenizer = self.tokenizer(read("tokenizer_config.json")?);
        write("tokenizer_config.json", &tokenizer)?;
        if self.task == Task::Embed {
            let mut pooling = read("1_Pooling/config.json")?;
            pooling["word_embedding_dimension"] = json!(self.hidden);
            write("1_Pooling/config.json", &pooling)?;
        }
        // Renamed when it is whole.
        let part = folder.join("model.part");
        write_tensors(&part, &self.tensors())?;
        fs::rename(&part, &weights)
            .with_context(|| format!("cannot make {}", weights.display()))?;
        Ok(folder)
    }

    fn tokenizer(&self, mut tokenizer: Value) -> Value {
        tokenizer["model_max_length"] = json!(CONTEXT);
        if self.family == Family::ModernBert {
            // As the published ones say: the model takes no types of tokens.
            tokenizer["model_input_names"] = json!(["input_ids", "attention_mask"]);
        }
        tokenizer
    }

    fn config(&self, mut config: Value) -> Value {
        let fields = [
            ("num_hidden_layers", self.layers),
            ("hidden_size", self.hidden),
            ("num_attention_heads", self.heads),
            ("intermediate_size", self.intermediate),
            ("vocab_size", self.vocabulary),
            ("max_position_embeddings", self.positions()),
        ];
        for (name, value) in fields {
            config[name] = json!(value);
        }
        config["torch_dtype"] = json!("bfloat16");
        match self.family {
            // The golden model has a variant that the published ones do not have.
            Family::Bert => config["hidden_act"] = json!("gelu"),
            Family::ModernBert => config["global_attn_every_n_layers"] = json!(3),
            Family::XlmRoberta => {}
        }
        config
    }

    /// Returns the length of the position table; of rotary positions the longest text.
    const fn positions(&self) -> u32 {
        match self.family {
            // Counted from behind the padding's id.
            Family::XlmRoberta => CONTEXT + 2,
            Family::Bert | Family::ModernBert => CONTEXT,
        }
    }

    /// Returns the names and shapes of all tensors, in the order of the file.
    fn tensors(&self) -> Vec<Tensor> {
        match self.family {
            Family::Bert => self.of_bert("", 2),
            Family::XlmRoberta => {
                let mut all = self.of_bert("roberta.", 1);
                all.extend(dense("classifier.dense", self.hidden, self.hidden));
                all.extend(dense("classifier.out_proj", 1, self.hidden));
                all
            }
            Family::ModernBert => self.of_modern_bert(),
        }
    }

    fn of_bert(&self, prefix: &str, types: u32) -> Vec<Tensor> {
        let hidden = self.hidden;
        let table = |name: &str, rows| {
            let name = format!("{prefix}embeddings.{name}.weight");
            Tensor::new(name, vec![rows, hidden])
        };
        let mut all = vec![
            table("word_embeddings", self.vocabulary),
            table("position_embeddings", self.positions()),
            table("token_type_embeddings", types),
        ];
        all.extend(norm(&format!("{prefix}embeddings.LayerNorm"), hidden));
        for layer in 0..self.layers {
            let at = format!("{prefix}encoder.layer.{layer}");
            for name in ["query", "key", "value"] {
                all.extend(dense(
                    &format!("{at}.attention.self.{name}"),
                    hidden,
                    hidden,
                ));
            }
            all.extend(dense(
                &format!("{at}.attention.output.dense"),
                hidden,
                hidden,
            ));
            all.extend(norm(&format!("{at}.attention.output.LayerNorm"), hidden));
            let wide = self.intermediate;
            all.extend(dense(&format!("{at}.intermediate.dense"), wide, hidden));
            all.extend(dense(&format!("{at}.output.dense"), hidden, wide));
            all.extend(norm(&format!("{at}.output.LayerNorm"), hidden));
        }
        all
    }

    fn of_modern_bert(&self) -> Vec<Tensor> {
        let (hidden, wide) = (self.hidden, self.intermediate);
        let matrix = |name: String, rows, columns| {
            Tensor::new(format!("{name}.weight"), vec![rows, columns])
        };
        let ones = |name: String| Tensor::new(format!("{name}.weight"), vec![hidden]);
        let mut all = vec![
            matrix(
                "embeddings.tok_embeddings".to_owned(),
                self.vocabulary,
                hidden,
            ),
            ones("embeddings.norm".to_owned()),
        ];
        for layer in 0..self.layers {
            let at = format!("layers.{layer}");
            // The first layer reads what the embeddings' norm wrote.
            if layer > 0 {
                all.push(ones(format!("{at}.attn_norm")));
            }
            all.push(matrix(format!("{at}.attn.Wqkv"), 3 * hidden, hidden));
            all.push(matrix(format!("{at}.attn.Wo"), hidden, hidden));
            all.push(ones(format!("{at}.mlp_norm")));
            all.push(matrix(format!("{at}.mlp.Wi"), 2 * wide, hidden));
            all.push(matrix(format!("{at}.mlp.Wo"), hidden, wide));
        }
        all.push(ones("final_norm".to_owned()));
        all
    }
}

/// Returns the weights and the biases of a product.
fn dense(name: &str, outputs: u32, inputs: u32) -> [Tensor; 2] {
    [
        Tensor::new(format!("{name}.weight"), vec![outputs, inputs]),
        Tensor::new(format!("{name}.bias"), vec![outputs]),
    ]
}

/// Returns the weights and the biases of a norm.
fn norm(name: &str, hidden: u32) -> [Tensor; 2] {
    [
        Tensor::new(format!("{name}.weight"), vec![hidden]),
        Tensor::new(format!("{name}.bias"), vec![hidden]),
    ]
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn parameters_are_as_many_as_published() {
        let check = |name: &str, millions: f64| {
            let model = MODELS.iter().find(|model| model.name == name).unwrap();
            let tensors = model.tensors();
            let count: u64 = tensors.iter().map(Tensor::len).sum();
            let found = count as f64 / 1e6;
            assert!((found / millions - 1.0).abs() < 0.02, "{name}: {found} M");
        };
        // The published counts, less the pooling layers for next-sentence prediction, which have no use
        // here.
        check("MiniLM-L6", 22.6);
        check("bge-base", 108.9);
        check("bge-reranker-base", 278.0);
        check("ModernBERT-base", 149.0);
    }

    #[test]
    fn a_small_model_of_each_family_loads() {
        let out = std::env::temp_dir().join(format!("prelude-encoders-{}", std::process::id()));
        for model in &MODELS {
            let small = Model {
                layers: 2,
                hidden: 48,
                heads: 4,
                intermediate: 64,
                vocabulary: 500,
                ..*model
            };
            let folder = small.make(&out).unwrap();
            let checkpoint = prelude_models::Checkpoint::open(&folder).unwrap();
            let config = prelude_exec_cpu::CpuConfig::default();
            let pool = Arc::new(prelude_exec_cpu::ComputePool::new(1));
            prelude_exec_cpu::CpuExecutor::new(&checkpoint, config, pool).unwrap();
            fs::remove_dir_all(&folder).unwrap();
        }
        fs::remove_dir_all(&out).unwrap();
    }
}
