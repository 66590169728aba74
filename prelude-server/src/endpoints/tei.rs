//! The routes of text-embeddings-inference (TEI): `/embed`, `/predict`, `/similarity` and `/info`.
//! Its `/rerank` is a dialect of ours.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use prelude_core::Pooling;
use schemars::{JsonSchema, json_schema};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{json, value::RawValue};

use crate::{
    dialects::{
        COMMON, MEDIA, ONE_PIECE, PIPELINE, TEI_EMBED, TEI_EMBED_ALL, TEI_PREDICT, TEI_SIMILARITY,
        TEI_TRUNCATION,
    },
    endpoint::{Call, Endpoint, Needs, Reply, asked, json as body},
    error::{ApiError, Dialect},
    served_model::{ServedModel, Task},
    tasks::{
        classify::{self, Classified, Function, LabelFields, classify},
        embed::{Unit, VectorFields, embed},
        input::{Inputs, Prompt, Prompts},
        rank::{self, PairOptions},
        submit::{Common, CommonFields},
        truncate::CutFields,
    },
    wire::{Fields, Int, Text, described, one_of, request, wrong_type},
};

/// `POST /embed`.
pub(crate) const EMBED: Endpoint = Endpoint {
    group: "vectors",
    summary: "Embed texts, in TEI's dialect",
    requests: &[asked::<EmbedRequest<'static>>()],
    responses: body::<Vec<Vec<f32>>>,
    dialect: Dialect::Tei,
    ..Endpoint::post(&["/embed"], |call, body| Box::pin(embeddings(call, body)))
};

/// `POST /embed_all`.
pub(crate) const EMBED_ALL: Endpoint = Endpoint {
    group: "vectors",
    summary: "Embed each token of texts, in TEI's dialect",
    requests: &[asked::<EmbedAllRequest<'static>>()],
    responses: body::<Vec<Vec<Vec<f32>>>>,
    dialect: Dialect::Tei,
    ..Endpoint::post(&["/embed_all"], |call, body| {
        Box::pin(token_embeddings(call, body))
    })
};

/// `POST /predict`.
pub(crate) const PREDICT: Endpoint = Endpoint {
    group: "decisions",
    summary: "Classify texts, in TEI's dialect",
    requests: &[asked::<PredictRequest<'static>>()],
    responses: body::<Predictions<'static>>,
    dialect: Dialect::Tei,
    ..Endpoint::post(&["/predict"], |call, body| Box::pin(predict(call, body)))
};

/// `POST /similarity`.
pub(crate) const SIMILARITY: Endpoint = Endpoint {
    group: "vectors",
    summary: "Compare a text with others, in TEI's dialect",
    requests: &[asked::<SimilarityRequest<'static>>()],
    responses: body::<Vec<f32>>,
    dialect: Dialect::Tei,
    ..Endpoint::post(&["/similarity"], |call, body| {
        Box::pin(similarity(call, body))
    })
};

/// `GET /info`.
pub(crate) const INFO: Endpoint = Endpoint {
    group: "models",
    summary: "What is served, in TEI's dialect",
    responses: body::<Info<'static>>,
    needs: Needs::Models,
    dialect: Dialect::Tei,
    ..Endpoint::get(&["/info"], |call, _| Box::pin(async { info(call) }))
};

/// Texts to embed.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct EmbedFields<'a> {
    #[serde(borrow)]
    inputs: Prompts<'a>,
    /// True by default: vectors have length 1.
    normalize: Option<bool>,
    /// A prompt that the model brings, put before each text.
    prompt_name: Option<Text<'a>>,
    /// Cut to this many components first, normalised after.
    dimensions: Option<Int<1, { u32::MAX as i64 }>>,
}

request! {
    /// `POST /embed`.
    struct EmbedRequest<'a> {
        embed: EmbedFields<'a>,
        cut: CutFields,
        common: CommonFields<'a>,
    }
    fields [COMMON, ONE_PIECE, MEDIA, TEI_TRUNCATION, PIPELINE, TEI_EMBED];
}

/// Answers `/embed`.
async fn embeddings(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let request: EmbedRequest<'_> = call.read(&body).await?;
    let (common, model) = Common::with_model(call, request.common, Task::Embeddings)?;
    let asked = request.embed;
    let inputs = Inputs::of_prompts(asked.inputs.0, "inputs", request.cut.truncation(model));
    let normalise = asked.normalize.unwrap_or(true);
    let fields = VectorFields {
        dimensions: asked.dimensions,
        prompt_name: asked.prompt_name,
        ..VectorFields::default()
    };
    let inputs = (inputs, normalise);
    let embedded = embed(call, model, &common, fields, inputs, Unit::Texts).await?;
    let write = move || {
        let vectors: Vec<_> = embedded.vectors.into_iter().map(|v| v.concat()).collect();
        Reply::json(&vectors)
    };
    Ok(call.write(0, write).await)
}

/// Texts whose tokens are embedded.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct EmbedAllFields<'a> {
    #[serde(borrow)]
    inputs: Prompts<'a>,
    /// A prompt that the model brings, put before each text.
    prompt_name: Option<Text<'a>>,
}

request! {
    /// `POST /embed_all`.
    struct EmbedAllRequest<'a> {
        embed: EmbedAllFields<'a>,
        cut: CutFields,
        common: CommonFields<'a>,
    }
    fields [COMMON, ONE_PIECE, MEDIA, TEI_TRUNCATION, PIPELINE, TEI_EMBED_ALL];
}

