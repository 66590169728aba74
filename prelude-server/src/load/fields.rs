//! The table of fields, row by row: each field is changed in a small checkpoint, and loading
//! refuses it by name, or answers change, or they do not, as the table says.

use std::{
    collections::{BTreeMap, btree_map::Entry},
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use prelude_models::fields::{self, Effect};
use serde_json::{Value, json};

use super::*;
use crate::{ApiKeys, App, ServerConfig, testing};

/// Checkpoints that fields are changed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Base {
    Lm,
    /// A language model whose special tokens are in a file of their own.
    LmWithMap,
    Classifier,
    Embedder,
    /// A cross-encoder of one class, which only the workspace has, as the models below.
    Reward,
    /// A classifier with a window.
    Mistral,
    /// A classifier that may have biases.
    Llama,
    /// Language models with windows: one that bounds scores and logits, one with two rotations.
    Gemma2,
    Gemma3,
    /// The latter as an embedder.
    GemmaEmbedder,
    /// An embedder with modules `Dense`.
    Dense,
    /// A mixture of experts.
    Experts,
    /// A language model with factors.
    Granite,
    /// Encoders: classifiers, and a cross-encoder.
    Bert,
    Roberta,
    DistilBert,
    MpNet,
    ModernBert,
    CrossEncoder,
    /// A language model that is a cross-encoder.
    Judge,
    /// A LoRA adapter of the classifier.
    Adapter,
}

/// A field's new value: file, name, value.
type Change = (&'static str, &'static str, Value);

const CONFIG: &str = "config.json";
/// The rows of `config.json` for encoders.
const ENCODERS: &str = "config.json of an encoder";
/// The rows of `config.json` for Gemma.
const GEMMAS: &str = "config.json of a Gemma";
/// The rows of `config.json` for families of encoders.
const DISTILBERTS: &str = "config.json of a DistilBERT";
const MPNETS: &str = "config.json of an MPNet";
const MODERNBERTS: &str = "config.json of a ModernBERT";
const GENERATION: &str = "generation_config.json";
const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const MAP: &str = "special_tokens_map.json";
const MODULES: &str = "modules.json";
const POOLING: &str = "1_Pooling/config.json";
const DENSE: &str = "2_Dense/config.json";
const LOGIT_SCORE: &str = "1_LogitScore/config.json";
const PIPELINE: &str = "config_sentence_transformers.json";
const TRANSFORMER: &str = "sentence_bert_config.json";
const ADAPTER: &str = "adapter_config.json";

/// A template that prints all names in its reach.
const TEMPLATE: &str = "{{ bos_token }}{{ eos_token }}{{ unk_token }}{{ sep_token }}{{ pad_token }}\
    {{ cls_token }}{{ mask_token }}{% for m in messages %}{{ m.content }}{% endfor %}";

impl Base {
    /// Returns the base in which the fields of a file are changed.
    fn of(file: &str) -> Self {
        match file {
            CONFIG => Self::Classifier,
            ENCODERS => Self::Bert,
            GEMMAS => Self::Gemma2,
            DISTILBERTS => Self::DistilBert,
            MPNETS => Self::MpNet,
            MODERNBERTS => Self::ModernBert,
            MAP => Self::LmWithMap,
            LOGIT_SCORE => Self::Judge,
            DENSE => Self::Dense,
            ADAPTER => Self::Adapter,
            GENERATION | TOKENIZER | TOKENIZER_CONFIG => Self::Lm,
            _ => Self::Embedder,
        }
    }

