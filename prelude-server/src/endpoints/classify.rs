//! `POST /classify`: classes of texts, from a classification head, or from a language model and a
//! list of labels.

use std::{borrow::Cow, collections::HashSet, sync::Arc};

use bytes::Bytes;
use prelude_core::{Head, Normalise, RowOutput, RowSpec, TokenHead, TokenId};
use prelude_engine::Usage;
use prelude_models::ClassActivation;
use prelude_text::{
    label_trie::{LabelTrie, MAX_PLACES, rows_behind, softmax},
    shared_prefix::SharedPrompts,
    template::{ChatInputs, ChatTemplate, TemplateError, no_thinking},
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::{
    embeddings::Of,
    escaping::Escaping,
    input::{self, Inputs, InputsFields, Prompt, check_length},
    meter::Meter,
    read,
    submit::{Common, CommonFields, UsageBody},
};
use crate::{
    endpoint::{Call, Endpoint, Reply, json, schema, unix_seconds},
    error::ApiError,
    served_model::{ServedModel, Task},
    wire::{Text, request},
};

/// `POST /classify`.
pub(crate) const CLASSIFY: Endpoint = Endpoint {
    group: "decisions",
    summary: "Classify texts",
    request: Some(schema::<ClassifyRequest<'static>>),
    responses: json::<Response<'static>>,
    ..Endpoint::post(&["/classify", "/v1/classify"], |call, body| {
        Box::pin(handle(call, body))
    })
};

/// Most labels a language model is asked to choose from.
const LABELS_MAX: usize = 1_024;

/// Where a template takes the text. Whoever may not bring a program may say that, once, and nothing
/// else of the template language.
const TEXT: &str = "{{ text }}";

/// What a language model chooses from.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct LabelFields<'a> {
    /// 2 to 1,024 names for a language model to choose from.
    labels: Option<Vec<String>>,
    /// Text around each input, with `{{ text }}` in it once (with `labels`); where the server trusts
    /// templates of requests, any template over `text`.
    #[serde(borrow)]
    template: Option<Text<'a>>,
}

request! {
    /// `POST /classify`.
    struct ClassifyRequest<'a> {
        labels: LabelFields<'a>,
        inputs: InputsFields<'a>,
        common: CommonFields<'a>,
    }
    refuses &[("stream", &["false"])];
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Classification")]
pub(crate) struct Response<'a> {
    id: String,
    object: &'static str,
    created: u64,
    model: &'a str,
    data: Vec<Item<'a>>,
    usage: UsageBody,
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
            #[expect(
                clippy::cast_possible_truncation,
                reason = "written in f32's precision"
            )]
            probs: probs.into_iter().map(|p| p as f32).collect(),
        }
    }
}

/// Answers `/classify`.
pub(crate) async fn handle(call: &Arc<Call>, body: Bytes) -> Result<Reply, ApiError> {
    let request: ClassifyRequest<'_> = call.read(&body)?;
    let common = Common::new(call, request.common)?;
    // Labels are for language models; without a model's name, the one that can use them is meant.
    let model = match (&common.model, request.labels.labels.is_some()) {
        (None, true) => call.app.model_of(Task::Classify, |m| m.has_vocabulary())?,
        (None, false) => call.app.model_of(Task::Classify, |m| !m.has_vocabulary())?,
        (Some(name), _) => call.app.model_for(Some(name.as_ref()), Task::Classify)?,
    };
    let (labels, inputs) = (request.labels, request.inputs);
    let classified = classify(call, model, &common, labels, inputs, Of::Texts).await?;
    let write = move || {
        let probs = classified.probs.into_iter().enumerate();
        let data = probs.map(|(i, probs)| Item::new(i, &classified.labels, probs.concat()));
        Reply::json(&Response {
            id: call.app.ids.next("classify-"),
            object: "list",
            created: unix_seconds(),
            model: &model.name,
            data: data.collect(),
            usage: UsageBody::new(classified.tokens, 0, Some(&classified.usage)),
        })
    };
    Ok(call.write(call.reservation.answer_bytes(), write).await)
}

