//! The command line.

use std::{net::IpAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use prelude_core::Pooling;
use prelude_server::{
    ModelKind, ReasoningParser, ToolParser,
    executor::{DeviceChoice, ExecutorDtype, Quantization},
    resolve_host,
};
use serde::{Deserialize, Serialize};

use crate::wording::{self, Wording};

const EXAMPLES: &str = "\
Try it, nothing to download (the program carries two small demo models):
  prelude                                    serve them on http://127.0.0.1:8000
  prelude classify 'Where is my card?'       one answer, no server
  prelude serve Qwen/Qwen3-0.6B              serve a model of the Hugging Face Hub
  prelude serve ./Qwen3-0.6B --port 8001     serve a model folder

A model folder holds config.json, model.safetensors (or shards) and tokenizer.json, as published.
Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 model not loaded, 4 engine lost.";

const SERVE: &str = "\
Examples:
  prelude serve Qwen/Qwen3-0.6B    from the Hugging Face Hub, or the cache that Python's library shares
  prelude serve ./Qwen3-0.6B --port 8001
  prelude serve ./Qwen3-0.6B --rerank-template qwen3 --pooling last    rank and embed as well
  prelude serve judge=Qwen/Qwen3-0.6B embed=BAAI/bge-small-en-v1.5     two models, chosen by `model`
  prelude serve --print-config > prelude.toml                          settings, for --config";
const PULL: &str = "\
Examples:
  prelude pull Qwen/Qwen3-0.6B
  HF_TOKEN=hf_.. prelude pull meta-llama/Llama-3.2-1B-Instruct
  HF_HUB_OFFLINE=1 prelude serve Qwen/Qwen3-0.6B    later, without a network

HF_HOME, HF_HUB_CACHE, HF_ENDPOINT, HF_TOKEN and HTTPS_PROXY mean what they mean to Python's library.";
const CLASSIFY: &str = "\
Examples:
  prelude classify 'Where is my card?'
  prelude classify --labels card,transfer,exchange 'Where is my card?'
  prelude classify --format json --input messages.txt";
const EMBED: &str = "\
Examples:
  prelude embed 'Where is my card?'
  prelude embed -m ./Qwen3-0.6B --pooling mean --input messages.txt";
const RERANK: &str = "\
Example:
  prelude rerank --query 'Where is my card?' 'Cards are sent by post.' 'Rates change daily.'";
const DECIDE: &str = r#"Example:
  echo '{"state": "Where is my card?", "questions": {
    "lost": {"type": "noul", "instructions": "Is a card lost?"},
    "topic": {"type": "choice", "instructions": "Which topic?", "criteria": {"card": null, "cash": null}}
  }}' | prelude decide -"#;
const RUN_BATCH: &str = "\
Examples:
  prelude run-batch -i requests.jsonl -o answers.jsonl
  prelude run-batch -i requests.jsonl -o answers.jsonl --resume    only what is not answered yet";
const PROFILE: &str = "\
Examples:
  prelude profile ./Qwen3-0.6B -o profile.json
  prelude serve ./Qwen3-0.6B --profile profile.json";
const TOKENIZE: &str = "\
Examples:
  prelude tokenize 'Where is my card?'
  prelude tokenize --format json --input messages.txt";
const COMPLETIONS: &str = "\
Examples:
  prelude completions bash > ~/.local/share/bash-completion/completions/prelude
  prelude completions zsh > ~/.zfunc/_prelude    in a folder of fpath
  prelude completions fish > ~/.config/fish/completions/prelude.fish";
const MAN: &str = "\
Example:
  prelude man ~/.local/share/man/man1 && man prelude-serve";

