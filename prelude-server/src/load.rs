//! Loading of a model from its files into service.

mod tables;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use prelude_core::{Pooling, Profile};
use prelude_engine::{EngineConfig, ScheduledEngine};
use prelude_models::{Checkpoint, ClassActivation, EncoderConfig, ModelKind as CheckpointKind};
use prelude_text::{
    decide::{AskWording, Calibration, DecideLabels, Unfit, WordingFile},
    rerank_template::RerankTemplate,
    template::{ChatInputs, ChatTemplate, no_thinking},
    tokenizer::{Escaper, Tokenizer},
};
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{
    assets::{Assets, LoadError, read_template},
    config::{ReasoningParser, ToolParser},
    decider::Decider,
    executor::{Devices, ExecutorConfig, HostMemory, Opened},
    served_model::{
        Classes, Judge, Judging, ModelKind, OnHost, PromptForm, Purpose, SamplingDefaults,
        ServedModel, Task, Vectors, Words,
    },
};

pub use self::tables::KvSettings;

/// Options of serving a model.
#[derive(Clone, Debug)]
pub struct LoadOptions {
    /// The name requests use; by default the folder's.
    pub name: Option<String>,
    /// The task of the checkpoint, where there is a choice.
    pub kind: Option<ModelKind>,
    /// Longest sequence served; by default the model's own limit.
    pub max_model_len: Option<u32>,
    /// True if texts over the context are cut unless a request says otherwise.
    pub auto_truncate: bool,
    /// A chat template instead of the model's own.
    pub chat_template: Option<PathBuf>,
    /// Makes a language model serve embeddings, pooled like this, or replaces a model's pooling.
    pub pooling: Option<Pooling>,
    /// The prompt about a query and a document: `qwen3`, or the file of a template over
    /// `instruction`, `query` and `document`. Makes language and reward models rank documents.
    pub rerank_template: Option<PathBuf>,
    /// True if sampling parameters come from `generation_config.json` unless a request names them.
    pub generation_config: bool,
    /// The form of the model's reasoning; `None` is the server's.
    pub reasoning_parser: Option<ReasoningParser>,
    /// The form of the model's tool calls; `None` is the server's.
    pub tool_parser: Option<ToolParser>,
    /// The words in which a language model is asked typed questions, if they are not those of
    /// `prelude-decide-1`.
    pub decide_format: Option<WordingFile>,
    /// Temperatures of typed decisions by type of question, if they differ from the server's.
    pub calibration: Option<Calibration>,
    /// True if files by which a decision model decides are not looked at ([`Assets::open_plain`]).
    pub plain: bool,
    /// A folder where compiled tokenizers are kept from one start to the next.
    pub tokenizer_cache: Option<PathBuf>,
    /// Settings of the executor.
    pub executor: ExecutorConfig,
    /// Settings of the engine, which schedules the requests.
    pub engine: EngineConfig,
    /// The measured times of the model on its executor, if they are known. The engine schedules and
    /// predicts by them.
    pub profile: Option<Profile>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self {
            name: None,
            kind: None,
            max_model_len: None,
            auto_truncate: false,
            chat_template: None,
            pooling: None,
            rerank_template: None,
            generation_config: true,
            reasoning_parser: None,
            tool_parser: None,
            decide_format: None,
            calibration: None,
            plain: false,
            tokenizer_cache: None,
            executor: ExecutorConfig::default(),
            engine: EngineConfig::default(),
            profile: None,
        }
    }
}

/// A model in service and the engine that computes for it.
#[derive(Debug)]
pub struct Loaded {
    /// The model as endpoints use it.
    pub model: ServedModel,
    /// The engine, to be kept while the model is served: dropping it stops the engine.
    pub engine: ScheduledEngine,
    /// Warnings for the operator: features that this model cannot serve.
    pub warnings: Vec<String>,
    /// The memory that the model was planned to take, in words.
    pub memory: String,
    /// The device and the arithmetic, in words.
    pub executor: String,
}

/// Puts a model on a device, for steps that the caller makes.
///
/// # Errors
/// [`LoadError`].
pub fn open(
    assets: &Assets,
    options: &LoadOptions,
    devices: &Devices,
) -> Result<Opened, LoadError> {
    let max_model_len = max_model_len(assets, options.max_model_len)?;
    devices.open(&assets.checkpoint, max_model_len, &options.executor)
}