/// Classes of a request's inputs, and what they cost.
pub(crate) struct Classified<'m> {
    /// Of each input, one list in the order of `labels`, or one for each of its tokens.
    pub(crate) probs: Vec<Vec<Vec<f64>>>,
    labels: Cow<'m, [String]>,
    pub(crate) tokens: u64,
    pub(crate) usage: Usage,
}

/// Classifies a request's inputs.
///
/// # Errors
/// 400 for whatever is wrong with the request, 429, 503, 500.
pub(crate) async fn classify<'m>(
    call: &Call,
    model: &'m ServedModel,
    common: &Common<'_>,
    labels: LabelFields<'_>,
    inputs: InputsFields<'_>,
    of: Of,
) -> Result<Classified<'m>, ApiError> {
    let activation = inputs.input.use_activation.unwrap_or(true);
    let inputs = Inputs::new(call, model, inputs)?;
    call.reservation.set_rows(inputs.len() as u64)?;
    if model.has_vocabulary() {
        return by_labels(call, model, common, labels, inputs, activation).await;
    }
    let given = [
        ("labels", labels.labels.is_some()),
        ("template", labels.template.is_some()),
    ];
    if let Some((name, _)) = given.into_iter().find(|(_, is_given)| *is_given) {
        let must = "be left out: this model has classes of its own";
        return Err(ApiError::invalid_value(name, must));
    }
    inputs.check_not_escaped()?;
    by_head(call, model, common, inputs, activation, of).await
}

async fn by_head<'m>(
    call: &Call,
    model: &'m ServedModel,
    common: &Common<'_>,
    inputs: Inputs<'_>,
    activation: bool,
    of: Of,
) -> Result<Classified<'m>, ApiError> {
    let (prompts, encoding) = inputs.into_prompts(call, model).await?;
    let field = encoding.field;
    let prompts = input::encode(call, model, prompts, encoding).await?;
    let (tree, ends, tokens) = read::tree(model, field, &prompts)?;
    let width = u32::try_from(model.id2label.len()).expect("a head has few classes");
    let (head, lists) = match of {
        Of::Texts => (Head::Classify, prompts.len() as u64),
        Of::Tokens => (Head::Tokens(TokenHead::Classify), tokens),
    };
    call.expect_numbers(lists * u64::from(width))?;
    let row = |node| RowSpec {
        node,
        head: head.clone(),
    };
    let rows = ends.into_iter().map(row).collect();
    let (outputs, usage) = read::read_rows(call, model, common, tree, rows, tokens).await?;
    let activation = match activation {
        true => model.class_activation,
        false => ClassActivation::Identity,
    };
    let of_logits = |logits: Vec<f32>| activated(activation, &logits);
    let probs = |output| match output {
        RowOutput::Classes(logits) => Ok(vec![of_logits(logits)]),
        RowOutput::Tokens { rows, .. } => Ok(rows.into_iter().map(of_logits).collect()),
        _ => Err(read::mismatch(call)),
    };
    // Exponentials of as many numbers as the answer has.
    let all = || outputs.into_iter().map(probs).collect::<Result<_, _>>();
    let probs = call.write(call.reservation.answer_bytes(), all).await?;
    Ok(Classified {
        probs,
        labels: Cow::Borrowed(&model.id2label),
        tokens,
        usage,
    })
}

/// Returns the numbers that answers show for the logits of a classification head.
pub(crate) fn activated(activation: ClassActivation, logits: &[f32]) -> Vec<f64> {
    let each = logits.iter().map(|&logit| f64::from(logit));
    match activation {
        ClassActivation::Softmax => softmax(logits),
        ClassActivation::Sigmoid => each.map(sigmoid).collect(),
        ClassActivation::Identity => each.collect(),
    }
}

pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