/// Serve decisions made by language models: classes, scores, embeddings, typed decisions,
/// one-token answers, and chat beside them, over an OpenAI-compatible API.
///
/// Without a command: `prelude serve` on the demo models.
#[derive(Debug, Parser)]
#[command(name = "prelude", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Answer requests over HTTP.
    #[command(after_help = SERVE)]
    Serve(Box<ServeArgs>),
    /// Download a model from the Hugging Face Hub and print its folder.
    ///
    /// Fetches the newest files of the revision, as far as the cache lacks them, and checks their
    /// hashes. Goes on where an earlier download was cut.
    #[command(after_help = PULL)]
    Pull(PullArgs),
    /// Print the class of each text.
    ///
    /// With --labels, a language model chooses among them; else a classifier among its own.
    #[command(after_help = CLASSIFY)]
    Classify(ClassifyArgs),
    /// Print the continuation of each text
    ///
    /// Three ways to say which texts and which model:
    ///   prelude complete 'Where is my'                  the demo model
    ///   prelude complete -m ./Qwen3-0.6B 'Where is my'  another one, texts as arguments or lines
    ///   prelude complete ./Qwen3-0.6B -p 'Where is my'  the same; -p may be given several times
    #[command(verbatim_doc_comment)]
    Complete(CompleteArgs),
    /// Print the embedding of each text.
    #[command(after_help = EMBED)]
    Embed(EmbedArgs),
    /// Print texts in the order of their relevance to a query.
    ///
    /// Without --model, the demo language model judges by its yes and no; it was not trained to.
    #[command(after_help = RERANK)]
    Rerank(RerankArgs),
    /// Answer typed questions about a state.
    #[command(after_help = DECIDE)]
    Decide(DecideArgs),
    /// Answer a file of requests, one JSON object per line, into a file of answers.
    ///
    /// A line: {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {..}}.
    /// Exit codes: 0 every line was answered 200, 2 some were not, 1 file or model unusable, or
    /// the engine was lost.
    #[command(after_help = RUN_BATCH)]
    RunBatch(RunBatchArgs),
    /// Measure a model on this machine, for a server that plans by it.
    ///
    /// Runs steps of prompts and generations of many lengths, numbers of cached tokens and batch
    /// sizes, prints their times beside what a fit to them says, and writes the fit to a file. The
    /// file is for `prelude serve --profile` and for simulations; it holds for this model, device
    /// and number of threads alone. Nothing else should run meanwhile.
    #[command(after_help = PROFILE)]
    Profile(ProfileArgs),
    /// Print the token ids of each text.
    #[command(after_help = TOKENIZE)]
    Tokenize(TokenizeArgs),
    /// Print what makes a shell complete this program's commands and flags.
    #[command(after_help = COMPLETIONS)]
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write a man page for each command into a folder.
    #[command(after_help = MAN)]
    Man {
        /// The folder; it is made if there is none.
        #[arg(value_name = "DIR")]
        folder: PathBuf,
    },
    /// Print which parts of CUDA this machine has.
    Cuda {
        #[command(subcommand)]
        command: CudaCommand,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum CudaCommand {
    /// Print driver, GPU, libraries with their paths, and kernels.
    Info {
        /// Number of the GPU, as the driver counts them.
        #[arg(long, default_value_t = 0)]
        device: u32,
    },
}

/// Options of a model: the same for servers and single answers.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct ModelArgs {
    /// Branch, tag or commit of a model on the Hub [default: main].
    #[arg(long, value_name = "REVISION")]
    pub(crate) revision: Option<String>,
    /// The model that MODEL, the folder of a LoRA adapter, changes: a folder, or a name on the Hub, of
    /// which --revision is then [default: the folder that the adapter names].
    #[arg(long, value_name = "MODEL")]
    pub(crate) base: Option<PathBuf>,
    /// Words in which a language model is asked typed questions: prelude-decide-1, tev1, or a file in TOML
    /// [default: prelude-decide-1].
    #[arg(long, value_parser = wording::read, value_name = "NAME|FILE")]
    pub(crate) decide_format: Option<Wording>,
    /// Serve the plain model of a folder with files by which a decision model decides: without its head,
    /// prompt and calibration.
    #[arg(long)]
    pub(crate) plain: bool,
    /// Device: auto, cpu, cuda or cuda:N (a program built with the feature cuda). Auto takes the GPU
    /// for one model, if there are a driver and kernels, and says so [default: auto].
    #[arg(long)]
    pub(crate) device: Option<DeviceChoice>,
    /// Arithmetic; auto follows the checkpoint.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) dtype: Dtype,
    /// Round weights when the model is loaded, which halves their memory and changes answers a
    /// little: int8 on the CPU, which generates a token in about 0.6 times the time; fp8 on GPUs of
    /// compute capability 8.9 and up, for decoders. On the CPU fp8 rounds as a GPU
    /// does, and saves nothing. A checkpoint in fp8 with blocks of 128 × 128 is multiplied in fp8 as it
    /// is stored [default: none].
    #[arg(long, value_parser = named::<Quantization>, value_name = "int8|fp8")]
    pub(crate) quantization: Option<Quantization>,
    /// Task of the checkpoint, where there is a choice (an lm can be served as embedding
    /// or reranker, a reward model as reranker).
    #[arg(long, value_parser = named::<ModelKind>, value_name = "lm|reranker|embedding|classifier|reward|token-classifier")]
    pub(crate) kind: Option<ModelKind>,
    /// Longest sequence served, in tokens; by default the model's own limit.
    #[arg(long, value_name = "TOKENS")]
    pub(crate) max_model_len: Option<u32>,
    /// Cut texts over the context, unless a request says otherwise, where they are classified, ranked
    /// or embedded; without it they are refused.
    #[arg(long)]
    pub(crate) auto_truncate: bool,
    /// KV blocks in memory; by default as many as the executor's memory settings hold.
    #[arg(long, value_name = "COUNT")]
    pub(crate) kv_blocks: Option<u32>,
    /// Tokens per KV block.
    #[arg(long, value_name = "TOKENS")]
    pub(crate) block_size: Option<u32>,
    /// A chat template instead of the model's own.
    #[arg(long, value_name = "FILE")]
    pub(crate) chat_template: Option<PathBuf>,
    /// Prompt about a query and a document: qwen3, or a template file over instruction, query
    /// and document. Makes an lm or a reward model rank documents.
    #[arg(long, value_name = "qwen3|FILE")]
    pub(crate) rerank_template: Option<PathBuf>,
    /// Pooling of embeddings; makes an lm serve them too.
    #[arg(long, value_parser = named::<Pooling>, value_name = "cls|last|mean")]
    pub(crate) pooling: Option<Pooling>,
}

