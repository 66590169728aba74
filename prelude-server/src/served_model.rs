//! A model as the edge sees it: its name, what it is for, its tokenizer, its engine.

use std::{collections::BTreeMap, fmt, sync::Arc};

use prelude_core::Pooling;
use prelude_engine::EngineHandle;
use prelude_models::ClassActivation;
use prelude_text::{
    decide::{AskWording, Calibration, DecideLabels},
    rerank_template::RerankTemplate,
    shared_prefix::SafeCuts,
    template::ChatTemplate,
    tokenizer::{Escaper, Tokenizer},
};
use serde::{Deserialize, Serialize};

use crate::{
    assets::TokenizerConfig,
    config::{ReasoningParser, ToolParser},
    constrain::Grammars,
    decider::Decider,
    executor::{HostMemory, PackedCheck},
};

/// The use of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ModelKind {
    /// A language model: a vocabulary head.
    Lm,
    /// A judge of documents: a vocabulary head asked for yes or no, or one label.
    Reranker,
    /// Vectors of texts.
    Embedding,
    /// A classification head of two labels or more.
    Classifier,
    /// A classification head of one label.
    Reward,
    /// A classification head over each token.
    TokenClassifier,
    /// A head over the options of typed questions.
    Decision,
}

impl ModelKind {
    /// Returns the kind's name in `--kind`, `/v1/models` and messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lm => "lm",
            Self::Reranker => "reranker",
            Self::Embedding => "embedding",
            Self::Classifier => "classifier",
            Self::Reward => "reward",
            Self::TokenClassifier => "token-classifier",
            Self::Decision => "decision",
        }
    }
}