async fn by_labels<'m>(
    call: &Call,
    model: &'m ServedModel,
    common: &Common<'_>,
    fields: LabelFields<'_>,
    inputs: Inputs<'_>,
    activation: bool,
) -> Result<Classified<'m>, ApiError> {
    if inputs.field == "messages" || !inputs.add_special_tokens {
        // Labels stand behind a prompt of one text in one place of the chat template.
        let name = if inputs.field == "messages" {
            "messages"
        } else {
            "add_special_tokens"
        };
        return Err(ApiError::unsupported_parameter(name));
    }
    let text = |input| match input {
        Prompt::Text(text) => Ok(text),
        Prompt::Ids(_) => {
            let must_be = "a string or a list of strings, to be put into the chat template";
            Err(ApiError::invalid_type("input", must_be))
        }
    };
    let escapes = inputs.escapes;
    let (prompts, encoding) = inputs.into_prompts(call, model).await?;
    let truncation = encoding.truncation;
    let texts = prompts
        .into_iter()
        .map(text)
        .collect::<Result<Vec<_>, _>>()?;
    let labels = checked(fields.labels)?;
    let template = fields
        .template
        .as_ref()
        .map_or(TEXT, |template| &template.0);
    let content = Content::new(call, model, template)?;
    let all = || {
        let all = texts.iter().map(|text| &**text).chain([template]);
        all.chain(labels.iter().map(String::as_str)).collect()
    };
    let escaping = Escaping::new(call, model, escapes, all)?;
    let turn = |text: &str| user_turn(model, &content.around(&escaping.text(text))?);
    let named: Vec<Cow<'_, str>> = labels.iter().map(|label| escaping.text(label)).collect();

    let label_bytes = labels.iter().map(String::len).sum();
    let rows = rows_behind(labels.len(), label_bytes).saturating_mul(texts.len() as u64);
    call.reservation.guess_rows(rows)?;
    let bytes: usize = texts.iter().map(|t| t.len() + template.len()).sum();
    // What a program prints is not known beforehand: not on the thread that reads requests.
    let unknown = if matches!(content, Content::Program(_)) {
        1 << 20
    } else {
        0
    };
    let bytes = bytes.saturating_add(unknown);
    let encoded = call.encode(bytes, || {
        let meter = Meter::new(call);
        let trie_behind = |prompt| label_trie(&escaping, &meter, prompt, &named);
        let truncation = match truncation {
            None => None,
            Some(truncation) => {
                // Where a text is cut is learned from the whole prompt, for each text anew.
                meter.read_again(template.len(), texts.len() - 1)?;
                // The context also holds the labels behind each text.
                let depth = trie_behind(turn("")?)?.depth();
                let limit = model.max_model_len as usize;
                Some(truncation.within(limit.saturating_sub(depth)))
            }
        };
        let mut first = None;
        let count = |text: &str| Ok(escaping.count(&turn(text)?));
        let turns = texts.iter().map(|text| {
            let turn = match &truncation {
                None => turn(text)?,
                Some(truncation) => turn(&truncation.fit(model, "input", text, count)?)?,
            };
            first.get_or_insert_with(|| turn.clone());
            Ok(turn)
        });
        let prompts = SharedPrompts::encode(turns, model.cuts, |text, out| {
            // At once: a long template is not encoded again with every text to learn it.
            escaping.encode_within("input", text, out)?;
            meter.add(out.len())
        })?;
        // A text that is too long is refused before labels are put behind it.
        for len in prompts.lens() {
            check_length("input", len, 0, model)?;
        }
        let trie = trie_behind(first.expect("there are texts"))?;
        Ok::<_, ApiError>((trie, prompts))
    });
    let (trie, prompts) = encoded.await??;
    call.reservation
        .set_rows((texts.len() * trie.num_rows()) as u64)?;
    for len in prompts.lens() {
        check_length("input", len, trie.depth() as u64, model)?;
    }
    let tokens = prompts.lens().map(|len| len as u64).sum();
    call.expect_numbers((texts.len() * labels.len()) as u64)?;
    let of_tree = |e| read::of_tree("input", &e);
    let (mut tree, ends) = prompts.into_tree().map_err(of_tree)?;
    let mut rows = Vec::with_capacity(texts.len() * trie.num_rows());
    for end in ends {
        trie.graft(&mut tree, end, Normalise::OverVocab, &mut rows)
            .map_err(of_tree)?;
    }
    let (outputs, usage) = read::read_rows(call, model, common, tree, rows, tokens).await?;
    let scores = read::trie_scores(call, outputs)?;
    let probs = scores.chunks(trie.num_rows()).map(|scores| {
        let log = trie.log_probabilities(scores);
        vec![if activation { normalised(&log) } else { log }]
    });
    Ok(Classified {
        probs: probs.collect(),
        labels: Cow::Owned(labels),
        tokens,
        usage,
    })
}

