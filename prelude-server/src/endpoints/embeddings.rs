//! `POST /v1/embeddings`: vectors of texts.

use std::sync::Arc;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    dialects::{self, COMMON, CONVERSATION, INPUTS, MEDIA, ONE_PIECE, SWITCH, TRUNCATION, VECTORS},
    endpoint::{Call, Endpoint, Reply, asked, json},
    error::ApiError,
    served_model::Task,
    tasks::{
        embed::{Vector, VectorFields, embed},
        input::{Given, InputsFields},
        prepared::Unit,
        submit::{Ask, CommonFields, ListBody},
    },
    wire::request,
};

/// `POST /v1/embeddings`.
pub(crate) const EMBEDDINGS: Endpoint = Endpoint {
    group: "vectors",
    summary: "Embed texts",
    requests: &[asked::<EmbeddingRequest<'static>>()],
    responses: json::<ListBody<'static, Item>>,
    ..Endpoint::post(&["/v1/embeddings", "/embeddings"], |call, body| {
        Box::pin(handle(call, body))
    })
};

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Embedding")]
struct Item {
    index: usize,
    object: &'static str,
    embedding: Vector,
}

request! {
    /// `POST /v1/embeddings`.
    struct EmbeddingRequest<'a> {
        vectors: VectorFields<'a>,
        inputs: InputsFields<'a>,
        common: CommonFields<'a>,
    }
    fields [COMMON, ONE_PIECE, MEDIA, INPUTS, CONVERSATION, SWITCH, TRUNCATION, VECTORS, dialects::EMBEDDINGS];
}

