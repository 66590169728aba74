//! `POST /score`: probabilities of given next tokens behind each item, or the relevance of pairs.

mod joined;
mod labels;
mod pairs;
mod side;
mod wanted;

use std::sync::Arc;

use bytes::Bytes;

use self::{
    labels::{LabelFields, Response},
    pairs::{ListItem, PairFields},
};
use crate::{
    dialects::{self, COMMON, MEDIA, ONE_PIECE, TRUNCATION},
    endpoint::{Call, Endpoint, Reply, asked, either},
    error::ApiError,
    tasks::{
        rank::JudgeFields,
        submit::{CommonFields, ListBody},
        truncate::TruncationFields,
    },
    wire::request,
};

/// `POST /score`.
pub(crate) const SCORE: Endpoint = Endpoint {
    group: "decisions",
    summary: "Score labels, or pairs of texts",
    requests: &[asked::<ScoreRequest<'static>>()],
    responses: either::<Response<'static>, ListBody<'static, ListItem>>,
    ..Endpoint::post(&["/score", "/v1/score"], |call, body| {
        Box::pin(handle(call, body))
    })
};

request! {
    /// `POST /score`: `query` with `items` scores labels; two sides of pairs are judged.
    struct ScoreRequest<'a> {
        labels: LabelFields<'a>,
        pairs: PairFields<'a>,
        judge: JudgeFields<'a>,
        truncation: TruncationFields,
        common: CommonFields<'a>,
    }
    fields [COMMON, ONE_PIECE, MEDIA, TRUNCATION, dialects::SCORE];
}