/// Answers `/embed_all`: the vectors of each text's tokens, as the model computes them.
async fn token_embeddings(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let request: EmbedAllRequest<'_> = call.read(&body).await?;
    let (common, model) = Common::with_model(call, request.common, Task::Embeddings)?;
    let asked = request.embed;
    let inputs = Inputs::of_prompts(asked.inputs.0, "inputs", request.cut.truncation(model));
    let fields = VectorFields {
        prompt_name: asked.prompt_name,
        ..VectorFields::default()
    };
    let embedded = embed(call, model, &common, fields, (inputs, false), Unit::Tokens).await?;
    let write = move || Reply::json(&embedded.vectors);
    Ok(call.write(0, write).await)
}

/// Texts and pairs of texts to classify: one, or several each in a list of its own.
#[derive(Debug)]
pub(crate) struct Sequences<'a> {
    prompts: Vec<Prompt<'a>>,
    /// True if the answer is a list for each text.
    is_batch: bool,
}

impl<'de: 'a, 'a> Deserialize<'de> for Sequences<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const KINDS: &str =
            "a string, a list of a string or a pair of strings, or a list of such lists";
        let raw = <&'de RawValue>::deserialize(deserializer)?.get();
        let one = |raw: &'de str| -> Result<Prompt<'a>, D::Error> {
            if raw.starts_with('"') {
                let text: Text<'a> = serde_json::from_str(raw).map_err(|_| wrong_type(KINDS))?;
                return Ok(Prompt::Text(text.0));
            }
            let texts: Vec<Text<'a>> = serde_json::from_str(raw).map_err(|_| wrong_type(KINDS))?;
            let mut texts = texts.into_iter().map(|text| text.0);
            match (texts.next(), texts.next(), texts.next()) {
                (Some(text), None, None) => Ok(Prompt::Text(text)),
                (Some(first), Some(second), None) => Ok(Prompt::Pair(first, second)),
                _ => Err(wrong_type(KINDS)),
            }
        };
        let is_batch = raw.starts_with('[') && raw[1..].trim_start().starts_with('[');
        let prompts = match is_batch {
            true => {
                let items: Vec<&'de RawValue> =
                    serde_json::from_str(raw).map_err(|_| wrong_type(KINDS))?;
                let prompts = items.into_iter().map(|item| one(item.get()));
                prompts.collect::<Result<_, _>>()?
            }
            false => vec![one(raw)?],
        };
        Ok(Self { prompts, is_batch })
    }
}

described!(Sequences<'_>, "TeiSequences", |_| {
    let text = || json!({ "type": "string" });
    let list = || json!({ "type": "array", "minItems": 1, "maxItems": 2, "items": text() });
    json_schema!({
        "description": "A text, a pair of texts, or several of both, each in a list of its own.",
        "anyOf": [text(), list(), { "type": "array", "minItems": 1, "items": list() }],
    })
});

/// Texts to classify.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct PredictFields<'a> {
    #[serde(borrow)]
    inputs: Sequences<'a>,
    /// True for logits in place of probabilities.
    raw_scores: Option<bool>,
    /// `none` for logits, or the activation that the model's classes have (pipelines).
    function_to_apply: Option<Function>,
    /// The number of classes that are answered, the likeliest; all by default (pipelines).
    top_k: Option<Int<1, { i64::MAX }>>,
}

request! {
    /// `POST /predict`.
    struct PredictRequest<'a> {
        predict: PredictFields<'a>,
        cut: CutFields,
        common: CommonFields<'a>,
    }
    fields [COMMON, ONE_PIECE, MEDIA, TEI_TRUNCATION, PIPELINE, TEI_PREDICT];
}