/// Returns the host memory that [`load`] would plan for a model, without reading its weights; `None`
/// on a GPU, whose executor plans as it loads.
///
/// # Errors
/// [`LoadError`] for options that contradict the model or the machine.
pub fn plan(
    assets: &Assets,
    options: &LoadOptions,
    devices: &Devices,
) -> Result<Option<HostMemory>, LoadError> {
    let max_model_len = max_model_len(assets, options.max_model_len)?;
    devices.plan(&assets.checkpoint, max_model_len, &options.executor)
}

/// Returns the chat template of the options, or else the model's own.
fn chat_template(
    assets: &mut Assets,
    options: &LoadOptions,
) -> Result<Option<ChatTemplate>, LoadError> {
    if let Some(path) = &options.chat_template {
        assets.chat_template = Some(read_template(path)?);
    }
    Ok(assets.compile_template()?)
}

/// Returns true if a model served as `kind` has a probability for each word that may follow.
fn predicts_words(kind: ModelKind, checkpoint: &Checkpoint) -> bool {
    matches!(kind, ModelKind::Lm | ModelKind::Reranker)
        && matches!(checkpoint.kind(), CheckpointKind::CausalLm)
}

/// Compiles the operator's wording of typed questions, if there is one.
fn wording(options: &LoadOptions, has_vocabulary: bool) -> Result<Option<AskWording>, LoadError> {
    let wording = options.decide_format.clone();
    match wording.map(AskWording::new).transpose()? {
        Some(_) if !has_vocabulary => Err(LoadError::Option(
            "--decide-format is of use to a language model alone: this one has no words".to_owned(),
        )),
        wording => Ok(wording),
    }
}

/// Puts a model into service.
///
/// # Errors
/// [`LoadError`]; [`LoadError::Option`] for a profile of another model or executor.
pub fn load(
    mut assets: Assets,
    options: &LoadOptions,
    devices: &Devices,
) -> Result<Loaded, LoadError> {
    let kind = served_kind(&assets, options.kind)?;
    let decider = assets.checkpoint.decision().cloned();
    let decider = decider.map(|of| Decider::new(of, &assets)).transpose()?;
    let wording = wording(options, predicts_words(kind, &assets.checkpoint))?;
    let judge = judge(&assets, kind, options)?;
    let judging = judging(judge, &mut assets, options)?;
    check_generation(&assets, kind, options)?;
    let template = chat_template(&mut assets, options)?;
    let max_model_len = max_model_len(&assets, options.max_model_len)?;
    let pooling = pooling(&assets.checkpoint, kind, options.pooling)?;
    let mut warnings = take_warnings(&mut assets);
    let has_vocabulary = predicts_words(kind, &assets.checkpoint);
    let asked = template.as_ref().filter(|_| has_vocabulary);
    let labels = asked.and_then(|of| served_decide_labels(of, &assets.tokenizer, &mut warnings));
    let opened = devices.open(&assets.checkpoint, max_model_len, &options.executor)?;
    let config = engine_config(options, &assets.name, &opened.name)?;
    let name = options.name.clone().unwrap_or_else(|| assets.name.clone());
    let engine = ScheduledEngine::spawn(&name, config, opened.executor)?;
    let checkpoint = &assets.checkpoint;
    let model = ServedModel {
        tasks: tasks(&Abilities {
            kind,
            has_vocabulary,
            chats: has_vocabulary && template.is_some(),
            decides: labels.is_some() || decider.is_some(),
            pools: pooling.is_some(),
            ranks: judge.is_some(),
            is_encoder: checkpoint.config().encoder.is_some(),
        }),
        kind,
        purpose: match (decider, has_vocabulary, pooling) {
            (Some(decider), ..) => Purpose::Decisions(decider),
            (None, true, _) => Purpose::Words(Box::new(Words {
                labels,
                wording: wording.map(Arc::new),
                vectors: pooling.map(|pooling| vectors(&assets, pooling, false)),
                judging,
                ..words(&assets, options)
            })),
            (None, false, Some(pooling)) => {
                Purpose::Vectors(vectors(&assets, pooling, judge == Some(Judge::Cosine)))
            }
            (None, false, None) => Purpose::Classes(classes(checkpoint, judging)),
        },
        form: PromptForm {
            template: template.map(Arc::new),
            cuts: assets.cuts,
            escaper: Escaper::of(&assets.tokenizer),
            token_types: token_types(checkpoint),
            tokenizer_config: assets.tokenizer_config,
        },
        max_model_len,
        auto_truncate: options.auto_truncate,
        vocab_size: bounded(checkpoint.config().vocab_size),
        engine: engine.handle(),
        host: OnHost {
            memory: opened.host_memory,
            packed_check: opened.check,
        },
        created: crate::endpoint::unix_seconds(),
        fingerprint: fingerprint(checkpoint, &options.executor),
        revision: assets.revision,
        tokenizer: Arc::new(assets.tokenizer),
        name,
        aliases: Vec::new(),
    };
    Ok(Loaded {
        model,
        engine,
        warnings,
        memory: opened.memory,
        executor: opened.name,
    })
}

