//! A conversation and what its template is told beside it: from messages to token ids.

use std::{collections::BTreeMap, fmt};

use prelude_core::TokenId;
use prelude_text::{
    template::{ChatInputs, ChatTemplate},
    tokenizer::Escaper,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    messages::{self, Message, text_bytes},
    place::check_bytes,
    prompts::cannot_escape,
    tools::Tools,
    truncate::Truncation,
};
use crate::{config::ServerConfig, error::ApiError, served_model::ServedModel, wire::Json};

/// A conversation and what its template is told beside it, as clients write them.
#[derive(Debug, Deserialize, JsonSchema)]
#[schemars(rename = "Conversation")]
pub(crate) struct ConversationFields {
    #[schemars(with = "Option<Vec<Message>>")]
    pub(crate) messages: Option<Json>,
    /// False on embeddings and classification, else true.
    add_generation_prompt: Option<bool>,
    /// The answer goes on with the last message.
    continue_final_message: Option<bool>,
    /// Variables of the template.
    #[schemars(with = "Option<BTreeMap<String, Value>>")]
    chat_template_kwargs: Option<Json>,
    /// Short for a template variable of the same name.
    enable_thinking: Option<bool>,
    /// Functions, as the template is given them.
    #[schemars(with = "Option<Vec<BTreeMap<String, Value>>>")]
    pub(crate) tools: Option<Json>,
    /// `auto`; `none`, which hides the tools; `required` or a function, which force a call.
    pub(crate) tool_choice: Option<Json>,
    /// True if an answer may have more than one call.
    pub(crate) parallel_tool_calls: Option<bool>,
    #[schemars(with = "Option<Vec<BTreeMap<String, Value>>>")]
    documents: Option<Json>,
    /// Special tokens in people's texts are plain text.
    pub(crate) escape_special_tokens: Option<bool>,
}

/// The input of a template. `Debug` prints its size.
pub(crate) struct Conversation {
    messages: Vec<Value>,
    /// Functions that the model may call.
    pub(crate) tools: Tools,
    /// The functions that the model may call, as the template is given them.
    shown_tools: Option<Vec<Value>>,
    documents: Option<Vec<Value>>,
    add_generation_prompt: bool,
    continue_final_message: bool,
    kwargs: Map<String, Value>,
    /// The mark that separates special tokens in people's texts from the template's, if wanted.
    mark: Option<char>,
}

impl fmt::Debug for Conversation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conversation")
            .field("messages", &self.messages.len())
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

/// A conversation as the model reads it.
pub(crate) struct Rendered {
    pub(crate) ids: Vec<TokenId>,
    pub(crate) text: String,
    /// True if `ids` are fewer than the text's.
    pub(crate) is_cut: bool,
}

impl Rendered {
    /// Returns the text that was read.
    pub(crate) fn into_text(self, model: &ServedModel) -> String {
        match self.is_cut {
            true => model.tokenizer.decode(&self.ids, false),
            false => self.text,
        }
    }
}