/// Probabilities in proportion to the exponentials of `log`.
pub(crate) fn normalised(log: &[f64]) -> Vec<f64> {
    let max = log.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = log.iter().map(|l| (l - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / sum).collect()
}

fn checked(labels: Option<Vec<String>>) -> Result<Vec<String>, ApiError> {
    let labels = labels.ok_or_else(|| ApiError::missing_field("labels"))?;
    if !(2..=LABELS_MAX).contains(&labels.len()) {
        let must = format!("have 2 to {LABELS_MAX} entries");
        return Err(ApiError::invalid_value("labels", must));
    }
    let mut sorted: Vec<&String> = labels.iter().collect();
    sorted.sort_unstable();
    if sorted[0].is_empty() || sorted.windows(2).any(|w| w[0] == w[1]) {
        let must = "have distinct entries, none of them empty";
        return Err(ApiError::invalid_value("labels", must));
    }
    Ok(labels)
}

/// What a text stands in, in the user's turn.
enum Content<'t> {
    Parts(&'t str, &'t str),
    Program(Box<ChatTemplate>),
}

impl<'t> Content<'t> {
    fn new(call: &Call, model: &ServedModel, template: &'t str) -> Result<Self, ApiError> {
        let config = &call.app.config;
        let parts = split_template(template);
        if parts.is_ok() || !config.trust_request_template {
            return parts.map(|(before, after)| Self::Parts(before, after));
        }
        let max = config.limits.template_bytes;
        if template.len() > max {
            let must = format!("have at most {max} bytes where it is a program");
            return Err(ApiError::invalid_value("template", must));
        }
        let own = model.template.as_ref();
        let own = own.expect("a model that serves this task has a template");
        own.replaced(template, config.limits.rendered_bytes)
            .map(|program| Self::Program(Box::new(program)))
            .map_err(|e| of_template(&e))
    }

    fn around(&self, text: &str) -> Result<String, ApiError> {
        let program = match self {
            Self::Parts(before, after) => return Ok([before, text, after].concat()),
            Self::Program(program) => program,
        };
        let inputs = ChatInputs {
            messages: &[],
            tools: None,
            documents: None,
            add_generation_prompt: false,
            kwargs: &Map::from_iter([("text".to_owned(), text.into())]),
        };
        program.render(&inputs).map_err(|e| of_template(&e))
    }
}

fn of_template(error: &TemplateError) -> ApiError {
    ApiError::template(error.to_string()).with_param("template")
}

fn split_template(template: &str) -> Result<(&str, &str), ApiError> {
    let split = template.split_once(TEXT);
    let is_plain = |part: &str| !["{{", "{%", "{#"].iter().any(|tag| part.contains(tag));
    match split {
        Some((before, after)) if is_plain(before) && is_plain(after) => Ok((before, after)),
        _ => {
            let must = format!("hold {TEXT:?} once and no other tag");
            Err(ApiError::invalid_value("template", must))
        }
    }
}

/// A prompt of one user turn, up to where the answer begins, with thinking off.
pub(crate) fn user_turn(model: &ServedModel, content: &str) -> Result<String, ApiError> {
    prompt(model, &[json!({"role": "user", "content": content})])
}

/// A prompt up to where the answer begins, with thinking off.
pub(crate) fn prompt(model: &ServedModel, messages: &[Value]) -> Result<String, ApiError> {
    let template = model.template.as_ref();
    let template = template.expect("a model that serves this task has a template");
    let inputs = ChatInputs {
        messages,
        tools: None,
        documents: None,
        add_generation_prompt: true,
        kwargs: &no_thinking(),
    };
    template
        .render(&inputs)
        .map_err(|e| ApiError::template(e.to_string()))
}