/// Returns a number of a checked configuration, which bounds it.
fn bounded(number: usize) -> u32 {
    u32::try_from(number).expect("the configuration bounds it")
}

/// Returns the judge of a model with the template that it is asked by; `None` if the model judges
/// nothing, or by vectors. A cross-encoder's template is its chat template, which then is taken: it has
/// no place for a chat.
fn judging(
    judge: Option<Judge>,
    assets: &mut Assets,
    options: &LoadOptions,
) -> Result<Option<Judging>, LoadError> {
    let template = match judge {
        None | Some(Judge::Cosine) => return Ok(None),
        Some(Judge::Pair) => None,
        Some(Judge::YesNo { .. } | Judge::Class) => Some(judged_template(assets, options)?),
    };
    let of_files = assets.sentence.pair_activation;
    let activation = of_files.or_else(|| assets.checkpoint.config().pair_activation);
    Ok(judge.map(|judge| Judging {
        judge,
        template: template.map(Arc::new),
        activation: activation.unwrap_or(ClassActivation::Sigmoid),
    }))
}

/// Returns the template by which a model judges pairs.
fn judged_template(
    assets: &mut Assets,
    options: &LoadOptions,
) -> Result<RerankTemplate, LoadError> {
    let is_cross_encoder = is_cross_encoder(assets);
    let of_chat = match is_cross_encoder {
        true => assets.compile_template()?,
        false => None,
    };
    let default = assets.sentence.default_prompt.clone();
    let of_chat = of_chat.and_then(|chat| RerankTemplate::of_chat(chat, default));
    if of_chat.is_some() {
        assets.chat_template = None;
    }
    match (&options.rerank_template, of_chat) {
        (None, Some(of_chat)) => Ok(of_chat),
        (None, None) if is_cross_encoder => Err(LoadError::Option(
            "this cross-encoder has no chat template with places for a query and a document; name \
             one with --rerank-template (qwen3, or a file)"
                .to_owned(),
        )),
        (named, _) => rerank_template(named.as_deref()),
    }
}

/// Returns whether the files of sentence-transformers say that a decoder judges pairs of texts.
fn is_cross_encoder(assets: &Assets) -> bool {
    let checkpoint = &assets.checkpoint;
    let is_classifier = matches!(
        checkpoint.kind(),
        CheckpointKind::SequenceClassification { .. }
    );
    checkpoint.logit_score().is_some() || (is_classifier && assets.sentence.is_cross_encoder)
}

/// Returns the vocabulary's part of a model: what its files and the operator say of generation.
fn words(assets: &Assets, options: &LoadOptions) -> Words {
    let eos_token_ids = assets.checkpoint.generation().eos_token_ids.clone();
    Words {
        end_of_turn: end_of_turn(&assets.tokenizer_config, &assets.tokenizer, &eos_token_ids),
        eos_token_ids,
        sampling: sampling(&assets.checkpoint, options.generation_config),
        reasoning_parser: options.reasoning_parser,
        tool_parser: options.tool_parser,
        labels: None,
        wording: None,
        calibration: options.calibration.clone(),
        grammars: crate::constrain::Grammars::new(options.engine.scheduler.max_num_seqs),
        vectors: None,
        judging: None,
    }
}