impl Conversation {
    /// Checks the messages and what the template is told beside them. `generates`
    /// is true if an answer is to follow unless the request says otherwise.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn new(
        config: &ServerConfig,
        model: &ServedModel,
        fields: ConversationFields,
        generates: bool,
    ) -> Result<Self, ApiError> {
        let add_generation_prompt = fields.add_generation_prompt.unwrap_or(generates);
        let continue_final_message = fields.continue_final_message.unwrap_or(false);
        if add_generation_prompt && continue_final_message {
            let must = "not be true unless `add_generation_prompt` is false";
            return Err(ApiError::invalid_value("continue_final_message", must));
        }
        let mut kwargs = match fields.chat_template_kwargs {
            None => Map::new(),
            Some(Json(Value::Object(kwargs))) => kwargs,
            Some(_) => return Err(ApiError::invalid_type("chat_template_kwargs", "an object")),
        };
        if let Some(thinking) = fields.enable_thinking {
            kwargs.insert("enable_thinking".to_owned(), Value::Bool(thinking));
        }
        let tools = Tools::new(fields.tools, fields.tool_choice, fields.parallel_tool_calls)?;
        let own = model.form.template.as_ref();
        let reads_parts = own.is_some_and(|template| template.reads_parts());
        let mut conversation = Self {
            messages: messages::checked(fields.messages, reads_parts)?,
            shown_tools: tools.shown().map(<[Value]>::to_vec),
            tools,
            documents: objects(fields.documents)?,
            add_generation_prompt,
            continue_final_message,
            kwargs,
            mark: None,
        };
        if { fields.escape_special_tokens }.unwrap_or(config.escape_special_tokens) {
            let escaper = model.form.escaper.as_ref().ok_or_else(cannot_escape)?;
            conversation.escape(escaper)?;
        }
        Ok(conversation)
    }

    /// Marks whatever in people's texts would be taken for a special token.
    fn escape(&mut self, escaper: &Escaper) -> Result<(), ApiError> {
        let lists = [&self.messages[..]]
            .into_iter()
            .chain(self.shown_tools.as_deref())
            .chain(self.documents.as_deref());
        let all: Vec<String> = lists.map(|l| Value::from(l.to_vec()).to_string()).collect();
        let kwargs = Value::Object(self.kwargs.clone()).to_string();
        let texts = all.iter().map(String::as_str);
        let texts = texts.chain([&*kwargs]);
        let mark = Escaper::mark(&texts.collect::<Vec<_>>()).ok_or_else(cannot_escape)?;
        let lists = [&mut self.messages]
            .into_iter()
            .chain(&mut self.shown_tools)
            .chain(&mut self.documents);
        for value in lists.flatten() {
            escaper.mark_all(value, mark);
        }
        self.mark = Some(mark);
        Ok(())
    }

    /// Returns about how much text there is to print and encode: the more, the less it is done in
    /// between other work.
    pub(crate) fn bytes(&self) -> usize {
        let lists = [
            Some(&self.messages),
            self.shown_tools.as_ref(),
            self.documents.as_ref(),
        ];
        let values = lists.into_iter().flatten().flatten();
        values.chain(self.kwargs.values()).map(text_bytes).sum()
    }

    /// Returns the prompt's ids, so many of them as `truncation` keeps; without it they fit the context
    /// if they `must_fit`. On the encode pool.
    ///
    /// # Errors
    /// 400 `template_error`; 400 if nothing of the messages would be left.
    pub(crate) fn encode(
        &self,
        model: &ServedModel,
        add_special_tokens: bool,
        truncation: Option<Truncation>,
        must_fit: bool,
    ) -> Result<Rendered, ApiError> {
        let template = model.form.template.as_deref();
        let template =
            template.ok_or_else(|| ApiError::template("the model has no chat template"))?;
        let text = self.render(template, &self.messages)?;
        let encode = |text: &str| match (self.mark, &model.form.escaper) {
            (Some(mark), Some(escaper)) => {
                let mut ids = Vec::with_capacity(text.len() / 4 + 4);
                let tokenizer = &model.tokenizer;
                escaper.encode_into(tokenizer, text, mark, add_special_tokens, &mut ids);
                ids
            }
            _ => model.tokenizer.encode(text, add_special_tokens),
        };
        if truncation.is_none() && must_fit {
            let marks = self
                .mark
                .map_or(0, |mark| text.matches(mark).count() * mark.len_utf8());
            check_bytes("messages", text.len() - marks, model)?;
        }
        let mut ids = encode(&text);
        let truncation = truncation.filter(|t| t.cuts(ids.len()));
        if let Some(truncation) = truncation {
            let render = |messages: &[Value]| self.render(template, messages);
            let (before, behind) = messages::around(&self.messages, &text, render)?;
            let spared = [encode(before), encode(behind)];
            cut(&mut ids, &spared, truncation)?;
        }
        Ok(Rendered {
            ids,
            text: self.unmarked(text),
            is_cut: truncation.is_some(),
        })
    }

    fn unmarked(&self, text: String) -> String {
        match self.mark {
            Some(mark) if text.contains(mark) => text.replace(mark, ""),
            _ => text,
        }
    }

    fn render(&self, template: &ChatTemplate, messages: &[Value]) -> Result<String, ApiError> {
        let render = |messages: &[Value]| {
            let inputs = ChatInputs {
                messages,
                tools: self.shown_tools.as_deref(),
                documents: self.documents.as_deref(),
                add_generation_prompt: self.add_generation_prompt,
                kwargs: &self.kwargs,
            };
            template
                .render(&inputs)
                .map_err(|e| ApiError::template(e.to_string()))
        };
        if self.continue_final_message {
            messages::render_unfinished(messages, render)
        } else {
            render(messages)
        }
    }
}

/// Cuts a conversation between what the template puts before it and behind it, both of which the
/// ids begin and end with, but for tokens at the seams.
fn cut(
    ids: &mut Vec<TokenId>,
    [before, behind]: &[Vec<TokenId>; 2],
    truncation: Truncation,
) -> Result<(), ApiError> {
    let equal = |(a, b): &(&TokenId, &TokenId)| a == b;
    let start = ids.iter().zip(before).take_while(equal).count();
    let rest = ids[start..].iter().rev();
    let end = ids.len() - rest.zip(behind.iter().rev()).take_while(equal).count();
    let spared = [0..start, end..ids.len()];
    truncation.apply_between("messages", ids, spared)
}

fn objects(documents: Option<Json>) -> Result<Option<Vec<Value>>, ApiError> {
    match documents {
        None => Ok(None),
        Some(Json(Value::Array(values))) if values.iter().all(Value::is_object) => Ok(Some(values)),
        Some(_) => Err(ApiError::invalid_type("documents", "a list of objects")),
    }
}
