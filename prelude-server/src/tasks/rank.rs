//! Relevance of documents to queries, by the means that the model has: the task of `/rerank` and of
//! `/score` on pairs.

use std::{borrow::Cow, collections::HashMap, ptr};

use prelude_core::{Head, Normalise, RowOutput};
use prelude_models::ClassActivation;
use prelude_text::shared_prefix::SharedPrompts;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    classify::sigmoid,
    pair::encode_pair,
    place::{check_bytes, check_length, place},
    prepared::{Computed, Expected, Prepared, prepare},
    prompts::Escaping,
    submit::Ask,
    truncate::{Side, Truncation, cut_text},
};
use crate::{
    admission::{Growth, Printed},
    error::ApiError,
    served_model::{Judge, ServedModel},
    wire::{Count, Int, Text, one_of},
};

/// The options by which pairs are judged, as clients write them.
#[derive(Debug, Deserialize, JsonSchema)]
pub(crate) struct JudgeFields<'a> {
    /// The meaning of relevance (pairs).
    #[serde(borrow)]
    pub(crate) instruction: Option<Text<'a>>,
    /// 0 is no limit (pairs).
    max_tokens_per_query: Option<Count>,
    /// 0 is no limit (pairs).
    pub(crate) max_tokens_per_doc: Option<Count>,
    /// False: raw differences (pairs).
    use_activation: Option<bool>,
    /// Older vLLM's name of `use_activation` (pairs).
    activation: Option<bool>,
    /// Special tokens in texts are plain text (pairs judged behind a prompt).
    escape_special_tokens: Option<bool>,
}

impl<'a> JudgeFields<'a> {
    /// Returns the options for the texts of these two fields, the query's and the documents', without a
    /// cut; and true if scores are probabilities.
    ///
    /// # Errors
    /// 400 if the activation is named twice.
    pub(crate) fn options(
        self,
        (query_field, field): (&'static str, &'static str),
    ) -> Result<(PairOptions<'a>, bool), ApiError> {
        let activation = one_of([
            ("use_activation", self.use_activation),
            ("activation", self.activation),
        ])?;
        let options = PairOptions {
            instruction: self.instruction.map(|text| text.0),
            max_tokens_per_query: self.max_tokens_per_query.map_or(0, Int::count),
            max_tokens_per_doc: self.max_tokens_per_doc.map_or(0, Int::count),
            truncation: None,
            escapes: self.escape_special_tokens,
            field,
            query_field,
        };
        Ok((options, activation.is_none_or(|(_, is_wanted)| is_wanted)))
    }

    /// Refuses what says how pairs are judged where labels are scored; `activated` is true where
    /// the scores have an activation.
    ///
    /// # Errors
    /// 400 `unsupported_parameter`.
    pub(crate) fn check_unused(&self, activated: bool) -> Result<(), ApiError> {
        let is_limit = |limit: Option<Count>| limit.is_some_and(|limit| limit.count() > 0);
        if self.escape_special_tokens == Some(true) {
            return Err(ApiError::special_tokens_not_kept_apart());
        }
        ApiError::refuse_given(&[
            ("use_activation", self.use_activation == Some(!activated)),
            ("activation", self.activation == Some(!activated)),
            ("instruction", self.instruction.is_some()),
            ("max_tokens_per_query", is_limit(self.max_tokens_per_query)),
            ("max_tokens_per_doc", is_limit(self.max_tokens_per_doc)),
        ])
    }
}

/// The options by which pairs are judged.
#[derive(Debug, Default)]
pub(crate) struct PairOptions<'a> {
    /// The meaning of relevance; the template's default, or nothing, if absent.
    pub(crate) instruction: Option<Cow<'a, str>>,
    /// Most tokens of a query; 0 keeps all.
    pub(crate) max_tokens_per_query: u32,
    /// Most tokens of a document; 0 keeps all.
    pub(crate) max_tokens_per_doc: u32,
    /// The cut of prompts that are too long: only the document is cut.
    pub(crate) truncation: Option<Truncation>,
    /// True if special tokens in all texts are plain text.
    pub(crate) escapes: Option<bool>,
    /// The field that holds the documents, for errors.
    pub(crate) field: &'static str,
    /// The field that holds the query, for errors about it alone.
    pub(crate) query_field: &'static str,
}

/// The scores of pairs, and what they cost.
#[derive(Debug)]
pub(crate) struct Judged {
    /// A score for each pair, before the activation.
    pub(crate) computed: Computed<f64>,
    activation: ClassActivation,
}