/// Returns the vectors' part of a model with this pooling, and whether it normalises.
fn vectors(assets: &Assets, (pooling, normalise): (Pooling, bool), has_cosine: bool) -> Vectors {
    let (sentence, config) = (&assets.sentence, assets.checkpoint.config());
    Vectors {
        pooling,
        normalise,
        embedding_size: bounded(config.embedding_size()),
        hidden_size: bounded(config.hidden_size),
        truncate_dim: sentence.truncate_dim,
        matryoshka: assets.matryoshka.clone(),
        prompts: sentence.prompts.clone(),
        default_prompt: sentence.default_prompt.clone().unwrap_or_default(),
        has_cosine,
    }
}

/// Returns the classes' part of a model.
fn classes(checkpoint: &Checkpoint, judging: Option<Judging>) -> Classes {
    let config = checkpoint.config();
    Classes {
        names: match checkpoint.kind() {
            CheckpointKind::SequenceClassification { labels }
            | CheckpointKind::TokenClassification { labels } => labels.clone(),
            _ => Vec::new(),
        },
        activation: config.class_activation,
        of_mean: { config.encoder.as_ref() }.is_some_and(EncoderConfig::has_mean_classes),
        judging,
    }
}

/// Returns the number of types that tokens have.
fn token_types(checkpoint: &Checkpoint) -> u32 {
    let encoder = checkpoint.config().encoder.as_ref();
    bounded(encoder.map_or(1, |of| of.token_types))
}

/// Returns the settings of a model's engine on an executor, with the times of its profile.
fn engine_config(
    options: &LoadOptions,
    model: &str,
    executor: &str,
) -> Result<EngineConfig, LoadError> {
    let mut config = options.engine.clone();
    if let Some(profile) = &options.profile {
        let checked = profile.check_source(model, executor);
        checked.map_err(|e| LoadError::Option(e.to_string()))?;
        config.scheduler.service = Some(profile.service);
    }
    Ok(config)
}

/// Returns the labels of typed decisions, or pushes a warning that says why the model has none.
fn served_decide_labels(
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    warnings: &mut Vec<String>,
) -> Option<Arc<DecideLabels>> {
    match decide_labels(template, tokenizer) {
        Ok(labels) => Some(Arc::new(labels)),
        Err(why) => {
            warnings.push(format!("this model cannot serve typed decisions: {why}"));
            None
        }
    }
}

fn served_kind(assets: &Assets, wanted: Option<ModelKind>) -> Result<ModelKind, LoadError> {
    let checkpoint = &assets.checkpoint;
    // An encoder of one class is a cross-encoder, as sentence-transformers has it.
    let judges = checkpoint.config().encoder.is_some() || is_cross_encoder(assets);
    let own = match checkpoint.kind() {
        _ if checkpoint.decision().is_some() => ModelKind::Decision,
        CheckpointKind::CausalLm if judges => ModelKind::Reranker,
        CheckpointKind::CausalLm => ModelKind::Lm,
        CheckpointKind::SequenceClassification { labels } if labels.len() == 1 && judges => {
            ModelKind::Reranker
        }
        CheckpointKind::SequenceClassification { labels } if labels.len() == 1 => ModelKind::Reward,
        CheckpointKind::SequenceClassification { .. } => ModelKind::Classifier,
        CheckpointKind::TokenClassification { .. } => ModelKind::TokenClassifier,
        CheckpointKind::Embedding { .. } => ModelKind::Embedding,
    };
    match wanted {
        None => Ok(own),
        Some(wanted) if wanted == own => Ok(own),
        Some(ModelKind::Reward) if own == ModelKind::Reranker => Ok(ModelKind::Reward),
        // The body of a language model can embed; its head is left unused.
        Some(ModelKind::Embedding) if own == ModelKind::Lm => Ok(ModelKind::Embedding),
        // A name is no evidence: only the operator knows that a model was trained to judge.
        Some(ModelKind::Reranker) if matches!(own, ModelKind::Lm | ModelKind::Reward) => {
            Ok(ModelKind::Reranker)
        }
        Some(wanted) => Err(LoadError::Option(format!(
            "this checkpoint is of kind {}; it cannot be served as {}",
            own.as_str(),
            wanted.as_str()
        ))),
    }
}