    fn folder(self) -> Option<PathBuf> {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo");
        match self {
            Self::Lm | Self::LmWithMap | Self::Embedder | Self::Judge => Some(demo.join("demo-lm")),
            Self::Classifier => Some(demo.join("demo-classifier")),
            // Its weights are made.
            Self::Adapter => Some(demo),
            Self::Reward => Some(testing::golden("rand-yarn-reward")?.join("model")),
            Self::Mistral => Some(testing::golden("rand-mistral-cls3")?.join("model")),
            Self::Llama => Some(testing::golden("rand-llama-cls3")?.join("model")),
            Self::Gemma2 => Some(testing::golden("rand-gemma2")?.join("model")),
            Self::Gemma3 | Self::GemmaEmbedder => {
                Some(testing::golden("rand-gemma3")?.join("model"))
            }
            Self::Dense => Some(testing::golden("rand-gemma3-embed")?.join("model")),
            Self::Experts => Some(testing::golden("rand-qwen3-moe")?.join("model")),
            Self::Granite => Some(testing::golden("rand-granite")?.join("model")),
            Self::Bert => Some(testing::golden("rand-bert-cls3")?.join("model")),
            Self::Roberta => Some(testing::golden("rand-roberta-cls2")?.join("model")),
            Self::DistilBert => Some(testing::golden("rand-distilbert-cls2")?.join("model")),
            Self::MpNet => Some(testing::golden("rand-mpnet-cls2")?.join("model")),
            Self::ModernBert => Some(testing::golden("rand-modernbert-cls3")?.join("model")),
            Self::CrossEncoder => Some(testing::golden("rand-bert-rank")?.join("model")),
        }
    }

    fn changes(self) -> Vec<Change> {
        let template = (TOKENIZER_CONFIG, "chat_template", json!(TEMPLATE));
        match self {
            Self::Classifier | Self::Reward | Self::Mistral | Self::Llama => Vec::new(),
            Self::Bert | Self::Roberta | Self::DistilBert | Self::MpNet | Self::ModernBert => {
                Vec::new()
            }
            Self::CrossEncoder | Self::Gemma2 | Self::Gemma3 | Self::Dense => Vec::new(),
            Self::Experts | Self::Granite => Vec::new(),
            Self::GemmaEmbedder => vec![(POOLING, "pooling_mode_lasttoken", json!(true))],
            Self::Lm => vec![template],
            Self::Adapter => vec![
                (ADAPTER, "peft_type", json!("LORA")),
                (ADAPTER, "r", json!(2)),
                (
                    ADAPTER,
                    "base_model_name_or_path",
                    json!(Self::Classifier.folder()),
                ),
            ],
            Self::Judge => vec![
                template,
                (LOGIT_SCORE, "true_token_id", json!(300)),
                (LOGIT_SCORE, "false_token_id", json!(301)),
                (PIPELINE, "model_type", json!("CrossEncoder")),
            ],
            Self::LmWithMap => vec![
                template,
                (TOKENIZER_CONFIG, "added_tokens_decoder", Value::Null),
                (MAP, "eos_token", json!("<|im_end|>")),
            ],
            Self::Embedder => vec![
                (POOLING, "pooling_mode_lasttoken", json!(true)),
                (
                    "2_Normalize/config.json",
                    "module_input_name",
                    json!("sentence_embedding"),
                ),
                (PIPELINE, "prompts", json!({"query": "Query: "})),
                (TRANSFORMER, "max_seq_length", json!(512)),
            ],
        }
    }
}

