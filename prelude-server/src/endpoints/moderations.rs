//! `POST /v1/moderations`: harmful categories of texts, in OpenAI's shape, by a classification head
//! or by the verdicts of a guard model.

use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

use bytes::Bytes;
use prelude_models::ClassActivation;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{SeqAccess, Visitor},
    ser::SerializeMap,
};
use serde_json::{json, value::RawValue};

use crate::{
    endpoint::{Call, Endpoint, Reply, json, schema},
    error::ApiError,
    served_model::ServedModel,
    tasks::{
        classify::{self, LabelFields, classify},
        embed::Unit,
        guidelines::{GUIDELINES_MAX, judge, takes_guidelines},
        input::Inputs,
        submit::{Common, CommonFields},
    },
    wire::{Text, request, unsupported, wrong_type, wrong_value},
};

/// `POST /v1/moderations`.
pub(crate) const MODERATIONS: Endpoint = Endpoint {
    group: "decisions",
    summary: "Flag harmful texts",
    request: Some(schema::<ModerationRequest<'static>>),
    responses: json::<Response<'static>>,
    ..Endpoint::post(&["/v1/moderations"], |call, body| {
        Box::pin(handle(call, body))
    })
};

/// The answers of guard models that are language models, each with the name of its category. A
/// guard's chat template asks for these answers by name.
const VERDICTS: [&Verdicts; 1] = [
    // Qwen3Guard-Gen.
    &[
        ("Safety: Safe", "safe"),
        ("Safety: Controversial", "controversial"),
        ("Safety: Unsafe", "unsafe"),
    ],
];

/// Answers, and the names of their categories.
type Verdicts = [(&'static str, &'static str)];

/// Names of classes that are no harmful category, in lower case, with `-` and `_` as spaces.
const HARMLESS: [&str; 12] = [
    "safe",
    "ok",
    "none",
    "neutral",
    "normal",
    "benign",
    "harmless",
    "clean",
    "non toxic",
    "not toxic",
    "nontoxic",
    "no hate",
];

/// Texts to moderate.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct ModerationFields<'a> {
    #[serde(borrow)]
    input: Texts<'a>,
    /// 1 to 64 categories, each with the guideline that its texts violate: of a guard that is asked
    /// about one at a time (ShieldGemma).
    guidelines: Option<BTreeMap<String, String>>,
}

request! {
    /// `POST /v1/moderations`.
    struct ModerationRequest<'a> {
        moderation: ModerationFields<'a>,
        labels: LabelFields<'a>,
        common: CommonFields<'a>,
    }
    refuses &[("stream", &["false"])];
}

/// A string, a list of strings, or a list of parts that are one text together; at least one.
#[derive(Debug)]
struct Texts<'a>(Vec<Cow<'a, str>>);

#[derive(Deserialize)]
struct Part<'a> {
    r#type: Kind,
    #[serde(borrow)]
    text: Option<Text<'a>>,
}

#[derive(Deserialize, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Text,
    ImageUrl,
}

impl<'de: 'a, 'a> Deserialize<'de> for Texts<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shapes;
        impl<'de> Visitor<'de> for Shapes {
            type Value = Vec<Cow<'de, str>>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string, a list of strings or a list of text parts")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(vec![Cow::Borrowed(text)])
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(vec![Cow::Owned(text.to_owned())])
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
                let (mut texts, mut parts) = (Vec::new(), Vec::new());
                while let Some(item) = list.next_element::<&RawValue>()? {
                    let raw = item.get();
                    let wrong = || wrong_type("a list of strings or of text parts");
                    if raw.starts_with('"') {
                        let Text(text) = serde_json::from_str(raw).map_err(|_| wrong())?;
                        texts.push(text);
                    } else {
                        match serde_json::from_str(raw).map_err(|_| wrong())? {
                            Part {
                                r#type: Kind::Text,
                                text: Some(Text(text)),
                            } => parts.push(text),
                            Part {
                                r#type: Kind::ImageUrl,
                                ..
                            } => return Err(unsupported()),
                            Part { .. } => return Err(wrong()),
                        }
                    }
                }
                match (texts.is_empty(), parts.is_empty()) {
                    (true, true) => Err(wrong_value("not be an empty list")),
                    (false, true) => Ok(texts),
                    (true, false) => Ok(vec![Cow::Owned(parts.join("\n"))]),
                    (false, false) => Err(wrong_value("not mix strings and parts")),
                }
            }
        }
        deserializer.deserialize_any(Shapes).map(Self)
    }
}