/// Refuses a language model whose files ask for texts that are generated in ways of their own.
fn check_generation(
    assets: &Assets,
    kind: ModelKind,
    options: &LoadOptions,
) -> Result<(), LoadError> {
    if !matches!(kind, ModelKind::Lm | ModelKind::Reranker) {
        return Ok(());
    }
    if assets.has_tool_template && options.chat_template.is_none() {
        return Err(LoadError::Document {
            file: "tokenizer_config.json",
            what: "has a chat template `tool_use` beside the default one; name the file of the \
                   one that is to serve all chats with --chat-template"
                .to_owned(),
        });
    }
    match &assets.checkpoint.generation().unserved[..] {
        [first, ..] if options.generation_config => Err(LoadError::Document {
            file: "generation_config.json",
            what: format!(
                "has {first}, which is not supported; remove it, or take no defaults from that \
                 file (prelude serve --generation-config none)"
            ),
        }),
        _ => Ok(()),
    }
}

/// Returns the longest sequence served: by default what all files allow.
fn max_model_len(assets: &Assets, wanted: Option<u32>) -> Result<u32, LoadError> {
    let own = u32::try_from(assets.checkpoint.config().max_position_embeddings)
        .expect("the configuration bounds the positions");
    match wanted {
        None => Ok(assets.max_len.map_or(own, |len| len.min(own))),
        Some(len) if (1..=own).contains(&len) => Ok(len),
        Some(len) => Err(LoadError::Option(format!(
            "a maximum length of {len} tokens is not possible: the model is made for 1 to {own}"
        ))),
    }
}

/// Returns the pooling, and whether vectors are normalised, if the model embeds.
fn pooling(
    checkpoint: &Checkpoint,
    kind: ModelKind,
    wanted: Option<Pooling>,
) -> Result<Option<(Pooling, bool)>, LoadError> {
    match (checkpoint.kind(), kind, wanted) {
        (_, ModelKind::Decision, None) => Ok(None),
        (_, ModelKind::Decision, Some(_)) => Err(LoadError::Option(
            "a decision model embeds nothing; leave --pooling out".to_owned(),
        )),
        (CheckpointKind::Embedding { pooling, normalise }, ..) => {
            Ok(Some((wanted.unwrap_or(*pooling), *normalise)))
        }
        (CheckpointKind::CausalLm, ModelKind::Embedding, wanted) => {
            Ok(Some((wanted.unwrap_or(Pooling::Last), true)))
        }
        (CheckpointKind::CausalLm, _, Some(wanted)) => Ok(Some((wanted, true))),
        (CheckpointKind::CausalLm, _, None) => Ok(None),
        (
            CheckpointKind::SequenceClassification { .. }
            | CheckpointKind::TokenClassification { .. },
            _,
            None,
        ) => Ok(None),
        (CheckpointKind::SequenceClassification { .. }, _, Some(_)) => Err(LoadError::Option(
            "a classifier has no pooling to choose: its configuration says what its head reads"
                .to_owned(),
        )),
        (CheckpointKind::TokenClassification { .. }, _, Some(_)) => Err(LoadError::Option(
            "a classifier of tokens has no pooling to choose: its head reads each token".to_owned(),
        )),
    }
}

/// The parts of a model that endpoints need.
struct Abilities {
    kind: ModelKind,
    has_vocabulary: bool,
    chats: bool,
    decides: bool,
    pools: bool,
    ranks: bool,
    /// True if attention sees whole texts, so that no text is read behind another's.
    is_encoder: bool,
}

fn tasks(has: &Abilities) -> Vec<Task> {
    let classes = matches!(has.kind, ModelKind::Classifier | ModelKind::Reward);
    let all = [
        (Task::Completions, has.has_vocabulary),
        (Task::Chat, has.chats),
        (Task::Embeddings, has.pools),
        (
            Task::Classify,
            classes || (has.kind == ModelKind::Lm && has.chats),
        ),
        (
            Task::Score,
            !matches!(has.kind, ModelKind::Embedding | ModelKind::Decision) && !has.is_encoder,
        ),
        (Task::Pairs, has.ranks),
        (Task::Rerank, has.ranks),
        (
            Task::Pooling,
            has.pools || classes || has.kind == ModelKind::TokenClassifier,
        ),
        (Task::SystemOne, has.decides),
        (Task::Decisions, has.decides),
    ];
    let served = all.into_iter().filter(|(_, served)| *served);
    served.map(|(task, _)| task).collect()
}