/// Writes a base with changes into a folder of its own, loads it and asks it. An error is what
/// loading says.
fn outcome(base: Base, changes: &[Change]) -> Option<Result<(String, Vec<String>), String>> {
    let source = base.folder()?;
    static FOLDERS: AtomicUsize = AtomicUsize::new(0);
    let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
    let name = format!("prelude-fields-{}-{number}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("1_Pooling")).unwrap();
    fs::create_dir_all(folder.join("2_Normalize")).unwrap();
    fs::create_dir_all(folder.join("1_LogitScore")).unwrap();
    let mut documents: BTreeMap<&str, Value> = BTreeMap::new();
    for entry in fs::read_dir(&source).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            let name = path.file_name().unwrap();
            std::os::unix::fs::symlink(&path, folder.join(name)).unwrap();
        }
    }
    if base == Base::Adapter {
        fs::write(folder.join("adapter_model.safetensors"), adapter()).unwrap();
    }
    for module in ["2_Dense", "3_Dense"] {
        let file = format!("{module}/model.safetensors");
        fs::create_dir_all(folder.join(module)).unwrap();
        if source.join(&file).exists() {
            std::os::unix::fs::symlink(source.join(&file), folder.join(&file)).unwrap();
        }
    }
    let of_modules = match base {
        Base::Dense => &[MODULES, POOLING, DENSE, "3_Dense/config.json"][..],
        _ => &[],
    };
    let of_all = [CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG];
    for file in of_all.iter().chain(of_modules).copied() {
        if let Ok(bytes) = fs::read(source.join(file)) {
            documents.insert(file, serde_json::from_slice(&bytes).unwrap());
        }
    }
    let modules = match base {
        Base::Embedder | Base::GemmaEmbedder => &[
            ("Transformer", ""),
            ("Pooling", "1_Pooling"),
            ("Normalize", "2_Normalize"),
        ][..],
        Base::Judge => &[("Transformer", ""), ("LogitScore", "1_LogitScore")],
        _ => &[],
    };
    if !modules.is_empty() {
        let module = |class: &str, path: &str| json!({"type": format!("sentence_transformers.models.{class}"), "path": path});
        let modules: Vec<Value> = modules.iter().map(|(c, p)| module(c, p)).collect();
        documents.insert(MODULES, json!(modules));
    }
    for (file, name, value) in base.changes().iter().chain(changes) {
        let file = match *file {
            ENCODERS | GEMMAS | DISTILBERTS | MPNETS | MODERNBERTS => CONFIG,
            file => file,
        };
        let document = documents.entry(file).or_insert_with(|| json!({}));
        match document.as_array_mut() {
            // In modules.json the field of the last module is changed.
            Some(list) => list.last_mut().unwrap()[name] = value.clone(),
            None => document[name] = value.clone(),
        }
    }
    for (file, document) in documents {
        fs::write(folder.join(file), document.to_string()).unwrap();
    }
    let asked = ask(base, &folder);
    fs::remove_dir_all(&folder).unwrap();
    Some(asked)
}

/// Returns the weights of an adapter that changes answers.
fn adapter() -> Vec<u8> {
    use safetensors::{Dtype, tensor::TensorView};

    let ones: Vec<u8> = (0..2 * 192).flat_map(|_| 0.1_f32.to_le_bytes()).collect();
    let tensor = |part: &str, shape: [usize; 2]| {
        let name = format!("base_model.model.model.layers.0.self_attn.o_proj.lora_{part}.weight");
        (
            name,
            TensorView::new(Dtype::F32, shape.to_vec(), &ones).unwrap(),
        )
    };
    safetensors::serialize([tensor("A", [2, 192]), tensor("B", [192, 2])], None).unwrap()
}

fn ask(base: Base, folder: &Path) -> Result<(String, Vec<String>), String> {
    let mut options = testing::options();
    options.executor.num_blocks = Some(256);
    options.name = Some("m".to_owned());
    if base == Base::Reward {
        options.rerank_template = Some("qwen3".into());
    }
    let loaded = Assets::open(folder)
        .and_then(|assets| load(assets, &options, &Devices::of_machine()))
        .map_err(|e| e.to_string())?;
    let app = App::new(ServerConfig::default(), ApiKeys::default());
    app.set_models(vec![loaded.model]);
    let answers = probe(&app, base);
    loaded.engine.stop();
    Ok((answers, loaded.warnings))
}