impl Judged {
    /// Returns the scores: probabilities, or logits without the activation. A cosine has none.
    pub(crate) fn scores(&self, activation: bool) -> Vec<f64> {
        let scores = self.computed.outputs.iter().copied();
        match self.activation {
            ClassActivation::Sigmoid if activation => scores.map(sigmoid).collect(),
            _ => scores.collect(),
        }
    }
}

/// Judges pairs of a query and a document, at least one.
///
/// # Errors
/// 400 for texts that cannot be ranked; the refusals and failures of admission, scheduler and engine.
pub(crate) async fn judge(
    ask: &Ask<'_>,
    pairs: &[(&str, &str)],
    options: &PairOptions<'_>,
) -> Result<Judged, ApiError> {
    let model = ask.model;
    match model.judge().expect("a model that ranks has a judge") {
        Judge::Cosine if options.escapes == Some(true) => {
            let message = "this model embeds the texts as they are: special tokens in them cannot \
                be kept apart";
            let error = ApiError::new(400, "unsupported_parameter", message);
            Err(error.with_param("escape_special_tokens"))
        }
        Judge::Pair => by_pair(ask, pairs, options).await,
        Judge::Cosine => by_cosine(ask, pairs, options).await,
        Judge::YesNo { yes, no } => {
            let head = Head::LabelScores {
                labels: [yes, no].into(),
                normalise: Normalise::OverLabels,
            };
            by_prompt(ask, pairs, options, head).await
        }
        Judge::Class => by_prompt(ask, pairs, options, Head::Classify).await,
    }
}

/// Prepares a number for each pair, of its texts and so many bytes more.
async fn prepare_pairs<T>(
    ask: &Ask<'_>,
    pairs: &[(&str, &str)],
    more_bytes: usize,
    work: impl FnOnce() -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let bytes: usize = pairs.iter().map(|(q, d)| q.len() + d.len()).sum();
    let expected = Expected {
        prompts: pairs.len(),
        rows: 0,
        bytes: bytes + more_bytes,
    };
    let numbers = Growth::Numbers(pairs.len() as u64, Printed::Decimal);
    let work = || {
        ask.call.reservation.grow(numbers)?;
        work()
    };
    prepare(ask, expected, work).await
}

/// Judges by an output at the end of a prompt about both texts.
async fn by_prompt(
    ask: &Ask<'_>,
    pairs: &[(&str, &str)],
    options: &PairOptions<'_>,
    head: Head,
) -> Result<Judged, ApiError> {
    let model = ask.model;
    let judging = model.judges();
    let template = judging.template.as_ref();
    let default = template.and_then(|template| template.default_instruction());
    let instruction = options.instruction.as_deref().or(default);
    let more_bytes = instruction.map_or(0, str::len) * pairs.len();
    let prepared = prepare_pairs(ask, pairs, more_bytes, || {
        let prompts = prompts(ask, pairs, options, instruction)?;
        Prepared::with_head(model, options.field, prompts, &head)
    });
    let score = |output| match output {
        RowOutput::LabelScores(scores) => match scores.logits[..] {
            [yes, no] => Some(f64::from(yes) - f64::from(no)),
            _ => None,
        },
        output => one_class(output),
    };
    let computed = prepared.await?.compute(ask, score).await?;
    Ok(Judged {
        computed,
        activation: model.judges().activation,
    })
}

/// Judges by the class of both texts, read as a pair.
async fn by_pair(
    ask: &Ask<'_>,
    pairs: &[(&str, &str)],
    options: &PairOptions<'_>,
) -> Result<Judged, ApiError> {
    let Ask { call, model, .. } = ask;
    let refuse = |field, why: &str| {
        let message = format!("this model reads a query and a document as they are: {why}");
        Err(ApiError::new(400, "unsupported_parameter", message).with_param(field))
    };
    if options.instruction.is_some() {
        return refuse("instruction", "there is no place for an instruction");
    }
    if options.escapes == Some(true) {
        return refuse(
            "escape_special_tokens",
            "special tokens cannot be kept apart",
        );
    }
    let encode = |(index, &(query, document)): (usize, &(&str, &str))| {
        let query = capped(model, query, options.max_tokens_per_query);
        let document = capped(model, document, options.max_tokens_per_doc);
        let place = place(options.field, index, pairs.len());
        let pair = encode_pair(model, place, (&query, &document), options.truncation)?;
        call.reservation.grow(Growth::Tokens(pair.ids.len()))?;
        let is_capped = |text: &Cow<'_, str>| matches!(text, Cow::Owned(_));
        call.note_cut(pair.is_cut || is_capped(&query) || is_capped(&document));
        Ok(pair.ids)
    };
    let prepared = prepare_pairs(ask, pairs, 0, || {
        read_query_again(ask, pairs, options)?;
        let ids = pairs.iter().enumerate().map(encode);
        let ids = ids.collect::<Result<_, ApiError>>()?;
        let prompts = SharedPrompts::after(Vec::new(), ids);
        Prepared::with_head(model, options.field, prompts, &Head::Classify)
    });
    let computed = prepared.await?.compute(ask, one_class).await?;
    Ok(Judged {
        computed,
        activation: model.judges().activation,
    })
}

