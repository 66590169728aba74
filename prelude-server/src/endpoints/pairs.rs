//! Relevance of documents to queries, by whatever means the model has: the heart of `/rerank` and
//! of `/score` on pairs.

use std::{borrow::Cow, collections::HashMap, ptr};

use prelude_core::{Head, Normalise, RowOutput, RowSpec};
use prelude_engine::Usage;
use prelude_models::ClassActivation;
use prelude_text::{rerank_template::DEFAULT_INSTRUCTION, shared_prefix::SharedPrompts};

use super::{
    classify::sigmoid,
    escaping::Escaping,
    input::{check_bytes, check_length},
    meter::Meter,
    read,
    submit::Common,
    truncate::{Side, Truncation, cut_text},
};
use crate::{
    endpoint::Call,
    error::ApiError,
    served_model::{Judge, ServedModel},
};

/// How pairs are judged.
#[derive(Debug, Default)]
pub(crate) struct PairOptions<'a> {
    /// What relevance means; the template's default, or nothing, if absent.
    pub(crate) instruction: Option<Cow<'a, str>>,
    /// Most tokens of a query; 0 keeps all.
    pub(crate) max_tokens_per_query: u32,
    /// Most tokens of a document; 0 keeps all.
    pub(crate) max_tokens_per_doc: u32,
    /// How long prompts are cut: only the document is.
    pub(crate) truncation: Option<Truncation>,
    /// Whether special tokens in all texts are text.
    pub(crate) escapes: Option<bool>,
    /// The field that holds the documents, for errors.
    pub(crate) field: &'static str,
}

/// What came out, and what it cost.
#[derive(Debug)]
pub(crate) struct Judged {
    /// Per pair, before the activation.
    scores: Vec<f64>,
    activation: ClassActivation,
    /// Tokens of all prompts, each once.
    pub(crate) prompt_tokens: u64,
    pub(crate) usage: Usage,
}

impl Judged {
    /// The scores: probabilities, or logits without the activation. A cosine is what it is.
    pub(crate) fn scores(&self, activation: bool) -> Vec<f64> {
        let scores = self.scores.iter().copied();
        match self.activation {
            ClassActivation::Sigmoid if activation => scores.map(sigmoid).collect(),
            _ => scores.collect(),
        }
    }
}

/// Judges pairs of a query and a document, at least one.
///
/// # Errors
/// Whatever is wrong with the texts, or admission, scheduler or engine refuse or fail with.
pub(crate) async fn judge(
    call: &Call,
    model: &ServedModel,
    common: &Common<'_>,
    pairs: &[(&str, &str)],
    options: &PairOptions<'_>,
) -> Result<Judged, ApiError> {
    call.reservation.set_rows(pairs.len() as u64)?;
    call.expect_numbers(pairs.len() as u64)?;
    let judge = model.judge.expect("a model that ranks has a judge");
    match judge {
        Judge::Cosine if options.escapes == Some(true) => {
            let message = "this model embeds the texts as they are: special tokens in them cannot \
                be kept apart";
            let error = ApiError::new(400, "unsupported_parameter", message);
            Err(error.with_param("escape_special_tokens"))
        }
        Judge::Cosine => by_cosine(call, model, common, pairs, options).await,
        Judge::YesNo { .. } | Judge::Class => by_prompt(call, model, common, pairs, options).await,
    }
}

