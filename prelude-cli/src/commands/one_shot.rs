//! Commands that answer and end: the server's own handlers, without a port.

use std::{fmt::Write as _, io::Read as _, sync::Arc};

use prelude_core::Pooling;
use prelude_engine::ScheduledEngine;
use prelude_server::{ApiKeys, App, ModelKind, assets::EmbeddedModel, demo};
use serde_json::{Value, json};

use super::{Code, Environment, Failure, Source, print, texts};
use crate::args::{
    ClassifyArgs, CompleteArgs, DecideArgs, EmbedArgs, Format, OneShotArgs, RerankArgs,
    TokenizeArgs,
};

/// Inputs of one request: enough to fill steps, few enough to show results as they come.
const CHUNK: usize = 256;

/// A model in service, without a port.
struct Asker {
    app: Arc<App>,
    runtime: tokio::runtime::Runtime,
    format: Format,
    _engine: ScheduledEngine,
}

impl Asker {
    fn new(
        args: &OneShotArgs,
        environment: &Environment,
        demo: EmbeddedModel,
    ) -> Result<Self, Failure> {
        let source = source(args, demo)?;
        let settings = environment.settings(None)?;
        let options = settings.load_options(&args.model_args);
        let devices = settings.devices(args.model_args.device, &options, &source)?;
        let loaded = source.load(&options, &devices)?;
        let app = App::new(settings.server_config(), ApiKeys::default());
        app.set_models(vec![loaded.model]);
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }
            .enable_all()
            .build()
            .map_err(|e| Failure::new(Code::Failed, format_args!("cannot start: {e}")))?;
        Ok(Self {
            app,
            runtime,
            format: args.format,
            _engine: loaded.engine,
        })
    }

    /// Sends a request, and prints the answer's body or what `show` makes of it.
    fn ask(
        &self,
        path: &str,
        body: String,
        show: impl FnOnce(&Value) -> String,
    ) -> Result<(), Failure> {
        match self.try_ask(path, body, show)? {
            None => Ok(()),
            Some(refusal) => Err(refusal.into()),
        }
    }

    /// Does the same as [`Self::ask`], but returns a refusal for the caller to mend.
    fn try_ask(
        &self,
        path: &str,
        body: String,
        show: impl FnOnce(&Value) -> String,
    ) -> Result<Option<Refusal>, Failure> {
        let answered = self.runtime.block_on(self.app.answer("POST", path, body));
        let parsed: Value = serde_json::from_slice(&answered.body).unwrap_or_default();
        if answered.status != 200 {
            let text = |name: &str| parsed["error"][name].as_str().map(str::to_owned);
            return Ok(Some(Refusal {
                reason: text("reason").unwrap_or_default(),
                message: text("message").unwrap_or_else(|| "the request was refused".to_owned()),
            }));
        }
        match self.format {
            Format::Json => print(&format!("{}\n", String::from_utf8_lossy(&answered.body))),
            Format::Text => print(&show(&parsed)),
        }?;
        Ok(None)
    }
}

/// A request that was not answered.
struct Refusal {
    reason: String,
    message: String,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::new(Code::Failed, refusal.message)
    }
}

fn source(args: &OneShotArgs, demo: EmbeddedModel) -> Result<Source, Failure> {
    let (base, revision) = (&args.model_args.base, &args.model_args.revision);
    match &args.model {
        Some(model) => Source::on(base.as_deref(), model, revision.as_deref())?.fetched(&|_| ()),
        None => Ok(Source::Embedded(demo)),
    }
}

/// Runs the command `prelude classify`.
pub(crate) fn classify(args: &ClassifyArgs, environment: &Environment) -> Result<(), Failure> {
    let texts = texts::read(&args.texts)?;
    let demo = match args.labels.is_empty() {
        true => demo::CLASSIFIER,
        false => demo::LM,
    };
    let asker = Asker::new(&args.common, environment, demo)?;
    // Labels of many tokens make many rows of each text: as many texts go at once as fit.
    let mut at_once = CHUNK;
    let mut rest = &texts[..];
    while !rest.is_empty() {
        let chunk = &rest[..at_once.min(rest.len())];
        let mut body = json!({"input": chunk});
        if !args.labels.is_empty() {
            body["labels"] = json!(args.labels);
        }
        if let Some(template) = &args.template {
            // A shell passes `\n` as two characters, which are meant as a line break.
            body["template"] = json!(template.replace("\\n", "\n"));
        }
        let refused = asker.try_ask("/classify", body.to_string(), |answer| {
            show_classes(answer, chunk)
        })?;
        match refused {
            None => rest = &rest[chunk.len()..],
            Some(refusal) if refusal.reason == "too_many_rows" && chunk.len() > 1 => {
                at_once = chunk.len() / 2;
            }
            Some(refusal) => return Err(refusal.into()),
        }
    }
    Ok(())
}