/// Asks for every answer that a field may decide and returns them as text, without what differs
/// from run to run.
fn probe(app: &Arc<App>, base: Base) -> String {
    let text = "Where is my card? <|im_end|> I paid e\u{301} 5.";
    let message = json!([{"role": "user", "content": "Where is my card?"}]);
    let rank = json!({"query": "my card", "documents": ["a card", "a rate"]});
    let embed = |more: Value| {
        let mut body = json!({"input": text});
        let more = more.as_object().unwrap().clone();
        body.as_object_mut().unwrap().extend(more);
        ("/v1/embeddings", body)
    };
    let mut asked = vec![(
        "/tokenize",
        json!({"prompt": text, "return_token_strs": true}),
    )];
    asked.extend(match base {
        Base::Lm | Base::LmWithMap => vec![
            ("/tokenize", json!({"messages": message})),
            (
                "/v1/completions",
                json!({"prompt": "I", "max_tokens": 12, "n": 8, "seed": 7}),
            ),
            (
                "/v1/completions",
                json!({"prompt": "Where is my", "max_tokens": 4, "temperature": 0,
                "logprobs": 2}),
            ),
            (
                "/classify",
                json!({"input": text, "labels": ["card", "rate"]}),
            ),
            (
                "/v1/completions",
                json!({"prompt": "card ".repeat(60), "max_tokens": 1, "temperature": 0}),
            ),
        ],
        Base::Classifier | Base::Mistral | Base::Llama | Base::Adapter => vec![
            ("/classify", json!({"input": text})),
            ("/pooling", json!({"input": text})),
        ],
        Base::Bert | Base::Roberta | Base::DistilBert | Base::MpNet | Base::ModernBert => {
            vec![
                ("/classify", json!({"input": text})),
                ("/pooling", json!({"input": text})),
            ]
        }
        Base::Gemma2 | Base::Gemma3 | Base::Experts | Base::Granite => vec![(
            "/v1/completions",
            json!({"prompt": text, "max_tokens": 3, "temperature": 0, "logprobs": 2}),
        )],
        Base::GemmaEmbedder | Base::Dense => vec![embed(json!({}))],
        Base::CrossEncoder | Base::Judge => vec![("/v1/rerank", rank)],
        Base::Reward => vec![("/classify", json!({"input": text})), ("/v1/rerank", rank)],
        Base::Embedder => vec![
            embed(json!({})),
            embed(json!({"dimensions": 7})),
            embed(json!({"dimensions": 8})),
            embed(json!({"input_type": "query"})),
            embed(json!({"input_type": "document"})),
            embed(json!({"prompt_name": "x"})),
            ("/v1/rerank", rank),
        ],
    });
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.enable_all().build().unwrap();
    let mut all = String::new();
    let mut add = |method: &str, path: &str, body: String| {
        let answered = runtime.block_on(app.answer(method, path, body));
        let mut found: Value = serde_json::from_slice(&answered.body).unwrap();
        for name in ["id", "created", "system_fingerprint"] {
            found.as_object_mut().unwrap().remove(name);
        }
        all.push_str(&format!("{path} {} {found}\n", answered.status));
    };
    for (path, body) in asked {
        add("POST", path, body.to_string());
    }
    add("GET", "/tokenizer_info", String::new());
    all
}