/// A kind of request that a model may answer: one for each family of endpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Task {
    /// `/v1/completions`.
    Completions,
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/embeddings`.
    Embeddings,
    /// `/classify`.
    Classify,
    /// `/score`.
    Score,
    /// `/v1/systemone`.
    SystemOne,
    /// `/v1/decisions`.
    Decisions,
    /// `/rerank`.
    Rerank,
    /// `/score` of pairs.
    Pairs,
    /// `/pooling`.
    Pooling,
}

impl Task {
    /// Returns the task's name in `/v1/models` and messages.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completions => "completions",
            Self::Chat => "chat",
            Self::Embeddings => "embeddings",
            Self::Classify => "classify",
            Self::Score => "score",
            Self::SystemOne => "systemone",
            Self::Decisions => "decisions",
            Self::Rerank => "rerank",
            Self::Pairs => "score of pairs",
            Self::Pooling => "pooling",
        }
    }
}

impl ModelKind {
    /// Returns true if models of this kind are made for a task that models of other kinds may serve
    /// too.
    pub(crate) const fn is_made_for(self, task: Task) -> bool {
        match task {
            Task::Completions | Task::Chat => matches!(self, Self::Lm),
            Task::SystemOne | Task::Decisions => matches!(self, Self::Lm | Self::Decision),
            Task::Embeddings => matches!(self, Self::Embedding),
            Task::Classify => matches!(self, Self::Classifier),
            Task::Rerank | Task::Pairs => matches!(self, Self::Reranker),
            Task::Score | Task::Pooling => false,
        }
    }

    /// Returns the flag with which a model of this kind also serves `task`, if there is one.
    pub(crate) const fn flag_for(self, task: Task) -> Option<&'static str> {
        match (self, task) {
            (Self::Lm, Task::Embeddings | Task::Pooling) => Some("--pooling last"),
            (Self::Lm | Self::Reward, Task::Rerank | Task::Pairs) => {
                Some("--rerank-template qwen3")
            }
            _ => None,
        }
    }
}

/// Sampling parameters of requests that name none: `generation_config.json`, or neutral.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SamplingDefaults {
    /// 0 is greedy.
    pub temperature: f32,
    /// 1 is off.
    pub top_p: f32,
    /// 0 is off.
    pub top_k: u32,
    /// 0 is off.
    pub min_p: f32,
    /// 1 is off.
    pub repetition_penalty: f32,
}

impl Default for SamplingDefaults {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repetition_penalty: 1.0,
        }
    }
}

/// The means by which a model judges whether a document answers a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Judge {
    /// The answer yes or no behind the rerank template.
    YesNo {
        /// The token of yes.
        yes: u32,
        /// The token of no.
        no: u32,
    },
    /// The one logit of the model's classification head behind the rerank template.
    Class,
    /// The one logit of an encoder that reads both texts as a pair: a cross-encoder.
    Pair,
    /// The cosine of two embeddings.
    Cosine,
}

/// The judge of documents of a model that is asked by prompts or reads pairs.
#[derive(Clone, Debug)]
pub struct Judging {
    /// The output that is read.
    pub judge: Judge,
    /// Prompts that ask about a query and a document, unless the model reads both as a pair.
    pub template: Option<Arc<RerankTemplate>>,
    /// The activation of a pair's score.
    pub activation: ClassActivation,
}

/// The vectors that a model makes of texts.
#[derive(Clone, Debug)]
pub struct Vectors {
    /// The hidden states that an embedding combines.
    pub pooling: Pooling,
    /// True if embeddings are scaled to length 1 unless a request says otherwise.
    pub normalise: bool,
    /// Length of an embedding before cutting.
    pub embedding_size: u32,
    /// Length of a token's vector before cutting.
    pub hidden_size: u32,
    /// Components of an embedding of a text, unless a request says otherwise, if they are fewer than
    /// the model computes.
    pub truncate_dim: Option<u32>,
    /// Sizes to which embeddings may be cut; empty if any will do.
    pub matryoshka: Vec<u32>,
    /// Prompts by name.
    pub prompts: BTreeMap<String, String>,
    /// Text before inputs, unless a request says otherwise; mostly empty.
    pub default_prompt: String,
    /// True if a document is judged by the cosine of its vector and the query's.
    pub has_cosine: bool,
}

/// The properties of a model that predicts the next token.
#[derive(Debug)]
pub struct Words {
    /// Ids that end a text.
    pub eos_token_ids: Vec<u32>,
    /// The token that ends an assistant's turn.
    pub end_of_turn: Option<u32>,
    /// Sampling parameters of requests that name none.
    pub sampling: SamplingDefaults,
    /// The form of the model's reasoning; `None` is the server's.
    pub reasoning_parser: Option<ReasoningParser>,
    /// The form of the model's tool calls; `None` is the server's.
    pub tool_parser: Option<ToolParser>,
    /// Label tokens of typed decisions, if the tokenizer has them.
    pub labels: Option<Arc<DecideLabels>>,
    /// The words in which typed questions are asked, if they are not those of `prelude-decide-1`.
    pub wording: Option<Arc<AskWording>>,
    /// Temperatures of typed decisions by type of question, if they differ from the server's.
    pub calibration: Option<Calibration>,
    /// Compiled constraints.
    pub(crate) grammars: Grammars,
    /// The vectors of texts, if the model is asked to embed too.
    pub vectors: Option<Vectors>,
    /// The judge of documents, if the model is asked to judge too.
    pub judging: Option<Judging>,
}

/// The properties of a model with a classification head.
#[derive(Clone, Debug)]
pub struct Classes {
    /// Names in the order of the logits.
    pub names: Vec<String>,
    /// The activation: what `problem_type` says.
    pub activation: ClassActivation,
    /// True if the classes of a text are read from the mean of its tokens, so that single tokens
    /// have none.
    pub of_mean: bool,
    /// The judge of documents, if the one class is a score of pairs.
    pub judging: Option<Judging>,
}

/// The head of a model, with all that only models of such a head have.
#[derive(Debug)]
#[non_exhaustive]
pub enum Purpose {
    /// A vocabulary head.
    Words(Box<Words>),
    /// A classification head.
    Classes(Classes),
    /// No head: hidden states are the output.
    Vectors(Vectors),
    /// A head over the options of typed questions, with the prompt that the model is asked by.
    Decisions(Decider),
}

/// The rules by which texts of callers become prompts.
pub struct PromptForm {
    /// The model's own chat template, if it has one.
    pub template: Option<Arc<ChatTemplate>>,
    /// Special tokens and the like.
    pub tokenizer_config: TokenizerConfig,
    /// The places at which rendered prompts may be cut.
    pub cuts: SafeCuts,
    /// The means to make special tokens in texts of callers plain text, if there is one.
    pub(crate) escaper: Option<Escaper>,
    /// The types of tokens that the model has: with two, those of a pair's second text have type 1.
    pub token_types: u32,
}

/// The part of a model that is in this machine's memory.
#[derive(Debug, Default)]
pub struct OnHost {
    /// The memory that the model was planned to take, if it runs here.
    pub memory: Option<HostMemory>,
    /// The check of packed weights, which begins when the model is in service.
    pub packed_check: Option<PackedCheck>,
}

/// A model ready to answer.
pub struct ServedModel {
    /// The name that answers, metrics and logs use.
    pub name: String,
    /// Other names by which requests may ask for the model.
    pub aliases: Vec<String>,
    /// The use of the checkpoint.
    pub kind: ModelKind,
    /// The head and what belongs to it.
    pub purpose: Purpose,
    /// The tasks of the model, in the order in which they are listed.
    pub tasks: Vec<Task>,
    /// Text to ids and back.
    pub tokenizer: Arc<Tokenizer>,
    /// The way from a caller's text to a prompt.
    pub form: PromptForm,
    /// Longest sequence served, in tokens.
    pub max_model_len: u32,
    /// True if texts over the context are cut unless a request says otherwise. Prompts of generations
    /// are not.
    pub auto_truncate: bool,
    /// Token ids of texts are below this (rows of the embedding matrix).
    pub vocab_size: u32,
    /// The engine that computes requests.
    pub engine: EngineHandle,
    /// The memory that the model takes here.
    pub host: OnHost,
    /// The time at which the model was loaded, in seconds since 1970.
    pub created: u64,
    /// Names weights, dtype and kernels: `system_fingerprint`.
    pub fingerprint: String,
    /// The commit on the Hub, if the model's folder is one of its cache.
    pub revision: Option<String>,
}

impl ServedModel {
    /// Returns every name that requests may use, the model's own first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.name).chain(self.aliases.iter().map(String::as_str))
    }

    /// Returns true if the model scores tokens of its vocabulary.
    #[must_use]
    pub fn has_vocabulary(&self) -> bool {
        self.serves(Task::Completions)
    }

    /// Returns true if the model answers this kind of request.
    #[must_use]
    pub fn serves(&self, task: Task) -> bool {
        self.tasks.contains(&task)
    }

    /// Returns what a model with a vocabulary head has.
    #[must_use]
    pub fn words(&self) -> Option<&Words> {
        match &self.purpose {
            Purpose::Words(words) => Some(words),
            _ => None,
        }
    }

    /// Returns what a decision model has.
    #[must_use]
    pub const fn decider(&self) -> Option<&Decider> {
        match &self.purpose {
            Purpose::Decisions(decider) => Some(decider),
            _ => None,
        }
    }

    /// Returns what a model with a classification head has.
    #[must_use]
    pub const fn classes(&self) -> Option<&Classes> {
        match &self.purpose {
            Purpose::Classes(classes) => Some(classes),
            _ => None,
        }
    }

    /// Returns the class names in the order of the logits; none without a classification head.
    #[must_use]
    pub fn class_names(&self) -> &[String] {
        self.classes().map_or(&[], |classes| &classes.names)
    }

    /// Returns the activation of classes: none without a classification head.
    #[must_use]
    pub fn class_activation(&self) -> ClassActivation {
        let classes = self.classes();
        classes.map_or(ClassActivation::Identity, |classes| classes.activation)
    }

    /// Returns the properties of the model's embeddings, if it embeds.
    #[must_use]
    pub const fn vectors(&self) -> Option<&Vectors> {
        match &self.purpose {
            Purpose::Words(words) => words.vectors.as_ref(),
            Purpose::Vectors(vectors) => Some(vectors),
            Purpose::Classes(_) | Purpose::Decisions(_) => None,
        }
    }

    /// Returns the judge of a model that is asked by prompts or reads pairs.
    #[must_use]
    pub const fn judging(&self) -> Option<&Judging> {
        match &self.purpose {
            Purpose::Words(words) => words.judging.as_ref(),
            Purpose::Classes(classes) => classes.judging.as_ref(),
            Purpose::Vectors(_) | Purpose::Decisions(_) => None,
        }
    }

    /// Returns the means by which the model judges documents, if it does.
    #[must_use]
    pub fn judge(&self) -> Option<Judge> {
        match &self.purpose {
            Purpose::Vectors(vectors) => vectors.has_cosine.then_some(Judge::Cosine),
            _ => self.judging().map(|judging| judging.judge),
        }
    }

    /// Returns the vocabulary's part of a model that was chosen for a task of its vocabulary.
    pub(crate) fn generates(&self) -> &Words {
        self.words()
            .expect("a model that generates has a vocabulary")
    }

    /// Returns the vectors' part of a model that was chosen for a task of vectors.
    pub(crate) const fn embeds(&self) -> &Vectors {
        self.vectors()
            .expect("a model that serves embeddings pools")
    }

    /// Returns the judge's part of a model that was chosen to judge, other than by vectors.
    pub(crate) const fn judges(&self) -> &Judging {
        self.judging()
            .expect("a model that judges prompts has a judge")
    }

    /// Returns the places at which texts that get the tokenizer's special tokens may be cut.
    #[must_use]
    pub fn text_cuts(&self) -> SafeCuts {
        // Parts would get the special tokens each; a tokenizer that adds none has no such parts.
        match self.tokenizer.count("a", true) == self.tokenizer.count("a", false) {
            true => self.form.cuts,
            false => SafeCuts::Unknown,
        }
    }
}

impl fmt::Debug for ServedModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedModel")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .finish_non_exhaustive()
    }
}