/// A class and its probability, or its logit.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TeiPrediction")]
pub(crate) struct Prediction<'a> {
    score: f32,
    label: &'a str,
}

/// The classes of a text, likeliest first, or of each of several texts.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TeiPredictions")]
#[serde(untagged)]
pub(crate) enum Predictions<'a> {
    One(Vec<Prediction<'a>>),
    Batch(Vec<Vec<Prediction<'a>>>),
}

/// Answers `/predict`.
async fn predict(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    classes(call, call.fields(&body).await?).await
}

/// Answers with the classes of `inputs`, as TEI and pipelines do.
///
/// # Errors
/// 400 for whatever is wrong with the request, 429, 503, 500.
pub(crate) async fn classes(call: &Call, fields: Fields<'_>) -> Result<Reply, ApiError> {
    let request: PredictRequest<'_> = call.read_fields(fields).await?;
    let common = Common::new(call, request.common)?;
    let model = classify::model(call, common.model.as_deref(), false)?;
    if model.has_vocabulary() {
        let message = "the model has no classes of its own; ask /classify with `labels`";
        return Err(ApiError::new(400, "unsupported_task", message));
    }
    let Sequences { prompts, is_batch } = request.predict.inputs;
    let inputs = Inputs::of_prompts(prompts, "inputs", request.cut.truncation(model));
    let function = request.predict.function_to_apply;
    let function = function.map(|f| f.is_applied(model)).transpose()?;
    let activation = one_of([
        ("raw_scores", request.predict.raw_scores.map(|raw| !raw)),
        ("function_to_apply", function),
    ])?;
    let activation = activation.is_none_or(|(_, is_wanted)| is_wanted);
    let top_k = request.predict.top_k;
    let top_k = top_k.and_then(|k| usize::try_from(k.get()).ok());
    let (labels, inputs) = (LabelFields::default(), (inputs, activation));
    let classified = classify(call, model, &common, labels, inputs, Unit::Texts).await?;
    let write = move || {
        let mut each = predictions(&classified);
        for classes in &mut each {
            classes.truncate(top_k.unwrap_or(usize::MAX));
        }
        Reply::json(&match is_batch {
            true => Predictions::Batch(each),
            false => Predictions::One(each.swap_remove(0)),
        })
    };
    Ok(call.write(0, write).await)
}

/// Returns the classes of each text, likeliest first.
fn predictions<'a>(classified: &'a Classified<'_>) -> Vec<Vec<Prediction<'a>>> {
    let of_text = |probs: &Vec<Vec<f64>>| {
        let labels = classified.labels.iter();
        let each = labels.zip(probs.iter().flatten());
        #[expect(
            clippy::cast_possible_truncation,
            reason = "written in f32's precision"
        )]
        let mut all: Vec<_> = each
            .map(|(label, &score)| Prediction {
                score: score as f32,
                label,
            })
            .collect();
        // Stable, so equal scores stay in the order of the classes.
        all.sort_by(|a, b| b.score.total_cmp(&a.score));
        all
    };
    classified.probs.iter().map(of_text).collect()
}

/// A text, and texts to compare it with.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "TeiSimilarityInputs")]
#[serde(deny_unknown_fields)]
pub(crate) struct SimilarityInputs<'a> {
    #[serde(borrow)]
    source_sentence: Text<'a>,
    #[schemars(length(min = 1))]
    sentences: Vec<Text<'a>>,
}

/// A text, texts to compare it with, and how those that are too long are cut.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct SimilarityFields<'a> {
    #[serde(borrow)]
    inputs: SimilarityInputs<'a>,
    parameters: Option<CutFields>,
}

request! {
    /// `POST /similarity`.
    struct SimilarityRequest<'a> {
        similarity: SimilarityFields<'a>,
        common: CommonFields<'a>,
    }
    fields [COMMON, ONE_PIECE, MEDIA, TEI_SIMILARITY];
}

/// Answers `/similarity` by the cosines of embeddings.
async fn similarity(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let request: SimilarityRequest<'_> = call.read(&body).await?;
    let (common, model) = Common::with_model(call, request.common, Task::Embeddings)?;
    let SimilarityInputs {
        source_sentence,
        sentences,
    } = request.similarity.inputs;
    if sentences.is_empty() {
        let must = "have at least one sentence";
        return Err(ApiError::invalid_value("inputs/sentences", must));
    }
    let cut = request.similarity.parameters;
    let options = PairOptions {
        truncation: cut.and_then(|cut| cut.truncation(model)),
        field: "inputs/sentences",
        query_field: "inputs/source_sentence",
        ..PairOptions::default()
    };
    let pairs = sentences.iter().map(|text| (&*source_sentence.0, &*text.0));
    let pairs: Vec<_> = pairs.collect();
    let judged = rank::by_cosine(call, model, &common, &pairs, &options).await?;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "written in f32's precision"
    )]
    let cosines: Vec<f32> = judged.scores(false).into_iter().map(|x| x as f32).collect();
    Ok(Reply::json(&cosines))
}

