//! `POST /classify`: classes of texts, from a classification head, or from a language model and a
//! list of labels.

use std::sync::Arc;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    dialects::{
        self, ACTIVATION, COMMON, CONVERSATION, INPUTS, LABELS, MEDIA, ONE_PIECE, SWITCH,
        TRUNCATION,
    },
    endpoint::{Call, Endpoint, Reply, asked, either},
    endpoints::tei::predict::{self, PredictRequest, Predictions},
    error::{ApiError, Dialect},
    tasks::{
        classify::{ActivationFields, LabelFields, classify, in_f32, model},
        input::{Given, InputsFields},
        prepared::Unit,
        submit::{Ask, CommonFields, ListBody},
    },
    wire::{Int, request},
};

/// `POST /classify`.
pub(crate) const CLASSIFY: Endpoint = Endpoint {
    group: "decisions",
    summary: "Classify texts",
    requests: &[
        asked::<ClassifyRequest<'static>>(),
        asked::<PredictRequest<'static>>(),
    ],
    responses: either::<ListBody<'static, Item<'static>>, Predictions<'static>>,
    other_dialect: Some(Dialect::Tei),
    ..Endpoint::post(&["/classify", "/v1/classify"], |call, body| {
        Box::pin(handle(call, body))
    })
};

/// The number of classes that are answered.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct TopFields {
    /// At least the number of classes: the answer has all of them. With `inputs` any number.
    top_k: Option<Int<1, { i64::MAX }>>,
}

impl TopFields {
    /// Checks that no fewer classes are asked for than there are.
    fn check(&self, classes: usize) -> Result<(), ApiError> {
        let asked = self.top_k.map(Int::get);
        if asked.is_some_and(|k| usize::try_from(k).is_ok_and(|k| k < classes)) {
            let must = format!("be at least {classes}: the answer has all classes");
            return Err(ApiError::invalid_value("top_k", must));
        }
        Ok(())
    }
}

request! {
    /// `POST /classify`.
    struct ClassifyRequest<'a> {
        labels: LabelFields<'a>,
        activation: ActivationFields,
        top: TopFields,
        inputs: InputsFields<'a>,
        common: CommonFields<'a>,
    }
    fields [COMMON, ONE_PIECE, MEDIA, INPUTS, CONVERSATION, SWITCH, TRUNCATION, LABELS, ACTIVATION, dialects::CLASSIFY];
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Class")]
struct Item<'a> {
    index: usize,
    label: Option<&'a str>,
    probs: Vec<f32>,
    num_classes: usize,
}

impl<'a> Item<'a> {
    fn new(index: usize, labels: &'a [String], probs: Vec<f64>) -> Self {
        let mut best = 0;
        for (i, p) in probs.iter().enumerate() {
            if *p > probs[best] {
                best = i;
            }
        }
        Self {
            index,
            label: labels.get(best).map(String::as_str),
            num_classes: probs.len(),
            probs: in_f32(&probs),
        }
    }
}

