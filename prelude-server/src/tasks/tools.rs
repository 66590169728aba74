//! Tools: what a conversation says of functions, and the constraint that forces a call of one.

use prelude_core::TokenId;
use prelude_text::output::{CALL, CALL_END, Parts, THINK, THINK_END};
use serde_json::{Value, json};

use crate::{
    constrain::{Ask, Calls, Language, Reasoning, Whitespace},
    endpoint::Call,
    error::ApiError,
    served_model::ServedModel,
    wire::Json,
};

use super::{call_schema, generate::Params};

/// Functions of one request.
const TOOLS_MAX: usize = 128;

/// `tools`, `tool_choice` and `parallel_tool_calls`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tools {
    /// Functions, as given; empty if they are hidden from the model.
    tools: Vec<Value>,
    /// Indices of the functions of which one must be called; empty if none must.
    forced: Vec<usize>,
    /// True if there may be more than one call.
    pub(crate) parallel: bool,
}

impl Tools {
    /// Checks the fields.
    ///
    /// # Errors
    /// 400 naming the field.
    pub(crate) fn new(
        tools: Option<Json>,
        choice: Option<Json>,
        parallel: Option<bool>,
    ) -> Result<Self, ApiError> {
        let tools = match tools {
            None => Vec::new(),
            Some(Json(Value::Array(tools))) if tools.iter().all(Value::is_object) => tools,
            Some(_) => return Err(ApiError::invalid_type("tools", "a list of objects")),
        };
        if tools.len() > TOOLS_MAX {
            let must = format!("have at most {TOOLS_MAX} functions");
            return Err(ApiError::invalid_value("tools", must));
        }
        for (index, tool) in tools.iter().enumerate() {
            match tool.get("type").map(Value::as_str) {
                Some(Some("function")) => drop(name_of(tool, index)?),
                // Some templates are trained for functions without this frame.
                None => {}
                Some(_) => {
                    let path = format!("/tools/{index}/type");
                    let message = format!("field `{path}` must be `function`: there are no others");
                    let error = ApiError::new(400, "unsupported_parameter", message);
                    return Err(error.with_param(path));
                }
            }
        }
        let mut taken = Self {
            tools,
            forced: Vec::new(),
            parallel: parallel.unwrap_or(true),
        };
        match choice.map(|choice| choice.0) {
            None => {}
            Some(Value::String(choice)) => match &*choice {
                "auto" => {}
                "none" => taken.tools.clear(),
                "required" => taken.force(|_| true)?,
                _ => return Err(unknown_choice()),
            },
            Some(Value::Object(choice)) if choice.get("type") == Some(&json!("function")) => {
                let name = choice.get("function").and_then(|f| f.get("name"));
                let name = name
                    .and_then(Value::as_str)
                    .ok_or_else(|| ApiError::missing_field("/tool_choice/function/name"))?;
                taken.force(|function| function == name)?;
            }
            Some(_) => return Err(unknown_choice()),
        }
        Ok(taken)
    }

    /// Forces a call of one of the functions whose name is `wanted`.
    fn force(&mut self, wanted: impl Fn(&str) -> bool) -> Result<(), ApiError> {
        for (index, tool) in self.tools.iter().enumerate() {
            if wanted(name_of(tool, index)?) {
                self.forced.push(index);
            }
        }
        if self.forced.is_empty() {
            let must = "name a function that `tools` has";
            return Err(ApiError::invalid_value("tool_choice", must));
        }
        Ok(())
    }

    /// Returns the tools as the template is given them.
    pub(crate) fn shown(&self) -> Option<&[Value]> {
        (!self.tools.is_empty()).then_some(&*self.tools)
    }

    /// Returns true if an answer may hold calls.
    pub(crate) fn may_be_called(&self) -> bool {
        !self.tools.is_empty()
    }

    /// Returns the constraint that makes the answer a call, if one is forced.
    pub(crate) fn forced(&self) -> Option<Ask> {
        (!self.forced.is_empty()).then(|| Ask {
            param: "tool_choice",
            language: Language::Calls(self.calls()),
        })
    }