impl JsonSchema for Texts<'_> {
    fn schema_name() -> Cow<'static, str> {
        "ModerationInput".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let part = json!({
            "type": "object",
            "properties": { "type": { "const": "text" }, "text": { "type": "string" } },
            "required": ["type", "text"],
        });
        json_schema!({
            "description": "A text, texts, or parts of one text.",
            "anyOf": [
                { "type": "string" },
                { "type": "array", "minItems": 1, "items": { "type": "string" } },
                { "type": "array", "minItems": 1, "items": part },
            ],
        })
    }
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Moderations")]
pub(crate) struct Response<'a> {
    id: String,
    model: &'a str,
    results: Vec<Moderation<'a>>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Moderation")]
struct Moderation<'a> {
    /// True if a category is.
    flagged: bool,
    categories: Categories<'a, bool>,
    category_scores: Categories<'a, f64>,
    category_applied_input_types: Categories<'a, Vec<&'static str>>,
}

/// A value for each category, in the order of the model's classes.
struct Categories<'a, T>(Vec<(&'a str, T)>);

impl<T: Serialize> Serialize for Categories<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<T: JsonSchema> JsonSchema for Categories<'_, T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("CategoriesOf{}", T::schema_name()).into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "additionalProperties": generator.subschema_for::<T>(),
        })
    }
}

/// Answers `/v1/moderations`.
async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let request: ModerationRequest<'_> = call.read(&body)?;
    let common = Common::new(call, request.common)?;
    let mut fields = request.labels;
    let ModerationFields { input, guidelines } = request.moderation;
    let asks_language_model = fields.labels.is_some() || guidelines.is_some();
    let model = classify::model(call, common.model.as_deref(), asks_language_model)?;
    if takes_guidelines(model) && fields.labels.is_none() {
        return by_guidelines(call, model, &common, &input.0, guidelines).await;
    }
    if guidelines.is_some() {
        let must = "be left out: this model's chat template has no place for a guideline, or the \
            request has `labels`";
        return Err(ApiError::invalid_value("guidelines", must));
    }
    let verdicts = verdicts(model);
    if model.has_vocabulary() && fields.labels.is_none() {
        let verdicts = verdicts.ok_or_else(not_a_guard)?;
        let answers = verdicts.iter().map(|(answer, _)| (*answer).to_owned());
        fields.labels = Some(answers.collect());
        // A guard goes on with the categories of harm.
        fields.open = true;
    }
    let inputs = Inputs::of_texts(input.0);
    let classified = classify(call, model, &common, fields, (inputs, true), Unit::Texts).await?;
    let write = move || {
        let name = |label| category(verdicts, label);
        let names: Vec<&str> = classified.labels.iter().map(|label| name(label)).collect();
        let many = model.class_activation == ClassActivation::Sigmoid && !model.has_vocabulary();
        let results = classified.probs.iter();
        let results = results.map(|probs| Moderation::new(&names, &probs.concat(), many));
        Reply::json(&Response {
            id: call.app.ids.next("modr-"),
            model: &model.name,
            results: results.collect(),
        })
    };
    Ok(call.write(0, write).await)
}

/// Answers with the guidelines that texts violate, by a guard that is asked about each.
async fn by_guidelines(
    call: &Arc<Call>,
    model: &ServedModel,
    common: &Common<'_>,
    texts: &[Cow<'_, str>],
    guidelines: Option<BTreeMap<String, String>>,
) -> Result<Reply, ApiError> {
    let guidelines = guidelines.ok_or_else(no_guidelines)?;
    if !(1..=GUIDELINES_MAX).contains(&guidelines.len()) {
        let must = format!("have 1 to {GUIDELINES_MAX} entries");
        return Err(ApiError::invalid_value("guidelines", must));
    }
    let is_empty = |(name, text): (&String, &String)| name.is_empty() || text.trim().is_empty();
    if guidelines.iter().any(is_empty) {
        let must = "have a name and a text in each entry";
        return Err(ApiError::invalid_value("guidelines", must));
    }
    let wanted: Vec<&str> = guidelines.values().map(String::as_str).collect();
    let violations = judge(call, model, common, texts, &wanted).await?;
    let names: Vec<&str> = guidelines.keys().map(String::as_str).collect();
    let write = move || {
        let results = violations.iter();
        let results = results.map(|violations| Moderation::violated(&names, violations));
        Reply::json(&Response {
            id: call.app.ids.next("modr-"),
            model: &model.name,
            results: results.collect(),
        })
    };
    Ok(call.write(0, write).await)
}

fn no_guidelines() -> ApiError {
    let message = "this guard is asked about one guideline at a time: give `guidelines`, an object \
        with a text for each category; the model's card has the texts that it was trained with";
    ApiError::new(400, "missing_field", message).with_param("guidelines")
}

fn not_a_guard() -> ApiError {
    let message = "this language model's chat template names no verdicts of a guard model: give \
        `labels` to choose from, one of them `safe`, or use a guard or a classifier";
    ApiError::new(400, "missing_field", message).with_param("labels")
}

/// Returns the verdicts that a guard's chat template asks for.
fn verdicts(model: &ServedModel) -> Option<&'static Verdicts> {
    let template = model.template.as_ref()?.source();
    let asks = |of: &&Verdicts| of.iter().all(|(answer, _)| template.contains(answer));
    VERDICTS.into_iter().find(asks)
}