/// Answers `/classify`.
async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let fields = call.fields(&body).await?;
    if fields.has("inputs") {
        let classes = predict::classes(call, fields).await;
        return classes.map_err(|e| e.in_dialect(Dialect::Tei));
    }
    let request: ClassifyRequest<'_> = call.read_fields(fields).await?;
    let has_labels = request.labels.labels.is_some();
    let named = |name: Option<&str>| model(&call.app, name, has_labels);
    let ask = Ask::of(call, request.common, named)?;
    let model = ask.model;
    let classes = match &request.labels.labels {
        Some(labels) => labels.len(),
        None => model.class_names().len(),
    };
    request.top.check(classes)?;
    let use_activation = request.inputs.input.use_activation;
    let activation = request.activation.wanted(model, use_activation)?;
    let inputs = (Given::Fields(Box::new(request.inputs)), activation);
    let (labels, classified) = classify(&ask, request.labels, inputs, Unit::Texts).await?;
    let write = move || {
        let usage = classified.usage();
        let probs = classified.outputs.into_iter().enumerate();
        let data = probs.map(|(i, probs)| Item::new(i, &labels, probs.concat()));
        ListBody::reply(call.app.ids.next("classify-"), model, data.collect(), usage)
    };
    Ok(call.write(0, write).await)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::{
        tasks::{
            classify::LABELS_MAX,
            prompts::{Escaping, TEXT, label_trie, user_turn},
        },
        testing::{Golden, answer, ask, assert_close, call, demos, golden, refused},
    };

    const PATH: &str = "/classify";

    #[test]
    fn recorded_classes() {
        let Some(folder) = golden("demo-classifier") else {
            return;
        };
        let recorded = Golden::open(&folder);
        let texts: Vec<_> = recorded.texts().collect();
        assert!(texts.len() > 20);
        let input: Vec<&str> = texts.iter().map(|(_, _, text)| *text).collect();
        let all = answer(demos(), PATH, &json!({"input": input}));
        let logits = answer(
            demos(),
            PATH,
            &json!({"input": input, "use_activation": false}),
        );
        for (i, (index, kind, text)) in texts.iter().enumerate() {
            let probs = recorded.row("f32.cls_probs", *index);
            assert_close(&all["data"][i]["probs"], &probs, 5e-4, kind);
            let recorded = recorded.row("f32.cls_logits", *index);
            assert_close(&logits["data"][i]["probs"], &recorded, 2e-3, kind);
            if index % 7 == 0 {
                let alone = answer(demos(), PATH, &json!({"input": text}));
                assert_eq!(alone["data"][0]["probs"], all["data"][i]["probs"], "{kind}");
            }
        }
    }

    #[test]
    fn a_message_has_its_intent() {
        let body = json!({"input": "Where is my card? I ordered it a week ago."});
        let found = answer(demos(), "/v1/classify", &body);
        assert_eq!(found["data"][0]["label"], "card_arrival");
        assert_eq!(found["data"][0]["num_classes"], 77);
        assert_eq!(found["object"], "list");
        assert_eq!(found["usage"]["completion_tokens"], 0);
    }

    #[test]
    fn a_language_model_chooses_among_labels() {
        let labels = &demos()
            .model(Some("demo-classifier"))
            .unwrap()
            .class_names();
        let texts = [
            "Where is my card? I ordered it a week ago.",
            "What is the exchange rate?",
        ];
        let body = json!({"input": texts, "labels": labels, "cache_salt": "labels"});
        let (status, found, seen) = ask(demos(), PATH, &body);
        assert_eq!(status, 200, "{found}");
        assert_eq!(found["model"], "demo-lm");
        let chosen: Vec<_> = (0..2)
            .map(|i| found["data"][i]["label"].as_str().unwrap())
            .collect();
        assert_eq!(chosen, ["card_arrival", "exchange_rate"]);
        let sum: f64 = found["data"][0]["probs"]
            .as_array()
            .unwrap()
            .iter()
            .map(|p| p.as_f64().unwrap())
            .sum();
        assert!((sum - 1.0).abs() < 1e-5, "{sum}");
        // Each text is run once, not once for each label.
        let usage = seen.usage.unwrap();
        assert!(usage.computed_tokens >= seen.prompt_tokens, "{usage:?}");
        assert!(
            usage.computed_tokens < 77 * seen.prompt_tokens / 4,
            "{usage:?}"
        );
        // One at a time, bit for bit the same.
        for (i, text) in texts.iter().enumerate() {
            let alone = answer(demos(), PATH, &json!({"input": text, "labels": labels}));
            assert_eq!(alone["data"][0]["probs"], found["data"][i]["probs"]);
        }
    }

    /// Against the plain way: the whole prompt with each label behind it, token by token.
    #[test]
    fn label_scores_are_sums_of_log_probabilities() {
        let model = demos().model(Some("demo-lm")).unwrap();
        let labels = ["card_arrival", "card_linking", "top_up_limits"];
        let text = "Where is my card?";
        let body = json!({"input": text, "labels": labels, "use_activation": false});
        let found = answer(demos(), PATH, &body);
        let prompt = model
            .tokenizer
            .encode(&user_turn(model, text).unwrap(), false);
        for (i, label) in labels.iter().enumerate() {
            let mut ids = prompt.clone();
            let mut expected = 0.0;
            let mut tokens = model.tokenizer.encode(label, false);
            tokens.push(model.words().unwrap().end_of_turn.unwrap());
            for token in tokens {
                let body = json!({"query": ids, "items": [[]], "label_token_ids": [token]});
                let score = answer(demos(), "/score", &body)["scores"][0][0]
                    .as_f64()
                    .unwrap();
                expected += score.ln();
                ids.push(token);
            }
            let found = found["data"][0]["probs"][i].as_f64().unwrap();
            assert!(
                (found - expected).abs() < 1e-4,
                "{label}: {found}, not {expected}"
            );
        }
    }

    /// A text is cut before labels are put behind it, and leaves them room.
    #[test]
    fn long_texts_are_cut_when_asked() {
        let model = demos().model(Some("demo-lm")).unwrap();
        let context = u64::from(model.max_model_len);
        let long = "Where is my card? ".repeat(2_000);
        let labels = json!(["card", "a transfer that has not arrived"]);
        let tokens = |keep: i64| {
            let body = json!({"model": "demo-lm", "input": long, "labels": labels,
                "truncate_prompt_tokens": keep});
            let found = answer(demos(), PATH, &body);
            found["usage"]["prompt_tokens"].as_u64().unwrap()
        };
        let at = tokens(40);
        assert!((32..=40).contains(&at), "{at}");
        let labels: Vec<String> = serde_json::from_value(labels.clone()).unwrap();
        let turn = user_turn(model, "").unwrap();
        let call = call(demos(), PATH);
        let escaping = Escaping::none(model, &call.reservation);
        let trie = label_trie(&escaping, turn, &labels, false);
        let room = context - trie.unwrap().depth() as u64;
        let at = tokens(-1);
        assert!((room - 8..=room).contains(&at), "{at} of {room}");
    }

    /// A template is rendered and encoded with every text, so 4,096 of these would be gigabytes:
    /// the test ends at all because the first one is refused.
    #[test]
    fn a_long_template_is_refused_at_its_first_text() {
        let long = "x ".repeat(1 << 20);
        let body = json!({
            "input": vec!["x"; 4096],
            "labels": ["a", "b"],
            "template": format!("{long}{TEXT}"),
        });
        let too_long = (400, "context_length_exceeded", Some("/input/0"));
        refused(demos(), PATH, &body, too_long);
    }

    #[test]
    fn wrong_requests_are_refused_by_field() {
        let check = |body: Value, expected| refused(demos(), PATH, &body, expected);
        let lm = |labels: Value| json!({"model": "demo-lm", "input": "x", "labels": labels});
        check(lm(json!(null)), (400, "missing_field", Some("labels")));
        check(lm(json!(["a"])), (400, "invalid_value", Some("labels")));
        check(
            lm(json!(["a", "a"])),
            (400, "invalid_value", Some("labels")),
        );
        check(lm(json!(["a", ""])), (400, "invalid_value", Some("labels")));
        // One text to the tokenizer, which composes characters.
        check(
            lm(json!(["\u{e9}", "e\u{301}"])),
            (400, "invalid_value", Some("/labels/1")),
        );
        check(
            json!({"model": "demo-lm", "input": [1, 2], "labels": ["a", "b"]}),
            (400, "invalid_type", Some("input")),
        );
        check(
            json!({"input": "x", "labels": ["a", "b"], "template": "{% for x in y %}"}),
            (400, "invalid_value", Some("template")),
        );
        check(
            json!({"model": "demo-classifier", "input": "x", "labels": ["a", "b"]}),
            (400, "invalid_value", Some("labels")),
        );
        check(json!({"input": ""}), (400, "invalid_value", Some("input")));
        check(
            json!({"input": "x ".repeat(5000)}),
            (400, "context_length_exceeded", Some("input")),
        );
        check(
            json!({"input": vec!["x"; 5000]}),
            (400, "too_many_rows", None),
        );
        // Few texts and few labels, but more rows than a request may have.
        let labels = many_labels(LABELS_MAX, 4);
        check(
            json!({"input": vec!["x"; 8], "labels": labels}),
            (400, "too_many_rows", None),
        );
    }

    /// Returns so many labels of so many words.
    fn many_labels(count: usize, words: usize) -> Vec<String> {
        let label = |i: usize| {
            let word =
                |w: usize| format!("{}{}", ["card", "cash", "rate", "pin"][w % 4], i * w % 997);
            let words = (1..words).map(word);
            [format!("topic {i}")]
                .into_iter()
                .chain(words)
                .collect::<Vec<_>>()
                .join(" ")
        };
        (0..count).map(label).collect()
    }

    /// Labels have fewer than four rows each, so the most that a request may have always fit.
    #[test]
    fn as_many_labels_as_are_allowed_fit() {
        let rows = crate::config::Limits::default().rows;
        assert!(4 * LABELS_MAX as u64 <= rows, "{rows}");
    }

    /// Each label is scored, however many and however long they are.
    #[test]
    fn many_long_labels_are_scored() {
        let check = |count: usize, words: usize| {
            let labels = many_labels(count, words);
            let body = json!({"input": "Where is my card?", "labels": labels});
            let found = answer(demos(), PATH, &body);
            let probs = found["data"][0]["probs"].as_array().unwrap();
            let sum: f64 = probs.iter().map(|p| p.as_f64().unwrap()).sum();
            assert_eq!(probs.len(), count);
            assert!((sum - 1.0).abs() < 1e-4, "{sum}");
        };
        check(1_000, 3);
        check(LABELS_MAX, 12);
    }
}