/// The first model that embeds, ranks or has classes, and what a request to it may be.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TeiInfo")]
pub(crate) struct Info<'a> {
    model_id: &'a str,
    model_sha: Option<&'a str>,
    #[schemars(with = "BTreeMap<String, serde_json::Value>")]
    model_type: serde_json::Value,
    max_concurrent_requests: usize,
    max_input_length: u32,
    max_client_batch_size: u64,
    auto_truncate: bool,
    version: &'static str,
}

/// Answers `/info`.
///
/// # Errors
/// 503 while loading.
fn info(call: &Call) -> Result<Reply, ApiError> {
    let first = call.app.model(None)?;
    let is_told_of = |model: &&Arc<ServedModel>| {
        model.vectors().is_some() || model.serves(Task::Rerank) || !model.class_names().is_empty()
    };
    let model = call.app.models().iter().find(is_told_of).unwrap_or(first);
    let limits = &call.app.config.limits;
    Ok(Reply::json(&Info {
        model_id: &model.name,
        model_sha: None,
        model_type: model_type(model),
        max_concurrent_requests: limits.connections,
        max_input_length: model.max_model_len,
        max_client_batch_size: limits.rows,
        auto_truncate: model.auto_truncate,
        version: env!("CARGO_PKG_VERSION"),
    }))
}

