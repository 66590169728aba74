//! `POST /pooling`: the vectors or classes of whole texts or of each of their tokens, by any kind of
//! model.

use std::sync::Arc;

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    dialects::{
        self, ACTIVATION, COMMON, CONVERSATION, INPUTS, LABELS, MEDIA, ONE_PIECE, SWITCH,
        TRUNCATION, VECTORS,
    },
    endpoint::{Call, Endpoint, Reply, asked, json},
    error::ApiError,
    served_model::{ModelKind, ServedModel, Task},
    tasks::{
        classify::{self, ActivationFields, LabelFields},
        embed::{self, Embedded, Vector, VectorFields},
        input::{Given, InputsFields},
        prepared::Unit,
        submit::{Ask, CommonFields, ListBody},
    },
    wire::{Text, request},
};

/// `POST /pooling`.
pub(crate) const POOLING: Endpoint = Endpoint {
    group: "vectors",
    summary: "Vectors or classes, by what the model is",
    requests: &[asked::<PoolingRequest<'static>>()],
    responses: json::<ListBody<'static, Item>>,
    ..Endpoint::post(&["/pooling"], |call, body| Box::pin(handle(call, body)))
};

/// The result that is wanted for each text.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct TaskFields<'a> {
    /// `embed` or `classify`, of each text; `token_embed` or `token_classify`, of each of its tokens.
    /// By default what the model does with a text, or a classifier of tokens with each token.
    #[serde(borrow)]
    task: Option<Text<'a>>,
}

request! {
    /// `POST /pooling`.
    struct PoolingRequest<'a> {
        task: TaskFields<'a>,
        labels: LabelFields<'a>,
        activation: ActivationFields,
        vectors: VectorFields<'a>,
        inputs: InputsFields<'a>,
        common: CommonFields<'a>,
    }
    fields [COMMON, ONE_PIECE, MEDIA, INPUTS, CONVERSATION, SWITCH, TRUNCATION, VECTORS, LABELS, ACTIVATION, dialects::POOLING];
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PooledItem")]
struct Item {
    index: usize,
    object: &'static str,
    data: Data,
}

/// One vector for the whole text, or one for each of its tokens.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "PooledData")]
#[serde(untagged)]
enum Data {
    Whole(Vector),
    Tokens(Vec<Vector>),
}

/// Answers `/pooling`.
///
/// # Errors
/// 400 for whatever is wrong with the request, 429, 503, 500.
pub(crate) async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let request: PoolingRequest<'_> = call.read(&body).await?;
    let ask = Ask::of(call, request.common, |name| {
        let model = call.app.model_for(name, Task::Pooling);
        model.map_err(|e| e.prefixed("Unsupported task: "))
    })?;
    let model = ask.model;
    let (task, unit) = task(request.task.task, model)?;
    let (vectors, labels, inputs) = (request.vectors, request.labels, request.inputs);
    let Embedded {
        vectors,
        form,
        usage,
    } = match task {
        Pooled::Embed => {
            request.activation.check_unused()?;
            let normalise = vectors.normalise(model, inputs.input.use_activation)?;
            let inputs = (Given::Fields(Box::new(inputs)), normalise);
            embed::embed(&ask, vectors, inputs, unit).await?
        }
        Pooled::Classify => {
            vectors.check_format_alone()?;
            let form = vectors.form()?;
            let activation = request
                .activation
                .wanted(model, inputs.input.use_activation)?;
            let inputs = (Given::Fields(Box::new(inputs)), activation);
            let (_, classified) = classify::classify(&ask, labels, inputs, unit).await?;
            let each = |of_input: &Vec<Vec<f64>>| {
                let each = of_input.iter().map(|probs| classify::in_f32(probs));
                each.collect()
            };
            Embedded {
                vectors: classified.outputs.iter().map(each).collect(),
                form,
                usage: classified.usage(),
            }
        }
    };
    let write = move || {
        let item = |(index, floats): (usize, Vec<Vec<f32>>)| Item {
            index,
            object: "pooling",
            data: match unit {
                Unit::Texts => Data::Whole(Vector::new(floats.concat(), form)),
                Unit::Tokens => Data::Tokens(
                    floats
                        .into_iter()
                        .map(|of_token| Vector::new(of_token, form))
                        .collect(),
                ),
            },
        };
        let data = vectors.into_iter().enumerate().map(item);
        ListBody::reply(call.app.ids.next("pool-"), model, data.collect(), usage)
    };
    Ok(call.write(0, write).await)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pooled {
    Embed,
    Classify,
}