/// Answers `/score`.
///
/// # Errors
/// 400 for whatever is wrong with the request, 429, 503, 500.
pub(crate) async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let request: ScoreRequest<'_> = call.read(&body).await?;
    let labels = &request.labels;
    let of_labels = [
        ("label_token_ids", labels.label_token_ids.is_some()),
        ("labels", labels.labels.is_some()),
        ("query", labels.query.is_some()),
    ];
    let of_labels = of_labels.into_iter().find(|(_, is_given)| *is_given);
    match (request.pairs.first(), of_labels) {
        (Some(pairs), Some((labels, _))) => {
            let must = format!("not be combined with `{labels}`: they are two dialects");
            Err(ApiError::invalid_value(pairs, must))
        }
        (Some(_), None) => pairs::pairs(call, request).await,
        (None, Some(_)) => labels::by_labels(call, request).await,
        (None, None) => {
            let message = "give `query` and `items`, with `label_token_ids` or `labels` of a \
                           language model, or pairs as `queries` and `documents` or as `text_1` \
                           and `text_2`";
            Err(ApiError::new(400, "missing_field", message))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::testing::{Golden, answer, ask, demos, golden, refused};

    const PATH: &str = "/v1/score";

    #[test]
    fn recorded_yes_and_no() {
        let Some(folder) = golden("demo-lm") else {
            return;
        };
        let recorded = Golden::open(&folder);
        let mut compared = 0;
        for (index, kind, text) in recorded.texts() {
            let [yes, no, probability] = recorded.row("f32.yes_no", index)[..] else {
                panic!("three numbers")
            };
            let body = json!({"query": "", "items": [text], "labels": ["yes", "no"], "apply_softmax": true});
            // An empty query is a prompt of the item alone.
            let found = answer(demos(), PATH, &body)["scores"][0][0]
                .as_f64()
                .unwrap();
            assert!(
                (found - f64::from(probability)).abs() < 5e-4,
                "{kind}: {yes} {no}"
            );
            compared += 1;
        }
        assert!(compared > 30, "{compared}");
    }

    #[test]
    fn a_query_is_computed_once_for_all_items_and_changes_nothing() {
        let query = "I ordered my card two weeks ago and it has not come. ".repeat(8);
        let items: Vec<String> = (0..64)
            .map(|i| format!("Is this about number {i}?"))
            .collect();
        let labels = json!(["yes", "no"]);
        let body = |items: &[String], salt: &str| json!({"query": query, "items": items, "labels": labels, "cache_salt": salt});
        let (status, together, seen) = ask(demos(), PATH, &body(&items, "together"));
        assert_eq!(status, 200, "{together}");
        let usage = seen.usage.unwrap();
        let model = demos().model(Some("demo-lm")).unwrap();
        let prefix = model.tokenizer.count(&query, true) as u64;
        let alone_tokens: u64 = seen.prompt_tokens;
        // 64 prompts would compute the query 64 times.
        assert!(usage.computed_tokens >= prefix, "{usage:?}");
        assert!(
            usage.computed_tokens < alone_tokens - 62 * prefix,
            "{usage:?}"
        );
        assert_eq!(usage.cached_tokens, 0);
        for (i, item) in items.iter().enumerate() {
            let alone = answer(
                demos(),
                PATH,
                &body(std::slice::from_ref(item), &format!("alone-{i}")),
            );
            assert_eq!(alone["scores"][0], together["scores"][i], "{item}");
        }
        // And from the cache.
        let again = answer(demos(), PATH, &body(&items, "together"));
        assert_eq!(again["scores"], together["scores"]);
    }

    #[test]
    fn item_first_ids_and_normalisation() {
        let ids = |text: &str| demos().model(None).unwrap().tokenizer.encode(text, true);
        let body = |query: Value, items: Value, first: bool| json!({"query": query, "items": items, "item_first": first, "label_token_ids": ids("yes no")});
        let texts = answer(demos(), PATH, &body(json!(" b"), json!(["a"]), true));
        let joined = answer(
            demos(),
            PATH,
            &body(json!(ids("a")), json!([ids(" b")]), false),
        );
        assert_eq!(texts["scores"], joined["scores"]);
        assert_eq!(texts["object"], "scoring");
        // Over the whole vocabulary unless asked otherwise.
        let sum: f64 = texts["scores"][0]
            .as_array()
            .unwrap()
            .iter()
            .map(|s| s.as_f64().unwrap())
            .sum();
        assert!(sum < 1.0);
        let empty = answer(demos(), PATH, &body(json!("q"), json!([]), false));
        assert_eq!(empty["scores"], json!([]));
        let classes = answer(
            demos(),
            PATH,
            &json!({"model": "demo-classifier", "query": "Where is ", "items": ["my card?"], "apply_softmax": true}),
        );
        assert_eq!(classes["scores"][0].as_array().unwrap().len(), 77);
    }

    #[test]
    fn wrong_requests_are_refused_by_field() {
        let check = |body: Value, expected| refused(demos(), PATH, &body, expected);
        let ok = json!({"query": "q", "items": ["i"], "labels": ["yes"]});
        let with = |name: &str, value: Value| {
            let mut body = ok.clone();
            body[name] = value;
            body
        };
        check(
            with("labels", json!(["yes no"])),
            (400, "invalid_value", Some("/labels/0")),
        );
        check(
            with("labels", json!([])),
            (400, "invalid_value", Some("labels")),
        );
        check(
            with("labels", json!(null)),
            (400, "missing_field", Some("label_token_ids")),
        );
        check(
            with("label_token_ids", json!([1])),
            (400, "invalid_value", Some("labels")),
        );
        check(
            with("items", json!(null)),
            (400, "missing_field", Some("items")),
        );
        check(
            with("items", json!([[1]])),
            (400, "invalid_value", Some("items")),
        );
        check(
            with("query", json!(["a", "b"])),
            (400, "invalid_type", Some("query")),
        );
        check(
            with("text_1", json!("a")),
            (400, "invalid_value", Some("text_1")),
        );
        check(
            with("model", json!("nobody")),
            (404, "model_not_found", Some("model")),
        );
        check(
            with("items", json!(["x ".repeat(5000)])),
            (400, "context_length_exceeded", Some("items")),
        );
        check(
            json!({"query": [1], "items": [[9000]], "label_token_ids": [1]}),
            (400, "token_out_of_range", Some("items")),
        );
        check(
            json!({"query": [9000], "items": [[1]], "label_token_ids": [1]}),
            (400, "token_out_of_range", Some("query")),
        );
        check(
            json!({"query": [], "items": [[]], "label_token_ids": [1]}),
            (400, "invalid_value", Some("query")),
        );
    }

    /// Joined, these would be gigabytes of ids; encoded with every item, hours of text. The tests
    /// end at all because nothing is joined before its length was looked at.
    #[test]
    fn inputs_that_would_grow_by_joining_are_refused_unjoined() {
        let rows = demos().config.limits.rows as usize;
        let check = |query: Value, items: Value, first: bool, expected| {
            let body = json!({"query": query, "items": items, "item_first": first, "label_token_ids": [1]});
            refused(demos(), PATH, &body, expected);
        };
        let too_many = (400, "too_many_rows", None);
        let too_long = |place| (400, "context_length_exceeded", Some(place));
        for first in [false, true] {
            let ids = json!(vec![1; 100_000]);
            check(ids.clone(), json!(vec![[1]; 20 * rows]), first, too_many);
            check(ids, json!(vec![[1]; rows]), first, too_long("/items/0"));
            // The query alone would fit.
            let context = demos().model(None).unwrap().max_model_len as usize;
            let ids = json!(vec![1; context - 1]);
            check(ids, json!([[1], [1, 1]]), first, too_long("/items/1"));
            let text = json!("x ".repeat(100_000));
            let items: Vec<String> = (0..rows).map(|i| i.to_string()).collect();
            check(text, json!(items), first, too_long("/items/0"));
            // Where a prompt is cut is learned from the whole of it.
            let body = json!({"query": "x ".repeat(10_000), "items": vec!["y"; rows],
                "item_first": first, "label_token_ids": [1], "truncate_prompt_tokens": 7});
            refused(demos(), PATH, &body, (400, "larger_than_queue", None));
        }
    }

    /// A field that only the other dialect reads is not passed over in silence.
    #[test]
    fn fields_of_the_other_dialect_are_refused() {
        let labels = json!({"query": "q", "items": ["i"], "label_token_ids": [1]});
        let with = |name: &str, value: Value| {
            let mut body = labels.clone();
            body[name] = value;
            body
        };
        let is_refused = |name: &str, value| {
            let unsupported = (400, "unsupported_parameter", Some(name));
            refused(demos(), PATH, &with(name, value), unsupported);
        };
        is_refused("use_activation", json!(false));
        is_refused("instruction", json!("i"));
        is_refused("max_tokens_per_query", json!(3));
        is_refused("max_tokens_per_doc", json!(3));
        answer(demos(), PATH, &with("use_activation", json!(true)));
    }

    /// Labels of a classifier are its classes; without them, all are scored.
    #[test]
    fn classes_are_scored_by_name() {
        let model = demos().model(Some("demo-classifier")).unwrap();
        let body = |more: Value| {
            let mut body = json!({"model": "demo-classifier", "query": "Where is ", "items": ["my card?", "it?"]});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            body
        };
        for softmax in [false, true] {
            let scores = |mut more: Value| {
                more["apply_softmax"] = json!(softmax);
                answer(demos(), PATH, &body(more))["scores"].clone()
            };
            let all = scores(json!({}));
            assert_eq!(all[0].as_array().unwrap().len(), model.class_names().len());
            assert_eq!(scores(json!({"label_token_ids": [1, 2]})), all);
            let (a, b) = (&model.class_names()[9], &model.class_names()[3]);
            let some = scores(json!({"labels": [a, b]}));
            for item in [0, 1] {
                assert_eq!(some[item], json!([all[item][9], all[item][3]]));
            }
        }
        let refuse = |labels: Value, reason: &str, param: &str| {
            let body = body(json!({"labels": labels}));
            refused(demos(), PATH, &body, (400, reason, Some(param)));
        };
        refuse(
            json!([model.class_names()[0], "yes"]),
            "invalid_value",
            "/labels/1",
        );
        refuse(json!([]), "invalid_value", "labels");
        refuse(json!("yes"), "invalid_type", "labels");
    }

    #[test]
    fn long_prompts_are_cut_when_asked() {
        let long = "The card is sent by post. ".repeat(2_000);
        let body = |more: Value| {
            let mut body = json!({"query": "", "items": [long], "labels": ["yes", "no"]});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            body
        };
        let left = answer(demos(), PATH, &body(json!({"truncate_prompt_tokens": 7})));
        let tokens = left["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
        assert!((5..=7).contains(&tokens), "{tokens}");
        let ids = demos().model(None).unwrap().tokenizer.encode(&long, true);
        let end = &ids[ids.len() - tokens..];
        let end = json!({"query": end[..1], "items": [end[1..]], "labels": ["yes", "no"]});
        assert_eq!(left["scores"], answer(demos(), PATH, &end)["scores"]);
        let right = body(json!({"truncate_prompt_tokens": 7, "truncation_side": "right"}));
        let right = answer(demos(), PATH, &right);
        let start =
            json!({"query": "", "items": ["The card is sent by post."], "labels": ["yes", "no"]});
        assert_eq!(right["scores"], answer(demos(), PATH, &start)["scores"]);
        let all = answer(demos(), PATH, &body(json!({"truncate_prompt_tokens": -1})));
        let context = u64::from(demos().model(None).unwrap().max_model_len);
        let tokens = all["usage"]["prompt_tokens"].as_u64().unwrap();
        assert!((context - 2..=context).contains(&tokens), "{tokens}");
    }

    #[test]
    fn the_two_dialects_are_told_apart() {
        let check = |body: Value, expected: (u16, &str, Option<&str>)| {
            refused(demos(), PATH, &body, expected);
        };
        check(
            json!({"query": "q", "text_1": "a"}),
            (400, "invalid_value", Some("text_1")),
        );
        check(json!({}), (400, "missing_field", None));
        check(json!({"items": ["a"]}), (400, "missing_field", None));
        check(
            json!({"text_1": "a", "text_2": "b"}),
            (400, "unsupported_task", Some("model")),
        );
    }
}