/// Returns a line for each text: probability, class, text.
fn show_classes(answer: &Value, texts: &[String]) -> String {
    let mut out = String::new();
    for (item, text) in items(answer, "data").zip(texts) {
        let probs = items(item, "probs").filter_map(Value::as_f64);
        let best = probs.fold(f64::NEG_INFINITY, f64::max);
        let label = item["label"].as_str().unwrap_or("-");
        let _ = writeln!(out, "{best:.3}\t{label}\t{text}");
    }
    out
}

/// Runs the command `prelude complete`.
pub(crate) fn complete(args: &CompleteArgs, environment: &Environment) -> Result<(), Failure> {
    let (texts, common) = prompts(args)?;
    let asker = Asker::new(&common, environment, demo::LM)?;
    let fields = |mut body: Value| {
        body["max_tokens"] = json!(args.max_tokens);
        body["temperature"] = json!(args.temperature);
        body["seed"] = json!(args.seed);
        body.to_string()
    };
    for text in texts {
        let (path, body) = match args.chat {
            true => (
                "/v1/chat/completions",
                json!({"messages": [{"role": "user", "content": text}], "enable_thinking": false}),
            ),
            false => ("/v1/completions", json!({"prompt": text})),
        };
        asker.ask(path, fields(body), |answer| {
            let choice = &answer["choices"][0];
            let text = choice["text"].as_str();
            let text = text.or_else(|| choice["message"]["content"].as_str());
            format!("{}\n", text.unwrap_or_default())
        })?;
    }
    Ok(())
}

/// Returns the texts to continue and the model's options: beside texts given by `-p`, an argument
/// is the model.
fn prompts(args: &CompleteArgs) -> Result<(Vec<String>, OneShotArgs), Failure> {
    let mut common = args.common.clone();
    if args.prompts.is_empty() {
        return Ok((texts::read(&args.texts)?, common));
    }
    match (&args.texts.texts[..], &common.model) {
        ([], _) => {}
        ([folder], None) => common.model = Some(folder.into()),
        _ => {
            let message = "with -p, give the model once: prelude complete MODEL -p TEXT";
            return Err(Failure::new(Code::Usage, message));
        }
    }
    Ok((args.prompts.clone(), common))
}

/// Runs the command `prelude embed`, which prints a line of numbers for each text.
pub(crate) fn embed(args: &EmbedArgs, environment: &Environment) -> Result<(), Failure> {
    let texts = texts::read(&args.texts)?;
    let mut common = args.common.clone();
    if common.model.is_none() {
        // The demo model embeds only if it is told how.
        let pooling = &mut common.model_args.pooling;
        *pooling = pooling.or(Some(Pooling::Last));
    }
    let asker = Asker::new(&common, environment, demo::LM)?;
    for chunk in texts.chunks(CHUNK) {
        let body = json!({"input": chunk});
        asker.ask("/v1/embeddings", body.to_string(), show_vectors)?;
    }
    Ok(())
}

fn show_vectors(answer: &Value) -> String {
    let mut out = String::new();
    for item in items(answer, "data") {
        let numbers: Vec<String> = items(item, "embedding").map(Value::to_string).collect();
        let _ = writeln!(out, "{}", numbers.join(" "));
    }
    out
}