/// Returns the task that the request names, or else that of the model's kind.
fn task(asked: Option<Text<'_>>, model: &ServedModel) -> Result<(Pooled, Unit), ApiError> {
    let (own, own_unit) = match model.kind {
        ModelKind::Classifier | ModelKind::Reward => (Pooled::Classify, Unit::Texts),
        ModelKind::TokenClassifier => (Pooled::Classify, Unit::Tokens),
        // A decision model does not serve this route.
        ModelKind::Lm | ModelKind::Reranker | ModelKind::Embedding | ModelKind::Decision => {
            (Pooled::Embed, Unit::Texts)
        }
    };
    let Some(Text(name)) = asked else {
        return Ok((own, own_unit));
    };
    let (task, unit) = match &*name {
        "embed" => (Pooled::Embed, Unit::Texts),
        "classify" => (Pooled::Classify, Unit::Texts),
        "token_embed" => (Pooled::Embed, Unit::Tokens),
        "token_classify" => (Pooled::Classify, Unit::Tokens),
        _ => {
            let must = "be `embed`, `classify`, `token_embed` or `token_classify`";
            return Err(ApiError::invalid_value("task", must));
        }
    };
    let has_unit = match unit {
        Unit::Texts => model.kind != ModelKind::TokenClassifier,
        Unit::Tokens => {
            !model.classes().is_some_and(|classes| classes.of_mean) || task == Pooled::Embed
        }
    };
    if task != own || !has_unit {
        let message = format!(
            "Unsupported task: model {:?} (kind {}) does not {name}",
            model.name,
            model.kind.as_str()
        );
        return Err(ApiError::new(400, "unsupported_task", message).with_param("task"));
    }
    Ok((task, unit))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::{
        assets::Assets,
        config::{Limits, ServerConfig},
        demo,
        executor::Devices,
        load::load,
        testing::{answer, app, app_with, demos, embedded, golden, options, refused},
    };

    const PATH: &str = "/pooling";

    #[test]
    fn classes_are_those_of_classify() {
        let input = json!(["Where is my card?", "What is the rate?"]);
        let found = answer(demos(), PATH, &json!({"input": input}));
        assert!(found["id"].as_str().unwrap().starts_with("pool-"));
        let classes = answer(demos(), "/classify", &json!({"input": input}));
        for (pooled, class) in [0, 1].map(|i| (&found["data"][i], &classes["data"][i])) {
            assert_eq!(pooled["object"], "pooling");
            assert_eq!(pooled["data"], class["probs"]);
        }
        assert_eq!(
            found["usage"]["prompt_tokens"],
            classes["usage"]["prompt_tokens"]
        );
        let packed = answer(
            demos(),
            PATH,
            &json!({"input": "x", "encoding_format": "base64"}),
        );
        assert!(packed["data"][0]["data"].is_string());
    }

    /// Attention looks back alone, so what a token has is what its text has that ends there.
    #[test]
    fn each_token_has_what_the_text_up_to_it_has() {
        let text = "Where is my new card?";
        let tokens = answer(
            demos(),
            "/tokenize",
            &json!({"prompt": text, "model": "demo-classifier"}),
        );
        let ids = tokens["tokens"].as_array().unwrap();
        let ask = |more: Value| {
            let mut body = json!({"input": [ids, [ids[0]]], "task": "token_classify"});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            answer(demos(), PATH, &body)
        };
        for activation in [true, false] {
            let found = ask(json!({"use_activation": activation}));
            assert_eq!(
                found["data"][0]["data"].as_array().unwrap().len(),
                ids.len()
            );
            assert_eq!(found["data"][1]["data"][0], found["data"][0]["data"][0]);
            for end in 1..=ids.len() {
                let body = json!({"input": ids[..end], "use_activation": activation});
                let alone = answer(demos(), "/classify", &body);
                let of_token = &found["data"][0]["data"][end - 1];
                assert_eq!(of_token, &alone["data"][0]["probs"], "{end}");
            }
            assert_eq!(found["usage"]["prompt_tokens"], ids.len() + 1);
        }
        let packed = ask(json!({"encoding_format": "base64"}));
        assert!(packed["data"][0]["data"][0].is_string(), "{packed}");
    }

    /// The golden model's vectors for last and mean pooling are made of these.
    #[test]
    fn each_token_is_embedded() {
        let Some(folder) = golden("rand-embed") else {
            return;
        };
        let assets = Assets::open(&folder.join("model")).unwrap();
        let loaded = load(assets, &options(), &Devices::of_machine()).unwrap();
        let app = app(vec![loaded]);
        let ids: Vec<u32> = (0..40).map(|i| i * 97 % 4_000).collect();
        let ask = |more: Value| {
            let mut body = json!({"input": ids, "task": "token_embed"});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            answer(&app, PATH, &body)
        };
        for more in [
            json!({}),
            json!({"dimensions": 9}),
            json!({"use_activation": false}),
        ] {
            let found = ask(more.clone());
            for end in [1, 7, 40] {
                let mut body = more.clone();
                body["input"] = json!(ids[..end]);
                let alone = answer(&app, "/v1/embeddings", &body);
                let of_token = &found["data"][0]["data"][end - 1];
                assert_eq!(of_token, &alone["data"][0]["embedding"], "{end} {more}");
            }
        }
        refused(
            &app,
            PATH,
            &json!({"input": ids, "task": "token_classify"}),
            (400, "unsupported_task", Some("task")),
        );
    }

    /// A short body that asks for a very long answer.
    #[test]
    fn answers_have_a_bound() {
        let config = ServerConfig {
            limits: Limits {
                answer_numbers: 77 * 4,
                ..Limits::default()
            },
            ..ServerConfig::default()
        };
        let app = app_with(config, vec![embedded(&demo::CLASSIFIER, &options())]);
        let body = |n: usize| json!({"input": vec![5; n], "task": "token_classify"});
        answer(&app, PATH, &body(4));
        refused(&app, PATH, &body(5), (400, "too_many_numbers", None));
    }

    #[test]
    fn other_tasks_are_refused_by_name() {
        let check = |more: Value, reason: &str, param: &str| {
            let mut body = json!({"input": "x"});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            refused(demos(), PATH, &body, (400, reason, Some(param)));
        };
        check(json!({"task": "embed"}), "unsupported_task", "task");
        check(json!({"task": "token_embed"}), "unsupported_task", "task");
        check(json!({"task": "sing"}), "invalid_value", "task");
        check(
            json!({"dimensions": 8}),
            "unsupported_parameter",
            "dimensions",
        );
        check(json!({"model": "demo-lm"}), "unsupported_task", "model");
        let (_, found, _) =
            crate::testing::ask(demos(), PATH, &json!({"model": "demo-lm", "input": "x"}));
        let message = found["error"]["message"].as_str().unwrap();
        assert!(message.starts_with("Unsupported task"), "{message}");
    }
}