/// Returns the name that answers show for a class.
fn category<'a>(verdicts: Option<&'static Verdicts>, label: &'a str) -> &'a str {
    let verdict = verdicts
        .into_iter()
        .flatten()
        .find(|(answer, _)| *answer == label);
    verdict.map_or(label, |(_, name)| name)
}

fn is_harmless(name: &str) -> bool {
    let name = name.trim().to_lowercase().replace(['-', '_'], " ");
    HARMLESS.contains(&&*name)
}

impl<'a> Moderation<'a> {
    /// Flags each category whose guideline one text violates with a probability of at least one half.
    fn violated(names: &[&'a str], violations: &[f64]) -> Self {
        let all = || names.iter().copied().zip(violations.iter().copied());
        Self {
            flagged: violations.iter().any(|&p| p >= 0.5),
            categories: Categories(all().map(|(name, p)| (name, p >= 0.5)).collect()),
            category_scores: Categories(all().collect()),
            category_applied_input_types: Categories(
                all().map(|(name, _)| (name, vec!["text"])).collect(),
            ),
        }
    }

    /// Flags the categories of one text: the likeliest class, or every class of at least one half
    /// where a text may have `many`.
    fn new(names: &[&'a str], probs: &[f64], many: bool) -> Self {
        let best = probs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let is_flagged = |p: f64| if many { p >= 0.5 } else { p >= best };
        let harmful = || {
            let all = names.iter().copied().zip(probs.iter().copied());
            all.filter(|(name, _)| !is_harmless(name))
        };
        Self {
            flagged: harmful().any(|(_, p)| is_flagged(p)),
            categories: Categories(harmful().map(|(name, p)| (name, is_flagged(p))).collect()),
            category_scores: Categories(harmful().collect()),
            category_applied_input_types: Categories(
                harmful().map(|(name, _)| (name, vec!["text"])).collect(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use prelude_text::template::ChatTemplate;
    use serde_json::Value;

    use super::*;
    use crate::{
        demo,
        load::LoadOptions,
        testing::{answer, app, demos, embedded, options, refused},
    };

    const PATH: &str = "/v1/moderations";

    #[test]
    fn categories_of_a_classifier_are_its_classes() {
        let texts = json!(["Where is my card?", "The rate is wrong"]);
        let found = answer(demos(), PATH, &json!({"input": texts}));
        assert!(found["id"].as_str().unwrap().starts_with("modr-"));
        assert_eq!(found["model"], "demo-classifier");
        let classes = answer(demos(), "/classify", &json!({"input": texts}));
        for index in [0, 1] {
            let (result, class) = (&found["results"][index], &classes["data"][index]);
            assert_eq!(result["flagged"], true);
            let flagged = result["categories"].as_object().unwrap().iter();
            let flagged: Vec<_> = flagged.filter(|(_, is)| **is == true).collect();
            let [(name, _)] = flagged[..] else {
                panic!("{flagged:?}")
            };
            assert_eq!(class["label"], **name);
            assert_eq!(
                result["category_applied_input_types"][name],
                json!(["text"])
            );
            let scores = result["category_scores"].as_object().unwrap();
            let shown = scores.values().map(|p| p.as_f64().unwrap());
            let probs = class["probs"].as_array().unwrap();
            assert_eq!(scores.len(), probs.len());
            for (shown, p) in shown.zip(probs) {
                assert!((shown - p.as_f64().unwrap()).abs() < 1e-6);
            }
        }
        // Parts are one text.
        let parts = json!({"input": [{"type": "text", "text": "Where is"}, {"type": "text", "text": "my card?"}]});
        let parts = answer(demos(), PATH, &parts);
        let joined = answer(demos(), PATH, &json!({"input": "Where is\nmy card?"}));
        assert_eq!(parts["results"], joined["results"]);
    }

    #[test]
    fn a_harmless_class_is_no_category() {
        let result = |probs: &[f64], many| {
            let names = ["Non_Toxic", "hate", "violence"];
            serde_json::to_value(Moderation::new(&names, probs, many)).unwrap()
        };
        let safe = result(&[0.8, 0.15, 0.05], false);
        assert_eq!(safe["flagged"], false);
        assert_eq!(
            safe["categories"],
            json!({"hate": false, "violence": false})
        );
        assert_eq!(
            safe["category_scores"],
            json!({"hate": 0.15, "violence": 0.05})
        );
        let harmful = result(&[0.3, 0.5, 0.2], false);
        assert_eq!(
            harmful["categories"],
            json!({"hate": true, "violence": false})
        );
        let both = result(&[0.1, 0.9, 0.5], true);
        assert_eq!(both["categories"], json!({"hate": true, "violence": true}));
        let none = result(&[0.1, 0.4, 0.49], true);
        assert_eq!(none["flagged"], false);
    }

    /// The demo language model with a template that asks as Qwen3Guard's does.
    fn guard() -> Arc<crate::App> {
        asking(
            "{% for m in messages %}{{ m.content }}{% endfor %}\nSafety: Safe, \
            Safety: Unsafe or Safety: Controversial?\n{% if add_generation_prompt %}\
            <|im_start|>assistant\n{% endif %}",
        )
    }

    /// The demo language model with another template.
    fn asking(source: &str) -> Arc<crate::App> {
        let mut guard = embedded(&demo::LM, &LoadOptions { ..options() });
        let template = guard.model.template.as_ref().unwrap();
        let template: ChatTemplate = template.replaced(source, 1 << 20).unwrap();
        guard.model.template = Some(Arc::new(template));
        app(vec![guard])
    }

    #[test]
    fn a_guard_is_asked_for_its_verdicts() {
        let guard = guard();
        let found = answer(&guard, PATH, &json!({"input": "Where is my card?"}));
        let scores = found["results"][0]["category_scores"].as_object().unwrap();
        let names: Vec<_> = scores.keys().collect();
        assert_eq!(names, ["controversial", "unsafe"]);
        // The same as the log-probabilities of the answers' own tokens.
        let prompt = "Where is my card?\nSafety: Safe, Safety: Unsafe or Safety: Controversial?\n\
            <|im_start|>assistant\n";
        let log = |answer_text: &str| {
            let model = guard.model(None).unwrap();
            let ids = |text: &str| model.tokenizer.encode(text, false);
            let (start, all) = (ids(prompt).len(), ids(&format!("{prompt}{answer_text}")));
            let body = json!({"prompt": all, "max_tokens": 0, "echo": true, "logprobs": 1});
            let found = answer(&guard, "/v1/completions", &body);
            let logprobs = &found["choices"][0]["logprobs"]["token_logprobs"];
            let logprobs = logprobs.as_array().unwrap().iter().skip(start);
            logprobs.map(|l| l.as_f64().unwrap()).sum::<f64>()
        };
        let log = VERDICTS[0].iter().map(|(answer_text, _)| log(answer_text));
        let log: Vec<f64> = log.collect();
        let sum: f64 = log.iter().map(|l| l.exp()).sum();
        for (name, log) in [("controversial", log[1]), ("unsafe", log[2])] {
            let (found, expected) = (scores[name].as_f64().unwrap(), log.exp() / sum);
            assert!(
                (found - expected).abs() < 1e-4,
                "{name}: {found} {expected}"
            );
        }
    }

    /// Asks as ShieldGemma's template does.
    const ABOUT_A_GUIDELINE: &str = "<|im_start|>user\nHuman Question: \
        {{ messages[0].content | trim }}<|im_end|>\nThe principle:\n\n{{ guideline }}\n\n\
        Is it violated? Begin with 'Yes' or 'No'.\n\n";

    #[test]
    fn a_guard_is_asked_about_each_guideline() {
        let guard = asking(ABOUT_A_GUIDELINE);
        let guidelines = json!({"cards": "Nobody speaks of cards.", "rates": "No word of rates."});
        let body = json!({"input": ["Where is my card?", "Hello"], "guidelines": guidelines});
        let found = answer(&guard, PATH, &body);
        assert_eq!(found["results"].as_array().unwrap().len(), 2);
        for (text, result) in ["Where is my card?", "Hello"]
            .iter()
            .zip(found["results"].as_array().unwrap())
        {
            let scores = result["category_scores"].as_object().unwrap();
            assert_eq!(scores.keys().collect::<Vec<_>>(), ["cards", "rates"]);
            for (name, guideline) in guidelines.as_object().unwrap() {
                // The logits of the two answers' first tokens behind the prompt.
                // Jinja leaves out a template's last line break.
                let template = ABOUT_A_GUIDELINE.strip_suffix('\n').unwrap();
                let prompt = template
                    .replace("{{ messages[0].content | trim }}", text)
                    .replace("{{ guideline }}", guideline.as_str().unwrap());
                let model = guard.model(None).unwrap();
                let first = |answer: &str| {
                    let all = model.tokenizer.encode(&format!("{prompt}{answer}"), false);
                    all[model.tokenizer.encode(&prompt, false).len()..].to_vec()
                };
                let log = |answer: &str| {
                    let start = model.tokenizer.encode(&prompt, false);
                    let all = [start.clone(), first(answer)].concat();
                    let body = json!({"prompt": all, "max_tokens": 0, "echo": true, "logprobs": 1});
                    let found = crate::testing::answer(&guard, "/v1/completions", &body);
                    let logprobs = found["choices"][0]["logprobs"]["token_logprobs"].clone();
                    let logprobs = logprobs.as_array().unwrap().clone();
                    let own = logprobs.iter().skip(start.len());
                    own.map(|l| l.as_f64().unwrap()).sum::<f64>()
                };
                let (yes, no) = (log("Yes").exp(), log("No").exp());
                let score = scores[name].as_f64().unwrap();
                assert!((score - yes / (yes + no)).abs() < 1e-4, "{name}: {score}");
                assert_eq!(result["categories"][name], score >= 0.5);
            }
            let flagged = scores.values().any(|p| p.as_f64().unwrap() >= 0.5);
            assert_eq!(result["flagged"], flagged);
        }
    }

    #[test]
    fn guidelines_that_are_refused() {
        let guard = asking(ABOUT_A_GUIDELINE);
        let check = |body: Value, reason: &str| {
            refused(&guard, PATH, &body, (400, reason, Some("guidelines")));
        };
        check(json!({"input": "a"}), "missing_field");
        check(json!({"input": "a", "guidelines": {}}), "invalid_value");
        check(
            json!({"input": "a", "guidelines": {"x": " "}}),
            "invalid_value",
        );
        check(
            json!({"input": "a", "guidelines": {"": "y"}}),
            "invalid_value",
        );
        check(json!({"input": "a", "guidelines": 3}), "invalid_type");
        let many: Vec<(String, Value)> = (0..65).map(|i| (i.to_string(), json!("x"))).collect();
        let many = Value::Object(many.into_iter().collect());
        check(json!({"input": "a", "guidelines": many}), "invalid_value");
        // A model without a place for them.
        let body = json!({"input": "a", "guidelines": {"x": "y"}, "model": "demo-classifier"});
        refused(
            demos(),
            PATH,
            &body,
            (400, "invalid_value", Some("guidelines")),
        );
        // Labels of one's own need none.
        let body = json!({"input": "Where is my card?", "labels": ["safe", "rude"]});
        answer(&guard, PATH, &body);
    }

    #[test]
    fn refusals() {
        let check = |body: Value, reason: &str, param: &str| {
            refused(demos(), PATH, &body, (400, reason, Some(param)));
        };
        check(json!({}), "missing_field", "input");
        check(json!({"input": []}), "invalid_value", "input");
        check(json!({"input": 3}), "invalid_type", "input");
        check(
            json!({"input": ["a", {"type": "text", "text": "b"}]}),
            "invalid_value",
            "input",
        );
        let image = json!([{"type": "image_url", "image_url": {"url": "x"}}]);
        check(json!({ "input": image }), "unsupported_parameter", "input");
        check(
            json!({"input": "a", "model": "demo-lm"}),
            "missing_field",
            "labels",
        );
        check(
            json!({"input": "x ".repeat(5000)}),
            "context_length_exceeded",
            "input",
        );
    }
}