/// Returns TEI's name of a model's use, with what its clients read of it.
fn model_type(model: &ServedModel) -> serde_json::Value {
    let labels = || {
        let names = model.class_names().iter().enumerate();
        let by_id: BTreeMap<_, _> = names
            .clone()
            .map(|(i, name)| (i.to_string(), name))
            .collect();
        let by_name: BTreeMap<_, _> = names.map(|(i, name)| (name, i)).collect();
        json!({ "id2label": by_id, "label2id": by_name })
    };
    if let Some(vectors) = model.vectors() {
        let pooling = match vectors.pooling {
            Pooling::First => "cls",
            Pooling::Last => "last_token",
            Pooling::Mean => "mean",
        };
        return json!({ "embedding": { "pooling": pooling } });
    }
    match model.serves(Task::Rerank) {
        true => json!({ "reranker": labels() }),
        false => json!({ "classifier": labels() }),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use crate::{
        App,
        testing::{answer, ask, call, demos, embedder},
    };

    /// Asserts that a body is refused as TEI refuses, with a message that names what is wrong.
    fn refuses(app: &Arc<App>, path: &str, body: &Value, part: &str) {
        let (status, found, _) = ask(app, path, body);
        assert_eq!(status, 400, "{found}");
        let kind = found["error_type"].as_str().unwrap();
        assert!(["Validation", "Tokenizer"].contains(&kind), "{found}");
        assert!(found["error"].as_str().unwrap().contains(part), "{found}");
    }

    fn described(app: &Arc<App>) -> Value {
        let Reply::Json(body) = info(&call(app, "/predict")).unwrap() else {
            panic!("a JSON body");
        };
        serde_json::from_slice(&body).unwrap()
    }

    #[test]
    fn tokens_have_vectors_of_their_own() {
        let Some(app) = embedder() else { return };
        let texts = ["Where is my card?", "a"];
        let all = answer(app, "/embed_all", &json!({"inputs": texts}));
        let asked = json!({"input": texts, "task": "token_embed", "use_activation": false});
        let pooled = answer(app, "/pooling", &asked);
        for (at, of_text) in all.as_array().unwrap().iter().enumerate() {
            assert_eq!(*of_text, pooled["data"][at]["data"]);
        }
    }

    #[test]
    fn vectors_are_those_of_embeddings() {
        let Some(app) = embedder() else { return };
        let texts = ["a card", "a bank"];
        let check = |tei: Value, ours: Value| {
            let mut bodies = [json!({"inputs": texts}), json!({"input": texts})];
            for (body, more) in bodies.iter_mut().zip([tei, ours]) {
                let more = more.as_object().unwrap().clone();
                body.as_object_mut().unwrap().extend(more);
            }
            let found = answer(app, "/embed", &bodies[0]);
            let expected = answer(app, "/v1/embeddings", &bodies[1]);
            let found = found.as_array().unwrap();
            assert_eq!(found.len(), 2);
            for (found, expected) in found.iter().zip(expected["data"].as_array().unwrap()) {
                assert_eq!(*found, expected["embedding"], "{}", bodies[0]);
            }
        };
        check(json!({}), json!({}));
        check(
            json!({"normalize": false, "dimensions": 3}),
            json!({"use_activation": false, "dimensions": 3}),
        );
        let one = answer(app, "/embed", &json!({"inputs": "a card"}));
        assert_eq!(one.as_array().unwrap().len(), 1);
        refuses(app, "/embed", &json!({"inputs": []}), "`inputs`");
        refuses(app, "/embed", &json!({"input": "x"}), "`inputs`");
        let named = json!({"inputs": "x", "prompt_name": "q"});
        refuses(app, "/embed", &named, "`prompt_name`");
        let long = "word ".repeat(app.model(None).unwrap().max_model_len as usize * 2);
        refuses(app, "/embed", &json!({"inputs": long}), "maximum context");
        for direction in ["left", "Right"] {
            let body = json!({"inputs": long, "truncate": true, "truncation_direction": direction});
            assert_eq!(ask(app, "/embed", &body).0, 200);
        }
    }

    #[test]
    fn cosines_are_those_of_scores() {
        let Some(app) = embedder() else { return };
        let (source, others) = ("a card", ["a bank", "a card"]);
        let body = json!({"inputs": {"source_sentence": source, "sentences": others},
            "parameters": {"truncate": true}});
        let found = answer(app, "/similarity", &body);
        let pairs = json!({"queries": source, "documents": others});
        let expected = answer(app, "/score", &pairs);
        for (i, found) in found.as_array().unwrap().iter().enumerate() {
            let expected = expected["data"][i]["score"].as_f64().unwrap();
            assert!((found.as_f64().unwrap() - expected).abs() < 1e-6);
        }
        let body = |inputs: Value| json!({ "inputs": inputs });
        let empty = json!({"source_sentence": source, "sentences": []});
        refuses(app, "/similarity", &body(empty), "sentences");
        let wrong = json!({"source_sentence": source, "sentences": others, "prompts": 1});
        refuses(app, "/similarity", &body(wrong), "prompts");
        let info = described(app);
        assert_eq!(info["model_type"]["embedding"]["pooling"], "last_token");
    }

    #[test]
    fn classes_are_sorted() {
        let text = "Where is my card? I ordered it a week ago.";
        let found = answer(demos(), "/predict", &json!({"inputs": text}));
        let expected = answer(demos(), "/classify", &json!({"input": text}));
        let found = found.as_array().unwrap();
        assert_eq!(found.len(), 77);
        assert_eq!(found[0]["label"], "card_arrival");
        let labels = &demos()
            .model(Some("demo-classifier"))
            .unwrap()
            .class_names();
        let mut last = f64::INFINITY;
        for class in found {
            let score = class["score"].as_f64().unwrap();
            assert!(score <= last);
            last = score;
            let index = labels.iter().position(|l| *l == class["label"]).unwrap();
            assert_eq!(class["score"], expected["data"][0]["probs"][index]);
        }
        // As one list and as a batch.
        assert_eq!(
            answer(demos(), "/predict", &json!({"inputs": [text]})),
            json!(found)
        );
        let batch = json!({"inputs": [[text], ["x"]], "raw_scores": true});
        let batch = answer(demos(), "/predict", &batch);
        assert_eq!(batch.as_array().unwrap().len(), 2);
        assert_eq!(batch[0][0]["label"], "card_arrival");
        assert!(batch[0][0]["score"].as_f64().unwrap() > 1.0, "a logit");
        for wrong in [json!([1]), json!(["a", "b", "c"]), json!([["a"], []])] {
            refuses(demos(), "/predict", &json!({"inputs": wrong}), "`inputs`");
        }
        refuses(
            demos(),
            "/predict",
            &json!({"inputs": "x", "model": "demo-lm"}),
            "labels",
        );
    }

    #[test]
    fn the_model_with_classes_is_described() {
        let info = described(demos());
        assert_eq!(info["model_id"], "demo-classifier");
        let labels = &info["model_type"]["classifier"];
        let name = labels["id2label"]["3"].as_str().unwrap();
        assert_eq!(labels["label2id"][name], 3);
        assert_eq!(info["auto_truncate"], false);
    }
}