/// Changes that show that a field is obeyed, or refused by a rule of its own.
fn shown_by(file: &'static str, name: &'static str) -> (Base, Vec<Change>) {
    let base = Base::of(file);
    let one = |value: Value| {
        let file = fields::find(file, name).unwrap().file;
        (base, vec![(file, name, value)])
    };
    let token = "<|im_start|>";
    match (file, name) {
        (CONFIG, "architectures") => one(json!(["Qwen3ForCausalLM"])),
        (CONFIG, "hidden_size") => one(json!(184)),
        (CONFIG, "intermediate_size" | "vocab_size") => one(json!(4090)),
        (CONFIG, "num_hidden_layers" | "num_key_value_heads") => one(json!(1)),
        (CONFIG, "num_attention_heads") => one(json!(4)),
        (CONFIG, "head_dim") => one(json!(16)),
        (CONFIG, "attention_bias") => one(json!(true)),
        (CONFIG, "mlp_bias") => (Base::Llama, vec![(CONFIG, name, json!(true))]),
        (CONFIG, "sliding_window") => (Base::Mistral, vec![(CONFIG, name, json!(16))]),
        (CONFIG, "tie_word_embeddings") => (Base::Lm, vec![(CONFIG, name, json!(false))]),
        (CONFIG, "max_position_embeddings") => one(json!(64)),
        (CONFIG, "rms_norm_eps") => one(json!(0.01)),
        (CONFIG, "rope_theta") => one(json!(100)),
        (CONFIG, "rope_scaling") => one(json!({"rope_type": "yarn", "factor": 4})),
        (CONFIG, "rope_parameters") => one(json!({"rope_theta": 100})),
        (CONFIG, "dtype" | "torch_dtype") => one(json!("int8")),
        (CONFIG, "problem_type") => one(json!("multi_label_classification")),
        (CONFIG, "sentence_transformers") => {
            let named = json!({"activation_fn": "torch.nn.modules.linear.Identity"});
            (Base::Reward, vec![(CONFIG, name, named)])
        }
        (CONFIG, "sbert_ce_default_activation_function") => {
            let named = json!("torch.nn.modules.linear.Identity");
            (Base::Reward, vec![(CONFIG, name, named)])
        }
        (CONFIG, "id2label") => one(json!({"0": "a", "1": "b"})),
        (CONFIG, "num_labels") => {
            let none = (CONFIG, "id2label", Value::Null);
            (base, vec![none, (CONFIG, name, json!(3))])
        }
        (CONFIG, "eos_token_id") => {
            let none = (GENERATION, "eos_token_id", Value::Null);
            (Base::Lm, vec![none, (CONFIG, name, json!([294, 30]))])
        }
        (CONFIG, "matryoshka_dimensions") => (Base::Embedder, vec![(CONFIG, name, json!([7]))]),
        (CONFIG, "is_causal") => (Base::Embedder, vec![(CONFIG, name, json!(false))]),
        (CONFIG, "use_bidirectional_attention") => {
            (Base::Embedder, vec![(CONFIG, name, json!(true))])
        }
        (CONFIG, "num_experts" | "moe_intermediate_size") => {
            (Base::Experts, vec![(CONFIG, name, json!(5))])
        }
        (CONFIG, "num_experts_per_tok") => (Base::Experts, vec![(CONFIG, name, json!(1))]),
        (CONFIG, "norm_topk_prob") => (Base::Experts, vec![(CONFIG, name, json!(false))]),
        (CONFIG, "decoder_sparse_step") => (Base::Experts, vec![(CONFIG, name, json!(2))]),
        (CONFIG, "mlp_only_layers") => (Base::Experts, vec![(CONFIG, name, json!([]))]),
        (CONFIG, "embedding_multiplier" | "attention_multiplier" | "residual_multiplier") => {
            (Base::Granite, vec![(CONFIG, name, json!(0.5))])
        }
        (CONFIG, "logits_scaling") => (Base::Granite, vec![(CONFIG, name, json!(16))]),
        (CONFIG, "quantization_config") => one(json!({"quant_method": "gptq"})),
        (CONFIG, "layer_types") => one(json!(["full_attention", "sliding_attention"])),
        (GEMMAS, "hidden_activation") => one(json!("silu")),
        (GEMMAS, "query_pre_attn_scalar" | "sliding_window") => one(json!(4)),
        (GEMMAS, "attn_logit_softcapping" | "final_logit_softcapping") => one(json!(1.5)),
        (GEMMAS, "layer_types") => one(json!(vec!["full_attention"; 3])),
        (GEMMAS, "sliding_window_pattern") => (Base::Gemma3, vec![(file, name, json!(1))]),
        (GEMMAS, "rope_local_base_freq") => (Base::Gemma3, vec![(file, name, json!(100))]),
        (GEMMAS, "rope_parameters") => one(json!({"rope_theta": 100})),
        (GEMMAS, "use_bidirectional_attention") => {
            (Base::GemmaEmbedder, vec![(file, name, json!(true))])
        }
        (ENCODERS, "architectures") => one(json!(["BertModel"])),
        (ENCODERS, "hidden_size") => one(json!(56)),
        (ENCODERS, "intermediate_size" | "vocab_size") => one(json!(333)),
        (ENCODERS, "num_hidden_layers") => one(json!(1)),
        (ENCODERS, "num_attention_heads") => one(json!(2)),
        (ENCODERS, "dim") => (Base::DistilBert, vec![(file, name, json!(64))]),
        (ENCODERS, "hidden_dim") => (Base::DistilBert, vec![(file, name, json!(64))]),
        (ENCODERS, "n_layers") => (Base::DistilBert, vec![(file, name, json!(1))]),
        (ENCODERS, "n_heads") => (Base::DistilBert, vec![(file, name, json!(4))]),
        (ENCODERS, "activation") => (Base::DistilBert, vec![(file, name, json!("silu"))]),
        (ENCODERS, "hidden_act") => one(json!("silu")),
        (ENCODERS, "hidden_activation" | "classifier_activation") => {
            (Base::ModernBert, vec![(file, name, json!("silu"))])
        }
        (ENCODERS, "norm_eps") => (Base::ModernBert, vec![(file, name, json!(0.05))]),
        (ENCODERS, "attention_bias" | "mlp_bias" | "norm_bias" | "classifier_bias") => {
            (Base::ModernBert, vec![(file, name, json!(true))])
        }
        (ENCODERS, "local_attention") => (Base::ModernBert, vec![(file, name, json!(2))]),
        (ENCODERS, "global_attn_every_n_layers") => {
            (Base::ModernBert, vec![(file, name, json!(1))])
        }
        (ENCODERS, "layer_types") => {
            let all = ["full_attention"; 4];
            (Base::ModernBert, vec![(file, name, json!(all))])
        }
        (ENCODERS, "global_rope_theta" | "local_rope_theta") => {
            (Base::ModernBert, vec![(file, name, json!(100))])
        }
        (ENCODERS, "rope_parameters") => {
            let set = json!({"sliding_attention": {"rope_type": "default", "rope_theta": 100}});
            (Base::ModernBert, vec![(file, name, set)])
        }
        (ENCODERS, "classifier_pooling") => (Base::ModernBert, vec![(file, name, json!("mean"))]),
        (ENCODERS, "max_position_embeddings") => one(json!(64)),
        (ENCODERS, "pad_token_id") => (Base::Roberta, vec![(file, name, json!(3))]),
        (ENCODERS, "type_vocab_size") => one(json!(1)),
        (ENCODERS, "layer_norm_eps") => one(json!(0.05)),
        (ENCODERS, "dtype" | "torch_dtype") => one(json!("int8")),
        (ENCODERS, "problem_type") => one(json!("multi_label_classification")),
        (ENCODERS, "sentence_transformers") => {
            let named = json!({"activation_fn": "torch.nn.modules.linear.Identity"});
            (Base::CrossEncoder, vec![(file, name, named)])
        }
        (ENCODERS, "sbert_ce_default_activation_function") => {
            let named = json!("torch.nn.modules.linear.Identity");
            (Base::CrossEncoder, vec![(file, name, named)])
        }
        (ENCODERS, "id2label") => one(json!({"0": "a", "1": "b", "2": "c"})),
        (ENCODERS, "num_labels") => {
            let none = (CONFIG, "id2label", Value::Null);
            (base, vec![none, (file, name, json!(3))])
        }
        (ENCODERS, "matryoshka_dimensions") => {
            let body = (CONFIG, "architectures", json!(["BertForMaskedLM"]));
            (base, vec![body, (file, name, json!([7]))])
        }
        (GENERATION, "eos_token_id") => one(json!([294, 30])),
        (GENERATION, "do_sample") => one(json!(false)),
        (GENERATION, "temperature") => one(json!(5)),
        (GENERATION, "top_k") => one(json!(1)),
        (GENERATION, "top_p") => one(json!(0.01)),
        (GENERATION, "min_p") => one(json!(1)),
        (GENERATION, "repetition_penalty") => one(json!(9)),
        (TOKENIZER, "post_processor") => one(json!({"type": "TemplateProcessing",
            "single": [{"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<|endoftext|>":
                {"id": "<|endoftext|>", "ids": [4064], "tokens": ["<|endoftext|>"]}}})),
        (TOKENIZER, "added_tokens") => one(json!([])),
        (TOKENIZER, _) => one(Value::Null),
        (TOKENIZER_CONFIG, "chat_template") => one(json!("{{ messages[0].content }}!")),
        (TOKENIZER_CONFIG, "model_max_length") => one(json!(50)),
        (TOKENIZER_CONFIG, "max_len") => {
            let none = (TOKENIZER_CONFIG, "model_max_length", Value::Null);
            (base, vec![none, (TOKENIZER_CONFIG, name, json!(50))])
        }
        (TOKENIZER_CONFIG, "tokenizer_class") => one(json!("Other")),
        (TOKENIZER_CONFIG, "added_tokens_decoder") => one(json!({"4064": {"content": "<other>"}})),
        (TOKENIZER_CONFIG, "do_lower_case" | "strip_accents" | "tokenize_chinese_chars") => {
            one(json!(true))
        }
        (TOKENIZER_CONFIG | MAP, _) => one(json!(token)),
        (MODULES, "type") => one(json!("sentence_transformers.models.WordWeights")),
        (MODULES, _) => one(json!("../other")),
        (DENSE, "in_features" | "out_features") => one(json!(8)),
        (DENSE, "bias") => one(json!(false)),
        (DENSE, "activation_function") => one(json!("torch.nn.modules.activation.ReLU")),
        (POOLING, "pooling_mode_lasttoken") => one(json!(false)),
        (POOLING, "pooling_mode") => {
            let none = (POOLING, "pooling_mode_lasttoken", Value::Null);
            (base, vec![none, (POOLING, name, json!("mean"))])
        }
        (POOLING, _) => {
            let none = (POOLING, "pooling_mode_lasttoken", json!(false));
            (base, vec![none, (POOLING, name, json!(true))])
        }
        (PIPELINE, "prompts") => one(json!({"query": "Query: ", "x": "X: ", "document": "D: "})),
        (PIPELINE, "similarity_fn_name") => one(json!("dot")),
        (PIPELINE, "activation_fn") => {
            let named = json!("torch.nn.modules.linear.Identity");
            (Base::Reward, vec![(PIPELINE, name, named)])
        }
        (PIPELINE, "default_prompt_name") => one(json!("query")),
        (PIPELINE, "truncate_dim") => one(json!(5)),
        (LOGIT_SCORE, _) => one(json!(302)),
        (TRANSFORMER, _) => one(json!(9)),
        (ADAPTER, "r") => one(json!(3)),
        (ADAPTER, "lora_alpha") => one(json!(20)),
        (ADAPTER, "use_rslora") => one(json!(true)),
        (ADAPTER, "modules_to_save") => one(json!(["norm"])),
        (ADAPTER, "task_type") => one(json!("QUESTION_ANS")),
        (ADAPTER, "auto_mapping") => {
            one(json!({"base_model_class": "Qwen3ForTokenClassification"}))
        }
        (ADAPTER, "base_model_name_or_path") => one(json!("no/such")),
        _ => panic!("{file}: nothing shows that {name} is obeyed"),
    }
}

/// Returns a value beside those that are allowed.
fn other_than(allowed: &[&str]) -> Value {
    match allowed {
        ["true"] => json!(false),
        ["false"] => json!(true),
        ["0" | "1"] => json!(3),
        ["[]"] => json!([[1]]),
        [] | ["{}"] => json!({"a": 1}),
        _ => json!("other"),
    }
}

/// Returns a value of the kind that the reference writes, or any at all.
fn harmless(file: &str, name: &str) -> Value {
    match (file, name) {
        (TOKENIZER, "version") => json!("1.0"),
        (TOKENIZER, "truncation") => json!({"direction": "Right", "max_length": 2,
            "strategy": "LongestFirst", "stride": 0}),
        (TOKENIZER, "padding") => json!({"strategy": {"Fixed": 9}, "direction": "Right",
            "pad_to_multiple_of": null, "pad_id": 4064, "pad_type_id": 0,
            "pad_token": "<|endoftext|>"}),
        _ => json!(7),
    }
}

#[test]
fn each_field_does_what_its_row_says() {
    let mut plain: BTreeMap<Base, String> = BTreeMap::new();
    let mut rows = 0;
    for field in fields::all() {
        let (file, base) = (field.file, Base::of(field.file));
        let cases: Vec<(&str, Base, Vec<Change>)> = match field.effect {
            // All at once: none of them matters.
            Effect::NoEffect | Effect::Warned => {
                let change = |name: &&'static str| (file, *name, harmless(file, name));
                vec![(
                    field.names[0],
                    base,
                    field.names.iter().map(change).collect(),
                )]
            }
            Effect::Refused(allowed) => { field.names.iter() }
                .map(|name| (*name, base, vec![(file, *name, other_than(allowed))]))
                .collect(),
            _ => { field.names.iter() }
                .map(|name| {
                    let (base, changes) = shown_by(file, name);
                    (*name, base, changes)
                })
                .collect(),
        };
        for (name, base, changes) in cases {
            let what = format!("{file}: {name}");
            if let Entry::Vacant(unknown) = plain.entry(base)
                && let Some(found) = outcome(base, &[])
            {
                unknown.insert(found.expect(&what).0);
            }
            let Some(found) = outcome(base, &changes) else {
                continue;
            };
            check(&what, name, field.effect, &found, &plain[&base]);
            rows += 1;
        }
    }
    assert!(rows > 150, "{rows}");
}

fn check(
    what: &str,
    name: &str,
    effect: Effect,
    found: &Result<(String, Vec<String>), String>,
    plain: &str,
) {
    match (effect, found) {
        (Effect::Refused(_) | Effect::Checked, Err(error)) => {
            let is_named = error.contains(&format!("`{name}`"))
                || ["layer type", "element type", "module"]
                    .iter()
                    .any(|n| error.contains(n));
            assert!(is_named, "{what}: {error}");
        }
        (Effect::Obeyed, Err(error)) => {
            let file = what.split(':').next().unwrap();
            let names = ["the tensors do not fit", "the length of what goes in", file];
            assert!(names.iter().any(|n| error.contains(n)), "{what}: {error}");
        }
        (Effect::Obeyed, Ok((answers, _))) => {
            assert!(answers != plain, "{what} changes nothing");
        }
        (Effect::NoEffect | Effect::Warned, Ok((answers, warnings))) => {
            for (found, expected) in answers.lines().zip(plain.lines()) {
                assert_eq!(found, expected, "{what}");
            }
            let is_told = warnings.iter().any(|w| w.contains(&format!("`{name}`")));
            assert_eq!(is_told, effect == Effect::Warned, "{what}: {warnings:?}");
        }
        (effect, found) => panic!("{what} is to be {effect:?}: {found:?}"),
    }
}

/// The defect that the table is for: classes that do not exclude each other summed to 1.
#[test]
fn classes_that_go_together_have_a_sigmoid_each() {
    let probs = |problem: Value| -> Vec<f64> {
        let changes = [(CONFIG, "problem_type", problem)];
        let (answers, _) = outcome(Base::Classifier, &changes).unwrap().unwrap();
        let line = answers
            .lines()
            .find(|l| l.starts_with("/classify 200 "))
            .unwrap();
        let body: Value = serde_json::from_str(&line["/classify 200 ".len()..]).unwrap();
        serde_json::from_value(body["data"][0]["probs"].clone()).unwrap()
    };
    let logits = probs(json!("regression"));
    let sigmoids = probs(json!("multi_label_classification"));
    let softmax = probs(json!("single_label_classification"));
    assert_eq!(softmax, probs(Value::Null));
    assert!((softmax.iter().sum::<f64>() - 1.0).abs() < 1e-5);
    for (logit, p) in logits.iter().zip(&sigmoids) {
        assert!(
            (1.0 / (1.0 + (-logit).exp()) - p).abs() < 1e-6,
            "{logit} {p}"
        );
    }
}

#[test]
fn unknown_fields_are_named_in_a_warning() {
    let changes = [(CONFIG, "zeta", json!(1))];
    let (_, warnings) = outcome(Base::Classifier, &changes).unwrap().unwrap();
    assert_eq!(
        warnings,
        ["config.json has fields that Prelude does not know and passes over: `zeta`"]
    );
}

/// A template for requests with tools would not be asked.
#[test]
fn a_second_template_is_refused() {
    let named = |name| json!({"name": name, "template": TEMPLATE});
    let templates = json!([named("default"), named("tool_use")]);
    let changes = [(TOKENIZER_CONFIG, "chat_template", templates)];
    let error = outcome(Base::Lm, &changes).unwrap().unwrap_err();
    assert!(
        error.contains("`tool_use`") && error.contains("--chat-template"),
        "{error}"
    );
}