#[derive(Clone, Debug, Default, Args)]
pub(crate) struct ServeArgs {
    /// Folder of the model, or its name on the Hugging Face Hub; the demo models without it. Several
    /// models have names, by which requests choose: judge=MODEL embed=MODEL. The table
    /// `[models.judge]` of the settings has what is said of one of them.
    #[arg(value_name = "[NAME=]MODEL")]
    pub(crate) models: Vec<PathBuf>,
    /// The names requests may use, the first of which answers carry; by default the folder's.
    /// Everything behind it is a name, so MODEL goes before it.
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub(crate) served_model_name: Vec<String>,
    /// Address or name to listen on [default: 127.0.0.1].
    #[arg(long, value_parser = resolve_host)]
    pub(crate) host: Option<IpAddr>,
    /// Port to listen on; 0 lets the system choose [default: 8000].
    #[arg(long)]
    pub(crate) port: Option<u16>,
    #[command(flatten)]
    pub(crate) model_args: ModelArgs,
    /// Sampling parameters of requests that name none: auto reads generation_config.json
    /// [default: auto].
    #[arg(long, value_enum, help_heading = "Model")]
    pub(crate) generation_config: Option<GenerationConfig>,
    /// Most sequences generating at once [default: 256].
    #[arg(long, value_name = "COUNT", help_heading = "Scheduling")]
    pub(crate) max_num_seqs: Option<u32>,
    /// Most tokens computed in one step [default: 2048 while texts grow; otherwise 8192 on a GPU].
    #[arg(long, value_name = "TOKENS", help_heading = "Scheduling")]
    pub(crate) max_num_batched_tokens: Option<u32>,
    /// Remember prompt prefixes between requests: the default.
    #[arg(
        long,
        help_heading = "Scheduling",
        overrides_with = "no_enable_prefix_caching"
    )]
    pub(crate) enable_prefix_caching: bool,
    /// Forget prompt prefixes between requests.
    #[arg(long, help_heading = "Scheduling")]
    pub(crate) no_enable_prefix_caching: bool,
    /// Order in which waiting requests are scheduled: auto, what takes the least time first, and none
    /// for ever last; fcfs, by arrival; srjf, one-shot requests with the fewest uncached tokens first;
    /// groups, by the cached share of the prompt; laps, short prompts apart from long ones;
    /// round-robin, long prompts in turns, a chunk each [default: auto].
    #[arg(long, value_name = "NAME", help_heading = "Scheduling")]
    pub(crate) policy: Option<String>,
    /// Measured times of this model on this device, by `prelude profile`: auto and srjf order by them,
    /// laps has its boundary from them, and predicted waits follow from them.
    #[arg(long, value_name = "FILE", help_heading = "Scheduling")]
    pub(crate) profile: Option<PathBuf>,
    /// Give the same bits whatever else is in a step, also on a GPU; the CPU always does.
    #[arg(long, help_heading = "Scheduling")]
    pub(crate) deterministic: bool,
    /// Most alternatives a request may see beside a token; -1 allows the vocabulary [default: 20].
    #[arg(
        long,
        value_name = "COUNT",
        allow_negative_numbers = true,
        help_heading = "Requests"
    )]
    pub(crate) max_logprobs: Option<i64>,
    /// Form of the model's reasoning: qwen3 separates it from the content.
    #[arg(long, value_parser = named::<ReasoningParser>, value_name = "qwen3", help_heading = "Requests")]
    pub(crate) reasoning_parser: Option<ReasoningParser>,
    /// Form of the model's tool calls: hermes makes its blocks tool_calls.
    #[arg(long, value_parser = named::<ToolParser>, value_name = "hermes", help_heading = "Requests")]
    pub(crate) tool_parser: Option<ToolParser>,
    /// A key that clients must send. Visible in process lists: prefer --api-key-file.
    #[arg(long, value_name = "KEY", help_heading = "Requests")]
    pub(crate) api_key: Option<String>,
    /// True if `api_key` came from the environment, which other users cannot list.
    #[arg(skip)]
    pub(crate) api_key_is_private: bool,
    /// A file of keys, one per line, # for comments; read again on SIGHUP.
    #[arg(long, value_name = "FILE", help_heading = "Requests")]
    pub(crate) api_key_file: Option<PathBuf>,
    /// Time after a stop signal during which new work is still taken: 5s or 500ms [default: 5s].
    #[arg(long = "drain-delay", value_parser = milliseconds, value_name = "TIME", help_heading = "Requests")]
    pub(crate) drain_delay_ms: Option<u64>,
    /// Time that running work then has to finish [default: 60s].
    #[arg(long = "drain-timeout", value_parser = milliseconds, value_name = "TIME", help_heading = "Requests")]
    pub(crate) drain_timeout_ms: Option<u64>,
    /// Makes the seeds of requests that name none the same in every run.
    #[arg(long, value_name = "N", help_heading = "Requests")]
    pub(crate) seed: Option<u64>,
    /// Amount of output on stderr: failures alone, or a line for each request too [default: info].
    #[arg(long, value_enum, value_name = "LEVEL")]
    pub(crate) log_level: Option<LogLevel>,
    /// Write the first 256 characters of each request's prompt to stderr.
    #[arg(long)]
    pub(crate) log_prompts: bool,
    /// Settings in TOML; flags and `PRELUDE_<TABLE>__<FIELD>` in the environment win over it.
    /// --print-config shows those that have a value.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Print the settings in effect and exit.
    #[arg(long)]
    pub(crate) print_config: bool,
}