/// Returns the way in which the model judges documents, if it does.
fn judge(
    assets: &Assets,
    kind: ModelKind,
    options: &LoadOptions,
) -> Result<Option<Judge>, LoadError> {
    let (checkpoint, tokenizer) = (assets.checkpoint.kind(), &assets.tokenizer);
    let is_asked = kind == ModelKind::Reranker || options.rerank_template.is_some();
    let encoder = assets.checkpoint.config().encoder.as_ref();
    if let Some(score) = assets.checkpoint.logit_score() {
        let (yes, no) = (score.true_token, score.false_token);
        return Ok(Some(Judge::YesNo { yes, no }));
    }
    match kind {
        ModelKind::Reranker if options.rerank_template.is_none() && encoder.is_some() => {
            Ok(Some(Judge::Pair))
        }
        ModelKind::Embedding if options.rerank_template.is_none() => {
            let is_cosine = assets.sentence.other_similarity.is_none();
            Ok(is_cosine.then_some(Judge::Cosine))
        }
        ModelKind::Lm | ModelKind::Reranker | ModelKind::Reward if !is_asked => Ok(None),
        ModelKind::Lm | ModelKind::Reranker if matches!(checkpoint, CheckpointKind::CausalLm) => {
            let token = |word: &str| match tokenizer.encode(word, false)[..] {
                [token] => Ok(token),
                _ => Err(LoadError::Option(format!(
                    "this model cannot rank documents: {word:?} is not one token to it"
                ))),
            };
            let (yes, no) = (token("yes")?, token("no")?);
            Ok(Some(Judge::YesNo { yes, no }))
        }
        ModelKind::Reranker | ModelKind::Reward if encoder.is_none() => Ok(Some(Judge::Class)),
        ModelKind::Reranker | ModelKind::Reward => Err(LoadError::Option(
            "a rerank template is of no use to an encoder, which reads a query and a document as a \
             pair; leave --rerank-template out"
                .to_owned(),
        )),
        _ if !is_asked => Ok(None),
        _ => Err(LoadError::Option(format!(
            "a rerank template is of no use to a model of kind {}",
            kind.as_str()
        ))),
    }
}

fn rerank_template(named: Option<&Path>) -> Result<RerankTemplate, LoadError> {
    match named {
        None => Ok(RerankTemplate::qwen3()),
        Some(name) if name.as_os_str() == "qwen3" => Ok(RerankTemplate::qwen3()),
        Some(path) => Ok(RerankTemplate::new(&read_template(path)?)?),
    }
}

fn decide_labels(template: &ChatTemplate, tokenizer: &Tokenizer) -> Result<DecideLabels, String> {
    let prompt = template
        .render(&ChatInputs {
            messages: &[json!({"role": "user", "content": "state"})],
            tools: None,
            documents: None,
            add_generation_prompt: true,
            kwargs: &no_thinking(),
        })
        .map_err(|e| e.to_string())?;
    DecideLabels::resolve(&prompt, |text| tokenizer.encode(text, false))
        .map_err(|e: Unfit| e.to_string())
}

/// Takes out the notes for the operator about a model's files.
fn take_warnings(assets: &mut Assets) -> Vec<String> {
    let mut warnings = std::mem::take(&mut assets.warnings);
    warnings.extend(tokenizer_warnings(&assets.tokenizer));
    warnings
}

/// Notes for the operator about the tokenizer's file.
fn tokenizer_warnings(tokenizer: &Tokenizer) -> impl Iterator<Item = String> {
    let patterns = tokenizer.warnings().iter();
    let patterns = patterns.map(|warning| format!("tokenizer.json: {warning}"));
    reassigned(tokenizer).into_iter().chain(patterns)
}