/// Reads the logit of a classification head of one class.
fn one_class(output: RowOutput) -> Option<f64> {
    match output {
        RowOutput::Classes(logits) => match logits[..] {
            [logit] => Some(f64::from(logit)),
            _ => None,
        },
        _ => None,
    }
}

/// Counts the query that is read with each document where documents are cut: the place of the cut is
/// learned from the whole prompt around it.
fn read_query_again(
    ask: &Ask<'_>,
    pairs: &[(&str, &str)],
    options: &PairOptions<'_>,
) -> Result<(), ApiError> {
    if options.truncation.is_some()
        && let [(first, _), rest @ ..] = pairs
    {
        let again = rest.iter().filter(|(query, _)| ptr::eq(*query, *first));
        let query = capped(ask.model, first, options.max_tokens_per_query);
        let again = Growth::Reread(query.len(), again.count());
        ask.call.reservation.grow(again)?;
    }
    Ok(())
}

/// Encodes the prompts about pairs.
fn prompts(
    ask: &Ask<'_>,
    pairs: &[(&str, &str)],
    options: &PairOptions<'_>,
    instruction: Option<&str>,
) -> Result<SharedPrompts, ApiError> {
    let model = ask.model;
    let judging = model.judges();
    let template = judging.template.as_ref();
    let template = template.expect("a model that judges prompts has a template");
    let all = || {
        let all = pairs
            .iter()
            .flat_map(|&(query, document)| [query, document]);
        all.chain(instruction).collect()
    };
    let escaping = Escaping::new(ask, options.escapes, all)?;
    let render = |query: &str, document: &str| {
        let instruction = instruction.map(|text| escaping.text(text));
        let [query, document] = [query, document].map(|text| escaping.text(text));
        let rendered = template.render(instruction.as_deref(), &query, &document);
        rendered.map_err(|e| ApiError::template(e.to_string()).with_param(options.field))
    };
    let query_cap = options.max_tokens_per_query;
    read_query_again(ask, pairs, options)?;
    if options.truncation.is_some() {
        let bytes = instruction.map_or(0, str::len);
        let again = Growth::Reread(bytes, pairs.len() - 1);
        ask.call.reservation.grow(again)?;
    }
    // One query for many documents is one `&str`, and cut once.
    let mut last: Option<(&str, Cow<'_, str>)> = None;
    let prompts = pairs.iter().map(|&(whole, document)| {
        if last.as_ref().is_none_or(|(of, _)| !ptr::eq(*of, whole)) {
            last = Some((whole, capped(model, whole, query_cap)));
        }
        let query: &str = &last
            .as_ref()
            .expect("the branch above sets it for the first pair")
            .1;
        let mut document = capped(model, document, options.max_tokens_per_doc);
        let mut prompt = render(query, &document)?;
        // A token stands for a byte at least, so most prompts need not be counted to be known to fit.
        let is_long = |cut: &&Truncation| cut.cuts(prompt.len());
        if let Some(truncation) = options.truncation.as_ref().filter(is_long) {
            // Rendered prompts bring their special tokens with them.
            let measure = |document: &str| Ok(escaping.count(&render(query, document)?));
            let fitting = truncation.fit(model, options.field, &document, measure)?;
            if let Cow::Owned(cut) = fitting {
                prompt = render(query, &cut)?;
                document = Cow::Owned(cut);
            }
        }
        let is_cut = query.len() < whole.len() || matches!(document, Cow::Owned(_));
        ask.call.note_cut(is_cut);
        Ok(prompt)
    });
    escaping.encode_all((options.field, pairs.len()), prompts)
}

/// Judges by the cosine of embeddings. Each distinct text is embedded once. The model must embed.
///
/// # Errors
/// As [`judge`].
pub(crate) async fn by_cosine(
    ask: &Ask<'_>,
    pairs: &[(&str, &str)],
    options: &PairOptions<'_>,
) -> Result<Judged, ApiError> {
    let Ask { call, model, .. } = ask;
    let own = model.embeds();
    let default = own.default_prompt.as_str();
    let before = match &options.instruction {
        Some(instruction) => format!("Instruct: {instruction}\nQuery:"),
        None => default.to_owned(),
    };
    let encode = |(text, is_query, index): (&str, bool, usize)| {
        let place = match is_query {
            true => options.query_field.into(),
            false => place(options.field, index, pairs.len()),
        };
        let (before, max) = match is_query {
            true => (before.as_str(), options.max_tokens_per_query),
            false => (default, options.max_tokens_per_doc),
        };
        let mut text = capped(model, text, max);
        let whole = |text: &str| format!("{before}{text}");
        // As above; special tokens stand for no byte.
        let most = before.len() + text.len() + model.tokenizer.count("", true);
        if let Some(truncation) = options.truncation.as_ref().filter(|cut| cut.cuts(most)) {
            let count = |text: &str| Ok(model.tokenizer.count(&whole(text), true));
            if let Cow::Owned(cut) = truncation.fit(model, options.field, &text, count)? {
                text = Cow::Owned(cut);
            }
        }
        call.note_cut(matches!(text, Cow::Owned(_)));
        let text = whole(&text);
        check_bytes(place, text.len(), model)?;
        let ids = model.tokenizer.encode(&text, true);
        check_length(place, ids.len(), 0, model)?;
        call.reservation.grow(Growth::Tokens(ids.len()))?;
        Ok(ids)
    };
    let prepared = prepare_pairs(ask, pairs, 0, || {
        let roles_are_one =
            before == default && options.max_tokens_per_query == options.max_tokens_per_doc;
        let (texts, of_pair) = distinct(pairs, roles_are_one);
        let ids = texts.into_iter().map(encode);
        let ids = ids.collect::<Result<_, ApiError>>()?;
        let head = Head::Embed {
            pooling: own.pooling,
            normalise: true,
            dimensions: own.truncate_dim,
        };
        let prompts = SharedPrompts::after(Vec::new(), ids);
        let prepared = Prepared::with_head(model, options.field, prompts, &head)?;
        Ok((prepared, of_pair))
    });
    let vector = |output| match output {
        RowOutput::Embedding(vector) => Some(vector),
        _ => None,
    };
    let (prepared, of_pair) = prepared.await?;
    let computed = prepared.compute(ask, vector).await?;
    let vectors = &computed.outputs;
    let dot = |(a, b): (usize, usize)| -> f64 {
        let products = vectors[a].iter().zip(&vectors[b]);
        products.map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
    };
    Ok(Judged {
        computed: Computed {
            outputs: of_pair.into_iter().map(dot).collect(),
            tokens: computed.tokens,
            cost: computed.cost,
        },
        activation: ClassActivation::Identity,
    })
}

/// Returns the distinct texts of pairs, with true for a query and the index of the first pair that
/// has them, and for each pair the places of its two texts. A text in both roles is one text if `roles_are_one`.
#[expect(clippy::type_complexity, reason = "two lists, described above")]
fn distinct<'t>(
    pairs: &[(&'t str, &'t str)],
    roles_are_one: bool,
) -> (Vec<(&'t str, bool, usize)>, Vec<(usize, usize)>) {
    let mut texts = Vec::new();
    let mut places = HashMap::new();
    let mut place = |text: &'t str, is_query: bool, index: usize| {
        *places.entry((text, is_query)).or_insert_with(|| {
            texts.push((text, is_query, index));
            texts.len() - 1
        })
    };
    let mut of_pair = Vec::with_capacity(pairs.len());
    // One query for many documents is one `&str`, and looked up once.
    let mut last: Option<(&str, usize)> = None;
    for (index, &(query, document)) in pairs.iter().enumerate() {
        let of_query = match last {
            Some((text, place)) if ptr::eq(text, query) => place,
            _ => place(query, true, index),
        };
        last = Some((query, of_query));
        of_pair.push((of_query, place(document, roles_are_one, index)));
    }
    (texts, of_pair)
}

/// Returns at most `max` tokens of a text, from its beginning; all of it if `max` is 0.
fn capped<'t>(model: &ServedModel, text: &'t str, max: u32) -> Cow<'t, str> {
    match max {
        0 => Cow::Borrowed(text),
        max => cut_text(model, text, max as usize, Side::Right),
    }
}