    /// Calls in Hermes' form, of the forced functions, with arguments by their schemas.
    fn calls(&self) -> Calls {
        let begin = Value::from(format!("{CALL}\n"));
        let end = Value::from(format!("\n{CALL_END}"));
        let start = if self.parallel {
            "call (\"\\n\" call)*"
        } else {
            "call"
        };
        let names: Vec<String> = self.forced.iter().map(|i| format!("f{i}")).collect();
        let mut text = format!(
            "start: {start}\ncall: {begin} body {end}\nbody: {}\n",
            names.join(" | ")
        );
        let mut schemas = Vec::with_capacity(self.forced.len());
        for &index in &self.forced {
            let function = &self.tools[index]["function"];
            let schema = call_schema::of(&function["name"], &function["parameters"]);
            let bounded = Whitespace::default().within(schema);
            text.push_str(&format!("f{index}: %json {bounded}\n"));
            let parameters = match &function["parameters"] {
                parameters @ Value::Object(_) => parameters.clone(),
                _ => json!({"type": "object"}),
            };
            schemas.push((format!("/tools/{index}/function/parameters"), parameters));
        }
        Calls {
            grammar: text,
            schemas,
        }
    }
}

/// True if the model is thinking where a prompt ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mind {
    /// A call of a tool may begin.
    Free,
    /// The prompt has begun reasoning for the model.
    Thinking,
    /// The prompt has finished reasoning for the model.
    Done,
}

impl Mind {
    /// Returns the state of reasoning at the prompt's end: earlier turns may quote anything, so
    /// they do not count.
    pub(crate) fn at_end_of(prompt: &str) -> Self {
        let prompt = prompt.trim_end();
        if prompt.ends_with(THINK) {
            Self::Thinking
        } else if prompt.ends_with(THINK_END) {
            Self::Done
        } else {
            Self::Free
        }
    }
}

impl Tools {
    /// Says what the answer is made of, and constrains it to a call if one is forced.
    ///
    /// # Errors
    /// 400 if the answer is to be a call and something else.
    pub(crate) fn shape(
        &self,
        call: &Call,
        model: &ServedModel,
        mind: Mind,
        include_reasoning: bool,
        params: &mut Params,
    ) -> Result<(), ApiError> {
        let config = &call.app.config;
        let own = model.words();
        let tool_parser = own.and_then(|own| own.tool_parser).or(config.tool_parser);
        let reasoning_parser = own.and_then(|own| own.reasoning_parser);
        let reasoning_parser = reasoning_parser.or(config.reasoning_parser);
        let forced = self.forced();
        let is_forced = forced.is_some();
        if let (Some(ask), Some(own)) = (&forced, &params.ask) {
            let must = format!("not force a call together with `{}`", own.param);
            return Err(ApiError::invalid_value(ask.param, must));
        }
        params.ask = forced.or_else(|| params.ask.take());
        let may_call = self.may_be_called() && (tool_parser.is_some() || is_forced);
        let told = reasoning_parser.is_some();
        let id = |text: &str| model.tokenizer.token_to_id(text);
        let (reasoning, begins_thinking) = thinking(told, mind, params.ask.is_some(), id);
        params.reasoning = reasoning;
        let parts = Parts {
            reasoning: begins_thinking,
            calls: may_call.then_some(self.parallel),
            silent: !include_reasoning,
        };
        let any = parts.reasoning.is_some() || parts.calls.is_some();
        params.parts = any.then_some(parts);
        Ok(())
    }
}

/// Returns the reasoning that a constrained answer may begin with, and how an answer's reasoning is
/// told from the rest: not at all, or by whether it has begun with it.
fn thinking(
    told: bool,
    mind: Mind,
    is_constrained: bool,
    id: impl Fn(&str) -> Option<TokenId>,
) -> (Option<Reasoning>, Option<bool>) {
    let begins = (told && mind != Mind::Done).then_some(mind == Mind::Thinking);
    if begins.is_none() || !is_constrained {
        return (None, begins);
    }
    let reasoning = match (mind, id(THINK), id(THINK_END)) {
        (Mind::Thinking, _, Some(close)) => Some(Reasoning { open: None, close }),
        (_, open @ Some(_), Some(close)) => Some(Reasoning { open, close }),
        _ => None,
    };
    // Without tokens to bound reasoning, the answer is what the constraint says from its first
    // token on, whatever the prompt has begun.
    (reasoning, begins.filter(|_| reasoning.is_some()))
}

/// Returns the name of the function that `/tools/{index}` holds.
fn name_of(tool: &Value, index: usize) -> Result<&str, ApiError> {
    let name = tool["function"]["name"].as_str();
    name.filter(|name| !name.is_empty())
        .ok_or_else(|| ApiError::missing_field(format!("/tools/{index}/function/name")))
}