/// Returns a warning if the tokenizer's file states other ids for added tokens than it gets: the model
/// may have been trained with the stated ones.
fn reassigned(tokenizer: &Tokenizer) -> Option<String> {
    let [first, rest @ ..] = tokenizer.reassigned_tokens() else {
        return None;
    };
    let others = match rest.len() {
        0 => String::new(),
        more => format!(" (and {more} more)"),
    };
    Some(format!(
        "tokenizer.json states id {} for the added token {:?}{others}, but tokenizers that follow \
         its format use {}; if the model was trained with the stated ids, correct the file",
        first.stated, first.content, first.used
    ))
}

/// Returns the token that ends an assistant's turn: the tokenizer's end token, if the model knows it as
/// one.
fn end_of_turn(
    config: &crate::assets::TokenizerConfig,
    tokenizer: &Tokenizer,
    eos: &[u32],
) -> Option<u32> {
    let named = config
        .token("eos_token")
        .and_then(|t| tokenizer.token_to_id(t));
    named.or_else(|| eos.first().copied())
}

fn sampling(checkpoint: &Checkpoint, from_file: bool) -> SamplingDefaults {
    let neutral = SamplingDefaults::default();
    if !from_file {
        return neutral;
    }
    let file = checkpoint.generation();
    SamplingDefaults {
        temperature: file.temperature.unwrap_or(neutral.temperature),
        top_p: file.top_p.unwrap_or(neutral.top_p),
        top_k: file.top_k.unwrap_or(neutral.top_k),
        min_p: file.min_p.unwrap_or(neutral.min_p),
        repetition_penalty: file
            .repetition_penalty
            .unwrap_or(neutral.repetition_penalty),
    }
}

/// Returns a name for program version, dtype, quantization, shapes and a sample of every tensor that is
/// read: equal fingerprints mean equal numbers, for all practical purposes, without reading gigabytes.
fn fingerprint(checkpoint: &Checkpoint, config: &ExecutorConfig) -> String {
    let mut hash = Sha256::new();
    hash.update(env!("CARGO_PKG_VERSION"));
    hash.update(format!("{:?}", config.dtype));
    if let Some(quantization) = config.quantization {
        hash.update(format!("{quantization:?}"));
    }
    for name in checkpoint.names() {
        let Some((dtype, shape)) = checkpoint.form(name) else {
            // Not numbers: loading has refused such a tensor.
            continue;
        };
        hash.update(name);
        hash.update(format!("{dtype:?}{shape:?}"));
        for bytes in checkpoint.stored_parts(name) {
            hash.update(&bytes[..bytes.len().min(256)]);
        }
    }
    if let Some(decision) = checkpoint.decision() {
        hash.update(decision.signature());
    }
    let digest = hash.finalize();
    let hex: String = digest[..8].iter().map(|b| format!("{b:02x}")).collect();
    format!("fp_{hex}")
}

#[cfg(test)]
mod fields;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo;

    #[test]
    fn int8_weights_have_another_fingerprint() {
        let assets = Assets::embedded(&demo::CLASSIFIER).unwrap();
        let of = |quantization| {
            let config = ExecutorConfig {
                quantization,
                ..ExecutorConfig::default()
            };
            fingerprint(&assets.checkpoint, &config)
        };
        assert_eq!(of(None), of(None));
        assert_ne!(of(None), of(Some(crate::executor::Quantization::Int8)));
    }

    #[test]
    fn other_ids_than_stated_are_told() {
        let json = std::str::from_utf8(demo::LM.tokenizer).unwrap();
        let tokenizer = fasttoken::Tokenizer::from_bytes(json.as_bytes()).unwrap();
        let (id, token) = tokenizer.added_tokens().last().unwrap();
        let mut file: serde_json::Value = serde_json::from_str(json).unwrap();
        let added = file["added_tokens"].as_array_mut().unwrap();
        let stated = added
            .iter_mut()
            .find(|t| t["content"] == token.content)
            .unwrap();
        stated["id"] = (id + 5).into();
        let read = |json: &str| Tokenizer::from_bytes(json.as_bytes()).unwrap().0;
        assert_eq!(reassigned(&read(json)), None);
        let warning = reassigned(&read(&file.to_string())).unwrap();
        for part in [format!("{}", id + 5), format!("{:?} ", token.content)] {
            assert!(warning.contains(part.trim()), "{warning}");
        }
    }
}