#[derive(Debug, Args)]
pub(crate) struct PullArgs {
    /// Name of the model: OWNER/MODEL.
    #[arg(value_name = "NAME")]
    pub(crate) name: String,
    /// Branch, tag or commit [default: main].
    #[arg(long, value_name = "REVISION")]
    pub(crate) revision: Option<String>,
}

/// Source of the texts: arguments, a file, or standard input.
#[derive(Clone, Debug, Args)]
pub(crate) struct TextArgs {
    /// Texts; without any, lines of --input or of standard input.
    pub(crate) texts: Vec<String>,
    /// Read texts from a file, one per line.
    #[arg(long, value_name = "FILE", conflicts_with = "texts")]
    pub(crate) input: Option<PathBuf>,
    /// Lines are JSON: a string, or an object with a field `text`.
    #[arg(long)]
    pub(crate) jsonl: bool,
}

/// The model and the form of the output.
#[derive(Clone, Debug, Args)]
pub(crate) struct OneShotArgs {
    /// Folder of the model, or its name on the Hugging Face Hub; a demo model without it.
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,
    /// text is for reading; json prints what the server would answer.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
    #[command(flatten)]
    pub(crate) model_args: ModelArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ClassifyArgs {
    #[command(flatten)]
    pub(crate) texts: TextArgs,
    /// Labels for a language model to choose from, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "A,B,..")]
    pub(crate) labels: Vec<String>,
    /// The user turn around each text, such as "{{ text }}\nWhich topic?" (with --labels).
    #[arg(long, requires = "labels")]
    pub(crate) template: Option<String>,
    #[command(flatten)]
    pub(crate) common: OneShotArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CompleteArgs {
    #[command(flatten)]
    pub(crate) texts: TextArgs,
    /// A text. With it, the one argument that may stand beside it is the model's folder.
    #[arg(short = 'p', long = "prompt", value_name = "TEXT", conflicts_with_all = ["input", "jsonl"])]
    pub(crate) prompts: Vec<String>,
    /// Most tokens to generate.
    #[arg(short = 'n', long, default_value_t = 16)]
    pub(crate) max_tokens: u32,
    /// 0 always takes the likeliest token.
    #[arg(short, long, default_value_t = 0.0)]
    pub(crate) temperature: f64,
    /// Repeats the same draw.
    #[arg(long)]
    pub(crate) seed: Option<i64>,
    /// Put each text into the chat template as the user's turn, with thinking off.
    #[arg(long)]
    pub(crate) chat: bool,
    #[command(flatten)]
    pub(crate) common: OneShotArgs,
}

#[derive(Debug, Args)]
pub(crate) struct EmbedArgs {
    #[command(flatten)]
    pub(crate) texts: TextArgs,
    #[command(flatten)]
    pub(crate) common: OneShotArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RerankArgs {
    #[command(flatten)]
    pub(crate) texts: TextArgs,
    /// Query that the texts are ranked for.
    #[arg(long)]
    pub(crate) query: String,
    /// Definition of relevance.
    #[arg(long)]
    pub(crate) instruction: Option<String>,
    /// Most texts to print.
    #[arg(long, value_name = "COUNT")]
    pub(crate) top_n: Option<u32>,
    #[command(flatten)]
    pub(crate) common: OneShotArgs,
}

#[derive(Debug, Args)]
pub(crate) struct DecideArgs {
    /// A request as POST /v1/systemone takes it; - is standard input.
    #[arg(value_name = "FILE.json")]
    pub(crate) request: PathBuf,
    #[command(flatten)]
    pub(crate) common: OneShotArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RunBatchArgs {
    /// Requests; - is standard input.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) input: PathBuf,
    /// Answers; - is standard output.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Lines in memory at once, asked in an order that lets common prompt prefixes meet.
    #[arg(long, default_value_t = 4_096, value_name = "LINES")]
    pub(crate) window: usize,
    /// Write answers in the order of their requests, not as they come.
    #[arg(long)]
    pub(crate) ordered: bool,
    /// Skip requests whose answers the output has already; ask again what never ran and what was
    /// answered 429 or 5xx (the last line of a custom_id counts then).
    #[arg(long)]
    pub(crate) resume: bool,
    /// Folder of the model, or its name on the Hugging Face Hub; the demo models without it.
    #[arg(short, long, value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,
    /// Settings in TOML, as `prelude serve` takes them.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) model_args: ModelArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ProfileArgs {
    /// Folder of the model, or its name on the Hugging Face Hub; the demo language model without it.
    #[arg(value_name = "MODEL")]
    pub(crate) model: Option<PathBuf>,
    /// File to write; one that is there is replaced.
    #[arg(short, long, value_name = "FILE", default_value = "profile.json")]
    pub(crate) output: PathBuf,
    /// Most seconds to measure, after loading. More measures longer prompts and averages noise.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub(crate) seconds: u64,
    /// Settings in TOML, as `prelude serve` takes them.
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) model_args: ModelArgs,
}

#[derive(Debug, Args)]
pub(crate) struct TokenizeArgs {
    #[command(flatten)]
    pub(crate) texts: TextArgs,
    #[command(flatten)]
    pub(crate) common: OneShotArgs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Text,
    Json,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum GenerationConfig {
    #[default]
    Auto,
    None,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogLevel {
    Error,
    Info,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dtype {
    #[default]
    Auto,
    F32,
    Bf16,
}

impl Dtype {
    pub(crate) fn choice(self) -> Option<ExecutorDtype> {
        match self {
            Self::Auto => None,
            Self::F32 => Some(ExecutorDtype::F32),
            Self::Bf16 => Some(ExecutorDtype::Bf16),
        }
    }
}

/// Parses a name that a setting has in files and on the command line alike.
fn named<T: serde::de::DeserializeOwned>(name: &str) -> Result<T, String> {
    let value = serde_json::Value::from(name);
    serde_json::from_value(value).map_err(|e| e.to_string())
}

/// Parses a time with its unit, and returns milliseconds.
fn milliseconds(text: &str) -> Result<u64, String> {
    let number = |digits: &str| digits.parse::<u64>().ok();
    let found = match text.strip_suffix("ms") {
        Some(digits) => number(digits),
        None if text == "0" => Some(0),
        None => text
            .strip_suffix('s')
            .and_then(number)
            .and_then(|seconds| seconds.checked_mul(1_000)),
    };
    found.ok_or_else(|| "must be a number of s or ms, such as 5s or 500ms".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn times_have_units() {
        let check = |text, expected| assert_eq!(milliseconds(text).ok(), expected, "{text}");
        check("5s", Some(5_000));
        check("500ms", Some(500));
        check("0", Some(0));
        for wrong in [
            "5",
            "s",
            "ms",
            "-1s",
            "1.5s",
            "1m",
            "",
            "18446744073709551615s",
        ] {
            check(wrong, None);
        }
    }

    #[test]
    fn commands_parse() {
        let check = |line: &str, ok: bool| {
            let parsed = Cli::try_parse_from(line.split(' '));
            assert_eq!(parsed.is_ok(), ok, "{line}: {parsed:?}");
        };
        check("prelude", true);
        check("prelude serve", true);
        check(
            "prelude serve ./m --port 0 --max-logprobs -1 --dtype f32 --pooling last",
            true,
        );
        check("prelude serve ./m --quantization int8", true);
        check("prelude serve ./m --quantization fp8", true);
        check("prelude serve ./m --quantization int4", false);
        check("prelude serve ./m --served-model-name a b --port 0", true);
        check(
            "prelude serve --policy fcfs --deterministic --log-level error",
            true,
        );
        check("prelude serve --log-level loud", false);
        check(
            "prelude serve --drain-delay 5s --drain-timeout 1500ms --log-prompts",
            true,
        );
        check("prelude serve --drain-delay 5", false);
        check(
            "prelude serve --no-enable-prefix-caching --enable-prefix-caching",
            true,
        );
        check("prelude serve --host localhost", true);
        check("prelude serve --host ::1", true);
        check("prelude serve --port 70000", false);
        check("prelude serve --no-such-flag", false);
        check("prelude classify hello --labels a,b", true);
        check("prelude classify hello --template x", false);
        check("prelude classify hello --input f", false);
        check("prelude decide", false);
        check("prelude pull a/b --revision v1", true);
        check("prelude pull", false);
        check("prelude serve a/b --revision v1", true);
        check("prelude serve judge=a/b embed=c/d --port 0", true);
        check("prelude serve --device auto", true);
        check("prelude serve --device cuda:1", true);
        check("prelude serve --device tpu", false);
        check("prelude cuda info", true);
        check("prelude cuda", false);
        check("prelude speak", false);
    }
}