fn unknown_choice() -> ApiError {
    let must = "be `none`, `auto`, `required` or a function: \
                `{\"type\": \"function\", \"function\": {\"name\": ..}}`";
    ApiError::invalid_value("tool_choice", must)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{tasks::conversation::ConversationFields, wire::Fields};

    fn take(fields: &str) -> Result<Tools, ApiError> {
        let tools = r##"[{"type":"function","function":{"name":"f","parameters":
            {"$defs":{"a":{"type":"null"}},"type":"object","properties":{"x":{"$ref":"#/$defs/a"}}}}},
            {"type":"function","function":{"name":"g"}}]"##;
        let body = format!(r#"{{"tools":{tools}{fields}}}"#);
        let fields: ConversationFields = Fields::from_body(&body)?.group()?;
        Tools::new(fields.tools, fields.tool_choice, fields.parallel_tool_calls)
    }

    #[test]
    fn tools_are_functions_with_names() {
        let take = |tools: Value| {
            let taken = Tools::new(Some(Json(tools)), None, None);
            taken.map_err(|e| (e.reason().to_owned(), e.param().map(str::to_owned)))
        };
        let refused = |reason: &str, param: &str| Err((reason.into(), Some(param.into())));
        let nameless = json!([{"type": "function"}]);
        assert_eq!(
            take(nameless),
            refused("missing_field", "/tools/0/function/name")
        );
        let search = json!([{"name": "f"}, {"type": "web_search"}]);
        assert_eq!(
            take(search),
            refused("unsupported_parameter", "/tools/1/type")
        );
        assert!(take(json!([{"name": "f", "parameters": {}}])).is_ok());
    }

    #[test]
    fn choices_hide_offer_or_force() {
        let shown = |fields: &str| take(fields).unwrap().shown().map(<[Value]>::len);
        assert_eq!(shown(""), Some(2));
        assert_eq!(shown(r#","tool_choice":"auto""#), Some(2));
        assert_eq!(shown(r#","tool_choice":"none""#), None);
        let forced = |fields: &str| take(fields).unwrap().forced;
        assert_eq!(forced(""), [0; 0]);
        assert_eq!(forced(r#","tool_choice":"required""#), [0, 1]);
        let g = r#","tool_choice":{"type":"function","function":{"name":"g"}}"#;
        assert_eq!(forced(g), [1]);
        for wrong in [
            r#","tool_choice":"any""#,
            r#","tool_choice":3"#,
            r#","tool_choice":{"type":"function","function":{"name":"h"}}"#,
        ] {
            let error = take(wrong).unwrap_err();
            assert_eq!((error.status(), error.param()), (400, Some("tool_choice")));
        }
        let required = Some(Json("required".into()));
        assert!(Tools::new(None, required, None).is_err());
    }

    #[test]
    fn a_constrained_answer_reasons_only_where_it_can_end_to() {
        let tokens = |text: &str| [THINK, THINK_END].iter().position(|&t| t == text);
        let both = |text: &str| tokens(text).map(|at| at as TokenId);
        let none = |_: &str| None;
        let close = 1;
        let opened = Some(Reasoning { open: None, close });
        let free = Some(Reasoning {
            open: Some(0),
            close,
        });
        use Mind::{Done, Free, Thinking};
        assert_eq!(thinking(true, Thinking, true, both), (opened, Some(true)));
        assert_eq!(thinking(true, Free, true, both), (free, Some(false)));
        assert_eq!(thinking(true, Done, true, both), (None, None));
        assert_eq!(thinking(false, Thinking, true, both), (None, None));
        // Nothing bounds it: what comes is the call, not reasoning.
        assert_eq!(thinking(true, Thinking, true, none), (None, None));
        assert_eq!(thinking(true, Free, true, none), (None, None));
        let no_close = |text: &str| both(text).filter(|&id| id == 0);
        assert_eq!(thinking(true, Free, true, no_close), (None, None));
        // Unconstrained, tags of several tokens are read as text.
        assert_eq!(thinking(true, Thinking, false, none), (None, Some(true)));
    }

    #[test]
    fn references_find_their_definitions() {
        let tools = take(r#","tool_choice":"required","parallel_tool_calls":false"#).unwrap();
        let Language::Calls(Calls { grammar: text, .. }) = tools.forced().unwrap().language else {
            panic!("another language");
        };
        let white = r#"{"whitespace_pattern":"[ \\t]|\\r?\\n[ \\t]{0,16}"}"#;
        let expected = r##"start: call
call: "<tool_call>\n" body "\n</tool_call>"
body: f0 | f1
f0: %json {"type":"object","properties":{"name":{"const":"f"},"arguments":{"$defs":{"a":{"type":"null"}},"type":"object","properties":{"x":{"$ref":"#/properties/arguments/$defs/a"}}}},"required":["name","arguments"],"additionalProperties":false,"x-guidance":WHITE}
f1: %json {"type":"object","properties":{"name":{"const":"g"},"arguments":{"type":"object"}},"required":["name","arguments"],"additionalProperties":false,"x-guidance":WHITE}
"##;
        assert_eq!(text, expected.replace("WHITE", white));
    }
}