/// The labels and the end of the turn, as they are tokenised behind `prompt`.
pub(crate) fn label_trie<L: std::fmt::Display>(
    escaping: &Escaping<'_>,
    meter: &Meter,
    prompt: String,
    labels: &[L],
) -> Result<LabelTrie, ApiError> {
    let model = escaping.model;
    let end = model.end_of_turn.ok_or_else(|| {
        let message = "this model has no end token, so no label ever ends";
        ApiError::new(400, "unsupported_parameter", message).with_param("labels")
    })?;
    let with_label = labels.iter().map(|label| format!("{prompt}{label}"));
    let texts = [prompt.clone()].into_iter().chain(with_label);
    let encoded = SharedPrompts::encode(texts.map(Ok::<_, ApiError>), model.cuts, |text, out| {
        escaping.encode_within("labels", text, out)?;
        meter.add(out.len())
    })?;
    let mut prompts = encoded.into_prompts();
    let prompt = prompts.next().expect("the prompt was put first");
    let mut sequences: Vec<Vec<TokenId>> = Vec::with_capacity(labels.len());
    let mut seen = HashSet::with_capacity(labels.len());
    for (index, whole) in prompts.enumerate() {
        let Some(label) = whole
            .strip_prefix(prompt.as_slice())
            .filter(|l| !l.is_empty())
        else {
            let must = "not melt into the prompt: its first token would begin before the answer";
            return Err(ApiError::invalid_value(format!("labels/{index}"), must));
        };
        // Refused before a trie of that depth is built.
        check_length("labels", prompt.len() + label.len(), 0, model)?;
        let sequence: Vec<TokenId> = label.iter().copied().chain([end]).collect();
        if !seen.insert(sequence.clone()) {
            let must = "not read like another label to the model";
            return Err(ApiError::invalid_value(format!("labels/{index}"), must));
        }
        sequences.push(sequence);
    }
    LabelTrie::new(&sequences).ok_or_else(|| {
        let must = format!("have at most {MAX_PLACES} tokens, common beginnings counted once");
        ApiError::invalid_value("labels", must)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Golden, answer, ask, assert_close, demos, golden, refused};

    #[test]
    fn templates_hold_the_text_and_nothing_else() {
        let check = |template: &str, expected: Option<(&str, &str)>| {
            assert_eq!(split_template(template).ok(), expected, "{template}");
        };
        check("{{ text }}", Some(("", "")));
        check("a {{ text }}\nWhich topic?", Some(("a ", "\nWhich topic?")));
        check("no text", None);
        check("{{ text }}{{ text }}", None);
        check("{{ text|upper }}", None);
        check("{% set x = 1 %}{{ text }}", None);
        check("{# c #}{{ text }}", None);
    }

    #[test]
    fn logits_are_activated() {
        let check = |activation, logits: &[f32], expected: &[f64]| {
            assert_eq!(activated(activation, logits), expected);
        };
        check(ClassActivation::Sigmoid, &[0.0], &[0.5]);
        check(
            ClassActivation::Sigmoid,
            &[0.0, 1e9, -1e9],
            &[0.5, 1.0, 0.0],
        );
        check(ClassActivation::Softmax, &[1.0, 1.0], &[0.5, 0.5]);
        check(ClassActivation::Identity, &[1.0, -2.0], &[1.0, -2.0]);
    }

    #[test]
    fn label_probabilities_do_not_underflow() {
        let p = normalised(&[-2000.0, -2001.0]);
        assert!((p[0] - 0.731).abs() < 1e-3 && (p.iter().sum::<f64>() - 1.0).abs() < 1e-12);
    }

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
        let labels = &demos().model(Some("demo-classifier")).unwrap().id2label;
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
            tokens.push(model.end_of_turn.unwrap());
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
        let meter = Meter::up_to(1 << 20);
        let trie = label_trie(&Escaping::none(model), &meter, turn, &labels);
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
        let too_long = (400, "context_length_exceeded", Some("input"));
        refused(demos(), PATH, &body, too_long);
    }

    #[test]
    fn refusals() {
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
            (400, "invalid_value", Some("labels/1")),
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

    /// So many labels of so many words.
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