/// Runs the command `prelude rerank`, which prints a line for each text, the most relevant first.
pub(crate) fn rerank(args: &RerankArgs, environment: &Environment) -> Result<(), Failure> {
    let texts = texts::read(&args.texts)?;
    let mut common = args.common.clone();
    if common.model.is_none() {
        let kind = &mut common.model_args.kind;
        *kind = kind.or(Some(ModelKind::Reranker));
    }
    let asker = Asker::new(&common, environment, demo::LM)?;
    let body = json!({
        "query": args.query,
        "documents": texts,
        "instruction": args.instruction,
        "top_n": args.top_n,
    });
    asker.ask("/v1/rerank", body.to_string(), |answer| {
        let mut out = String::new();
        for result in items(answer, "results") {
            let score = result["relevance_score"].as_f64().unwrap_or(f64::NAN);
            let text = result["document"]["text"].as_str().unwrap_or_default();
            let _ = writeln!(out, "{score:.3}\t{text}");
        }
        out
    })
}

/// Runs the command `prelude decide`.
pub(crate) fn decide(args: &DecideArgs, environment: &Environment) -> Result<(), Failure> {
    let path = &args.request;
    let body = if path.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map(|_| text)
    } else {
        std::fs::read_to_string(path)
    };
    let body = body.map_err(|e| {
        Failure::new(
            Code::Usage,
            format_args!("cannot read {}: {e}", path.display()),
        )
    })?;
    let asker = Asker::new(&args.common, environment, demo::LM)?;
    asker.ask("/v1/systemone", body, show_decisions)
}

/// Returns a line for each question: its id, the answer, how sure.
fn show_decisions(answer: &Value) -> String {
    let mut out = String::new();
    for (id, answer) in answer["answers"].as_object().into_iter().flatten() {
        let number = |name: &str| answer[name].as_f64().unwrap_or(f64::NAN);
        let _ = match answer["type"].as_str() {
            Some("noul") => {
                let p = number("noul");
                let word = if p >= 0.5 { "yes" } else { "no" };
                writeln!(out, "{id}\t{word}\tprobability {p:.3}")
            }
            Some("choice") => {
                let choice = answer["choice"].as_str().unwrap_or("-");
                writeln!(
                    out,
                    "{id}\t{choice}\tconfidence {:.3}",
                    number("confidence")
                )
            }
            _ => {
                let (score, confidence) = (number("score"), number("confidence"));
                writeln!(out, "{id}\t{score:.2}\tconfidence {confidence:.3}")
            }
        };
    }
    out
}

/// Runs the command `prelude tokenize`. Needs the model's files, not its weights.
pub(crate) fn tokenize(args: &TokenizeArgs, environment: &Environment) -> Result<(), Failure> {
    let texts = texts::read(&args.texts)?;
    let settings = environment.settings(None)?;
    let source = source(&args.common, demo::LM)?;
    let assets = source.assets(
        settings.tokenizer.cache.as_deref(),
        args.common.model_args.plain,
    )?;
    for text in texts {
        let tokens = assets.tokenizer.encode(&text, true);
        let pieces: Vec<String> = tokens
            .iter()
            .map(|&id| assets.tokenizer.id_to_text(id).into_owned())
            .collect();
        let line = match args.common.format {
            Format::Json => {
                let max = assets.checkpoint.config().max_position_embeddings;
                json!({"count": tokens.len(), "max_model_len": max, "tokens": tokens, "token_strs": pieces})
                    .to_string()
            }
            Format::Text => {
                let shown = tokens.iter().zip(&pieces);
                let shown: Vec<String> =
                    shown.map(|(id, piece)| format!("{id} {piece:?}")).collect();
                shown.join("  ")
            }
        };
        print(&format!("{line}\n"))?;
    }
    Ok(())
}

fn items<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value[name].as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_for_reading() {
        let classes =
            json!({"data": [{"label": "a", "probs": [0.1, 0.9]}, {"label": null, "probs": [0.2]}]});
        let shown = show_classes(&classes, &["x".to_owned(), "y".to_owned()]);
        assert_eq!(shown, "0.900\ta\tx\n0.200\t-\ty\n");
        let decisions = json!({"answers": {
            "q": {"type": "noul", "noul": 0.25},
            "c": {"type": "choice", "choice": "x", "confidence": 0.5},
            "s": {"type": "score", "score": 1.25, "confidence": 1.0},
        }});
        let expected =
            "q\tno\tprobability 0.250\nc\tx\tconfidence 0.500\ns\t1.25\tconfidence 1.000\n";
        assert_eq!(show_decisions(&decisions), expected);
    }
}
