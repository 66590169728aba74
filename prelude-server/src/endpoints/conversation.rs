//! A conversation and what its template is told beside it.

use serde_json::{Map, Value};

use super::{messages, tools::Tools};
use crate::{error::ApiError, json::Fields, served_model::ServedModel, template::ChatInputs};

/// What the template is given.
#[derive(Debug)]
pub(crate) struct Conversation {
    messages: Vec<Value>,
    /// Functions that the model may call.
    pub(crate) tools: Tools,
    documents: Option<Vec<Value>>,
    add_generation_prompt: bool,
    continue_final_message: bool,
    kwargs: Map<String, Value>,
}

impl Conversation {
    /// Takes the messages and what the template is told beside them. `generates` is whether an
    /// answer is to follow unless the request says otherwise.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn take(fields: &mut Fields<'_>, generates: bool) -> Result<Self, ApiError> {
        let add_generation_prompt = fields.bool("add_generation_prompt")?.unwrap_or(generates);
        let continue_final_message = fields.bool("continue_final_message")?.unwrap_or(false);
        if add_generation_prompt && continue_final_message {
            let must = "not be true unless `add_generation_prompt` is false";
            return Err(ApiError::invalid_value("continue_final_message", must));
        }
        let mut kwargs = fields.map("chat_template_kwargs")?.unwrap_or_default();
        if let Some(thinking) = fields.bool("enable_thinking")? {
            kwargs.insert("enable_thinking".to_owned(), Value::Bool(thinking));
        }
        Ok(Self {
            messages: messages::take(fields)?,
            tools: Tools::take(fields)?,
            documents: values(fields, "documents")?,
            add_generation_prompt,
            continue_final_message,
            kwargs,
        })
    }

    /// About how much text there is.
    pub(crate) fn bytes(&self) -> usize {
        let content = |message: &Value| message["content"].as_str().map_or(0, str::len);
        self.messages.iter().map(content).sum()
    }

    /// The prompt's text.
    ///
    /// # Errors
    /// 400 `template_error`.
    pub(crate) fn render(&self, model: &ServedModel) -> Result<String, ApiError> {
        self.render_these(model, &self.messages)
    }

    /// The template's own parts of that `text`: before the first message's content and behind
    /// the last one's.
    ///
    /// # Errors
    /// 400 `template_error`.
    pub(crate) fn around<'t>(
        &self,
        model: &ServedModel,
        text: &'t str,
    ) -> Result<(&'t str, &'t str), ApiError> {
        let render = |messages: &[Value]| self.render_these(model, messages);
        messages::around(&self.messages, text, render)
    }

    fn render_these(&self, model: &ServedModel, messages: &[Value]) -> Result<String, ApiError> {
        let template = model
            .template
            .as_ref()
            .ok_or_else(|| ApiError::template("the model has no chat template"))?;
        let render = |messages: &[Value]| {
            let inputs = ChatInputs {
                messages,
                tools: self.tools.shown(),
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

fn values(fields: &mut Fields<'_>, name: &'static str) -> Result<Option<Vec<Value>>, ApiError> {
    match fields.value(name)? {
        None => Ok(None),
        Some(Value::Array(values)) if values.iter().all(Value::is_object) => Ok(Some(values)),
        Some(_) => Err(ApiError::invalid_type(name, "a list of objects")),
    }
}