async fn by_prompt(
    call: &Call,
    model: &ServedModel,
    common: &Common<'_>,
    pairs: &[(&str, &str)],
    options: &PairOptions<'_>,
) -> Result<Judged, ApiError> {
    let judge = model.judge.expect("a model that ranks has a judge");
    let template = model.rerank_template.as_ref();
    let template = template.expect("a model that judges prompts has a template");
    let instruction = options.instruction.as_deref();
    let instruction = instruction.unwrap_or(DEFAULT_INSTRUCTION);
    let all = || {
        let all = pairs
            .iter()
            .flat_map(|&(query, document)| [query, document]);
        all.chain([instruction]).collect()
    };
    let escaping = Escaping::new(call, model, options.escapes, all)?;
    let render = |query: &str, document: &str| {
        let [instruction, query, document] =
            [instruction, query, document].map(|text| escaping.text(text));
        let rendered = template.render(&instruction, &query, &document);
        rendered.map_err(|e| ApiError::template(e.to_string()).with_param(options.field))
    };
    // Rendered prompts bring their special tokens with them.
    let count = |text: &str| escaping.count(text);
    let bytes = bytes(pairs) + instruction.len() * pairs.len();
    let work = || {
        let meter = Meter::new(call);
        // One query for many documents is one `&str`, and cut once.
        let mut last: Option<(&str, Cow<'_, str>)> = None;
        let query_cap = options.max_tokens_per_query;
        if options.truncation.is_some()
            && let [(first, _), rest @ ..] = pairs
        {
            // Where a document is cut is learned from the whole prompt around it.
            let again = rest.iter().filter(|(query, _)| ptr::eq(*query, *first));
            meter.read_again(capped(model, first, query_cap).len(), again.count())?;
            meter.read_again(instruction.len(), rest.len())?;
        }
        let prompts = pairs.iter().map(|&(whole, document)| {
            if last.as_ref().is_none_or(|(of, _)| !ptr::eq(*of, whole)) {
                last = Some((whole, capped(model, whole, query_cap)));
            }
            let query: &str = &last.as_ref().expect("set above").1;
            let mut document = capped(model, document, options.max_tokens_per_doc);
            if let Some(truncation) = &options.truncation {
                let measure = |document: &str| Ok(count(&render(query, document)?));
                let fitting = truncation.fit(model, options.field, &document, measure)?;
                document = Cow::Owned(fitting.into_owned());
            }
            render(query, &document)
        });
        SharedPrompts::encode(prompts, model.cuts, |text, out| {
            // At once: a long query is not encoded again with every document to learn it.
            escaping.encode_within(options.field, text, out)?;
            meter.add(out.len())
        })
    };
    let prompts = call.encode(bytes, work).await??;
    let mut prompt_tokens = 0;
    for len in prompts.lens() {
        check_length(options.field, len, 0, model)?;
        prompt_tokens += len as u64;
    }
    let (tree, ends) = prompts
        .into_tree()
        .map_err(|e| read::of_tree(options.field, &e))?;
    let head = match judge {
        Judge::YesNo { yes, no } => Head::LabelScores {
            labels: [yes, no].into(),
            normalise: Normalise::OverLabels,
        },
        _ => Head::Classify,
    };
    let row = |node| RowSpec {
        node,
        head: head.clone(),
    };
    let rows = ends.into_iter().map(row).collect();
    let (outputs, usage) = read::read_rows(call, model, common, tree, rows, prompt_tokens).await?;
    let score = |output| match output {
        RowOutput::LabelScores(scores) => match scores.logits[..] {
            [yes, no] => Ok(f64::from(yes) - f64::from(no)),
            _ => Err(read::mismatch(call)),
        },
        RowOutput::Classes(logits) => match logits[..] {
            [logit] => Ok(f64::from(logit)),
            _ => Err(read::mismatch(call)),
        },
        _ => Err(read::mismatch(call)),
    };
    Ok(Judged {
        scores: outputs.into_iter().map(score).collect::<Result<_, _>>()?,
        activation: match judge {
            Judge::Class => model.pair_activation,
            _ => ClassActivation::Sigmoid,
        },
        prompt_tokens,
        usage,
    })
}

/// The cosine of embeddings. Each distinct text is embedded once.
async fn by_cosine(
    call: &Call,
    model: &ServedModel,
    common: &Common<'_>,
    pairs: &[(&str, &str)],
    options: &PairOptions<'_>,
) -> Result<Judged, ApiError> {
    let pooling = model.pooling.expect("a model that embeds pools");
    let before = match &options.instruction {
        Some(instruction) => format!("Instruct: {instruction}\nQuery:"),
        None => String::new(),
    };
    let work = || {
        let mut texts = Distinct::default();
        let roles_are_one =
            before.is_empty() && options.max_tokens_per_query == options.max_tokens_per_doc;
        let mut of_pair = Vec::with_capacity(pairs.len());
        // One query for many documents is one `&str`, and looked up once.
        let mut last: Option<(&str, usize)> = None;
        for &(query, document) in pairs {
            let place = match last {
                Some((of, place)) if ptr::eq(of, query) => place,
                _ => texts.index(query, true),
            };
            last = Some((query, place));
            of_pair.push((place, texts.index(document, roles_are_one)));
        }
        let meter = Meter::new(call);
        let encode = |&(text, is_query): &(&str, bool)| {
            let (before, max) = match is_query {
                true => (before.as_str(), options.max_tokens_per_query),
                false => ("", options.max_tokens_per_doc),
            };
            let text = capped(model, text, max);
            let whole = |text: &str| format!("{before}{text}");
            let text = match &options.truncation {
                Some(truncation) => truncation.fit(model, options.field, &text, |text| {
                    Ok(model.tokenizer.count(&whole(text), true))
                })?,
                None => Cow::Borrowed(&*text),
            };
            let text = whole(&text);
            check_bytes(options.field, text.len(), model)?;
            let ids = model.tokenizer.encode(&text, true);
            check_length(options.field, ids.len(), 0, model)?;
            meter.add(ids.len())?;
            Ok::<_, ApiError>(ids)
        };
        let ids = texts
            .texts
            .iter()
            .map(encode)
            .collect::<Result<Vec<_>, _>>()?;
        Ok::<_, ApiError>((ids, of_pair))
    };
    let (ids, of_pair) = call.encode(bytes(pairs), work).await??;
    call.reservation.set_rows(ids.len() as u64)?;
    let (tree, ends, prompt_tokens) = read::tree(model, options.field, &ids)?;
    let row = |node| RowSpec {
        node,
        head: Head::Embed {
            pooling,
            normalise: true,
            dimensions: None,
        },
    };
    let rows = ends.into_iter().map(row).collect();
    let (outputs, usage) = read::read_rows(call, model, common, tree, rows, prompt_tokens).await?;
    let vector = |output| match output {
        RowOutput::Embedding(vector) => Ok(vector),
        _ => Err(read::mismatch(call)),
    };
    let vectors: Vec<Vec<f32>> = outputs.into_iter().map(vector).collect::<Result<_, _>>()?;
    let dot = |(a, b): (usize, usize)| -> f64 {
        let products = vectors[a].iter().zip(&vectors[b]);
        products.map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
    };
    Ok(Judged {
        scores: of_pair.into_iter().map(dot).collect(),
        activation: ClassActivation::Identity,
        prompt_tokens,
        usage,
    })
}

/// Texts without repetition.
#[derive(Default)]
struct Distinct<'t> {
    texts: Vec<(&'t str, bool)>,
    places: HashMap<(&'t str, bool), usize>,
}

impl<'t> Distinct<'t> {
    /// The place of a text in its role.
    fn index(&mut self, text: &'t str, is_query: bool) -> usize {
        *self.places.entry((text, is_query)).or_insert_with(|| {
            self.texts.push((text, is_query));
            self.texts.len() - 1
        })
    }
}

fn bytes(pairs: &[(&str, &str)]) -> usize {
    pairs.iter().map(|(q, d)| q.len() + d.len()).sum()
}

/// At most `max` tokens of a text, from its beginning; all of it if `max` is 0.
fn capped<'t>(model: &ServedModel, text: &'t str, max: u32) -> Cow<'t, str> {
    match max {
        0 => Cow::Borrowed(text),
        max => cut_text(model, text, max as usize, Side::Right),
    }
}