/// Answers `/v1/embeddings`.
pub(crate) async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let request: EmbeddingRequest<'_> = call.read(&body).await?;
    let ask = Ask::new(call, request.common, Task::Embeddings)?;
    let model = ask.model;
    let vectors = request.vectors;
    let normalise = vectors.normalise(model, request.inputs.input.use_activation)?;
    let inputs = (Given::Fields(Box::new(request.inputs)), normalise);
    let embedded = embed(&ask, vectors, inputs, Unit::Texts).await?;
    let write = move || {
        let item = |(index, floats): (usize, Vec<Vec<f32>>)| Item {
            index,
            object: "embedding",
            embedding: Vector::new(floats.concat(), embedded.form),
        };
        let data = embedded.vectors.into_iter().enumerate().map(item);
        ListBody::reply(
            call.app.ids.next("embd-"),
            model,
            data.collect(),
            embedded.usage,
        )
    };
    Ok(call.write(0, write).await)
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use serde_json::{Value, json};

    use crate::testing::{Golden, answer, assert_close, demos, embedder, golden, refused};

    const PATH: &str = "/v1/embeddings";

    #[test]
    fn recorded_vectors() {
        let Some(app) = embedder() else { return };
        let recorded = Golden::open(&golden("rand-embed").unwrap());
        let texts: Vec<_> = recorded.texts().collect();
        assert!(texts.len() > 20);
        let input: Vec<&str> = texts.iter().map(|(_, _, text)| *text).collect();
        let all = answer(app, PATH, &json!({"input": input}));
        for ((index, kind, text), item) in texts.iter().zip(all["data"].as_array().unwrap()) {
            let mut expected = recorded.row("f32.embed_last", *index);
            let norm = expected.iter().map(|x| x * x).sum::<f32>().sqrt();
            expected.iter_mut().for_each(|x| *x /= norm);
            assert_close(&item["embedding"], &expected, 1e-5, kind);
            // Alone, bit for bit the same.
            if index % 7 == 0 {
                let alone = answer(app, PATH, &json!({"input": text}));
                assert_eq!(alone["data"][0]["embedding"], item["embedding"], "{kind}");
            }
        }
    }

    #[test]
    fn base64_and_dimensions() {
        let Some(app) = embedder() else { return };
        let ask = |more: Value| {
            let mut body = json!({"input": ["x", "y"], "dimensions": 3});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            answer(app, PATH, &body)
        };
        let floats = ask(json!({}));
        let vector = floats["data"][1]["embedding"].as_array().unwrap();
        assert_eq!(vector.len(), 3);
        let norm: f64 = vector.iter().map(|x| x.as_f64().unwrap().powi(2)).sum();
        assert!((norm - 1.0).abs() < 1e-5, "{norm}");
        let text = ask(json!({"encoding_format": "base64"}));
        let bytes = STANDARD
            .decode(text["data"][1]["embedding"].as_str().unwrap())
            .unwrap();
        let decoded: Vec<f32> = bytes
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect();
        assert_close(&floats["data"][1]["embedding"], &decoded, 0.0, "base64");
        let raw = ask(json!({"use_activation": false}));
        assert_ne!(raw["data"][0]["embedding"], floats["data"][0]["embedding"]);
    }

    #[test]
    fn ids_and_instructions() {
        let Some(app) = embedder() else { return };
        let vector = |body: Value| answer(app, PATH, &body)["data"][0]["embedding"].clone();
        // The instruction is text before the text.
        let instructed = vector(json!({"input": "x", "instruction": "Find it."}));
        assert_eq!(
            instructed,
            vector(json!({"input": "Instruct: Find it.\nQuery:x"}))
        );
        // An empty text has the end token that the tokenizer appends.
        let empty = vector(json!({"input": ""}));
        assert_eq!(empty, vector(json!({"input": [4064]})));
        let check = |body: Value, expected| refused(app, PATH, &body, expected);
        check(json!({"input": []}), (400, "invalid_value", Some("input")));
        check(json!({}), (400, "missing_field", Some("input")));
        check(
            json!({"input": [5000]}),
            (400, "token_out_of_range", Some("input")),
        );
        check(
            json!({"input": "x", "dimensions": 73}),
            (400, "invalid_value", Some("dimensions")),
        );
        check(
            json!({"input": "x", "encoding_format": "hex"}),
            (400, "invalid_value", Some("encoding_format")),
        );
        check(
            json!({"input": "x", "prompt_name": "q"}),
            (400, "invalid_value", Some("prompt_name")),
        );
        check(
            json!({"input": "x", "instruction": "i", "input_type": "query"}),
            (400, "invalid_value", Some("instruction")),
        );
        check(
            json!({"input": [1], "instruction": "i"}),
            (400, "invalid_value", Some("input")),
        );
        check(
            json!({"input": "x ".repeat(5000)}),
            (400, "context_length_exceeded", Some("input")),
        );
        // The instruction is not copied before all inputs to learn that it is too long.
        check(
            json!({"input": vec!["x"; 4096], "instruction": "x ".repeat(1 << 20)}),
            (400, "context_length_exceeded", Some("/input/0")),
        );
        check(
            json!({"input": ["x", "x ".repeat(5000)]}),
            (400, "context_length_exceeded", Some("/input/1")),
        );
        check(
            json!({"input": [[1], [5000]]}),
            (400, "token_out_of_range", Some("/input/1")),
        );
        check(
            json!({"input": "x", "stream": true}),
            (400, "unsupported_parameter", Some("stream")),
        );
    }

    #[test]
    fn language_models_embed_only_if_told_how() {
        refused(
            demos(),
            PATH,
            &json!({"model": "demo-lm", "input": "x"}),
            (400, "unsupported_task", Some("model")),
        );
    }

    /// Pairs and ranks of an embedding model are cosines of its vectors, each text embedded once.
    #[test]
    fn pairs_are_cosines() {
        let Some(app) = embedder() else { return };
        let texts = ["a card", "a bank", "a card"];
        let vectors = answer(app, PATH, &json!({"input": texts}));
        let vector = |i: usize| -> Vec<f64> {
            let numbers = vectors["data"][i]["embedding"].as_array().unwrap();
            numbers.iter().map(|x| x.as_f64().unwrap()).collect()
        };
        let cosine = |i, j| -> f64 { vector(i).iter().zip(vector(j)).map(|(x, y)| x * y).sum() };
        let body = json!({"queries": "a card", "documents": ["a bank", "a card"]});
        let found = answer(app, "/score", &body);
        let score = |i: usize| found["data"][i]["score"].as_f64().unwrap();
        assert!((score(0) - cosine(0, 1)).abs() < 1e-6);
        assert!((score(1) - 1.0).abs() < 1e-6);
        let tokens = vectors["usage"]["prompt_tokens"].as_u64().unwrap() * 2 / 3;
        assert_eq!(found["usage"]["prompt_tokens"], tokens);
        let zipped = json!({"text_1": {"content": [{"type": "text", "text": "a card"},
            {"type": "text", "text": "a bank"}]}, "text_2": ["a bank", "a bank"]});
        let zipped = answer(app, "/score", &zipped);
        assert_eq!(zipped["data"][0]["score"], found["data"][0]["score"]);
        let ranked = answer(
            app,
            "/rerank",
            &json!({"query": "a card", "documents": ["a bank", "a card"]}),
        );
        assert_eq!(ranked["results"][0]["index"], 1);
        assert_eq!(
            ranked["results"][1]["relevance_score"],
            found["data"][0]["score"]
        );
        let uneven = json!({"queries": ["a", "b"], "documents": ["a", "b", "c"]});
        refused(
            app,
            "/score",
            &uneven,
            (400, "invalid_value", Some("queries")),
        );
        let pooled = answer(app, "/pooling", &json!({"input": "a card"}));
        assert_eq!(pooled["data"][0]["data"], vectors["data"][0]["embedding"]);
    }

    #[test]
    fn long_inputs_are_cut_when_asked() {
        let Some(app) = embedder() else { return };
        let context = app.model(None).unwrap().max_model_len;
        let long = "word ".repeat(context as usize * 2);
        refused(
            app,
            PATH,
            &json!({"input": long}),
            (400, "context_length_exceeded", Some("input")),
        );
        let cut = answer(
            app,
            PATH,
            &json!({"input": long, "truncate_prompt_tokens": -1}),
        );
        assert!(cut["usage"]["prompt_tokens"].as_u64().unwrap() <= u64::from(context));
        // Documents keep their beginning, and the tokenizer's end token stays.
        let short = answer(
            app,
            PATH,
            &json!({"input": long, "truncate_prompt_tokens": 6}),
        );
        let kept = app.model(None).unwrap();
        let ends = kept.tokenizer.count("word", true) - kept.tokenizer.count("word", false);
        let text = crate::tasks::truncate::cut_text(
            kept,
            &long,
            6 - ends,
            crate::tasks::truncate::Side::Right,
        );
        let expected = answer(app, PATH, &json!({"input": text}));
        assert_eq!(short["data"], expected["data"]);
    }
}
