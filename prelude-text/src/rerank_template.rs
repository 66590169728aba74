//! Prompts that ask whether a document answers a query.

use minijinja::{Environment, context};
use serde_json::{Map, json};

use crate::template::{
    ChatInputs, ChatTemplate, NAME, TemplateError, add_template, classify, environment,
};

/// The definition of relevance for requests that give none.
pub const DEFAULT_INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";

/// The number of instructions that a rendering may execute.
const FUEL: u64 = 1_000_000;

/// The prompt on which Qwen3-Reranker models were trained, word for word: a judge's system turn, the
/// three parts as the user's turn, and an answer whose thinking is empty. Its last line break is
/// not printed: templates lose one.
const QWEN3: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based \
on the Query and the Instruct provided. Note that the answer can only be \"yes\" or \"no\".\
<|im_end|>\n<|im_start|>user\n<Instruct>: {{ instruction }}\n<Query>: {{ query }}\n\
<Document>: {{ document }}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n\n";

/// A compiled prompt about an instruction, a query and a document.
#[derive(Debug)]
pub struct RerankTemplate {
    form: Form,
    default_instruction: Option<String>,
}

/// The way in which a template is given its texts.
#[derive(Debug)]
enum Form {
    /// The template takes the variables `instruction`, `query` and `document`.
    Texts(Box<Environment<'static>>),
    /// The template takes messages: of the role `system` if there is an instruction, of `query` and of
    /// `document`.
    Messages(Box<ChatTemplate>),
}

impl RerankTemplate {
    /// Returns the template of the Qwen3-Reranker family.
    #[must_use]
    pub fn qwen3() -> Self {
        Self::new(QWEN3).expect("a test loads this template")
    }

    /// Compiles `source`.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        let mut env = environment(FUEL);
        add_template(&mut env, source)?;
        Ok(Self {
            form: Form::Texts(Box::new(env)),
            default_instruction: Some(DEFAULT_INSTRUCTION.to_owned()),
        })
    }

    /// Returns the chat template of a cross-encoder of sentence-transformers (release 5.4 and
    /// later), which has places for messages of the roles `query` and `document`. Such a template
    /// brings its own text for a missing instruction, unless the checkpoint names one. `None` if the
    /// template has no such places.
    #[must_use]
    pub fn of_chat(template: ChatTemplate, default_instruction: Option<String>) -> Option<Self> {
        let template = Self {
            form: Form::Messages(Box::new(template)),
            default_instruction,
        };
        // Texts that no template contains by itself.
        let (query, document) = ("query-5f2b9c", "document-7e41d0");
        let prompt = template.render(template.default_instruction(), query, document);
        let has_both = |prompt: &String| prompt.contains(query) && prompt.contains(document);
        prompt.ok().filter(has_both)?;
        Some(template)
    }

    /// Returns the instruction of requests that give none; `None` leaves it to the template.
    #[must_use]
    pub fn default_instruction(&self) -> Option<&str> {
        self.default_instruction.as_deref()
    }

    /// Renders the prompt of one pair.
    ///
    /// # Errors
    /// [`TemplateError`] if the template cannot cope with the texts.
    pub fn render(
        &self,
        instruction: Option<&str>,
        query: &str,
        document: &str,
    ) -> Result<String, TemplateError> {
        match &self.form {
            Form::Texts(env) => {
                let template = env.get_template(NAME).expect("`new` added the template");
                let texts = context! { instruction, query, document };
                template.render(texts).map_err(|error| classify(&error))
            }
            Form::Messages(template) => {
                let message = |role: &str, text: &str| json!({ "role": role, "content": text });
                let system = instruction.map(|text| message("system", text));
                let pair = [message("query", query), message("document", document)];
                let messages: Vec<_> = system.into_iter().chain(pair).collect();
                template.render(&ChatInputs {
                    messages: &messages,
                    tools: None,
                    documents: None,
                    add_generation_prompt: false,
                    kwargs: &Map::new(),
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_of_rerankers_are_rendered() {
        let qwen3 = RerankTemplate::qwen3();
        assert_eq!(qwen3.default_instruction(), Some(DEFAULT_INSTRUCTION));
        let qwen3 = qwen3.render(Some("i"), "q<b>", "d\n").unwrap();
        assert!(qwen3.starts_with("<|im_start|>system\nJudge whether"));
        assert!(qwen3.contains("\"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n"));
        let end = "<Instruct>: i\n<Query>: q<b>\n<Document>: d\n<|im_end|>\n\
                   <|im_start|>assistant\n<think>\n\n</think>\n\n";
        assert!(qwen3.ends_with(end), "{qwen3:?}");
        let own = RerankTemplate::new("{{ query }}|{{ document }}").unwrap();
        assert_eq!(own.render(Some("i"), "q", "d").unwrap(), "q|d");
        assert!(RerankTemplate::new("{{ query").is_err());
        let endless =
            "{% for i in range(9999) %}{% for j in range(9999) %}{{ i }}{% endfor %}{% endfor %}";
        let endless = RerankTemplate::new(endless).unwrap();
        let endless = endless.render(None, "q", "d");
        assert_eq!(endless, Err(TemplateError::TooCostly));
    }

    /// A chat template with places for a query and a document says what Qwen3's template says.
    #[test]
    fn chat_templates() {
        let of = |source: &str, default: Option<&str>| {
            let template = ChatTemplate::new(source, [("eos_token", "</s>")]).unwrap();
            RerankTemplate::of_chat(template, default.map(str::to_owned))
        };
        let role = |role: &str, filters: &str| {
            format!(
                r#"{{{{ messages | selectattr("role", "eq", "{role}") | map(attribute="content") | first{filters} }}}}"#
            )
        };
        let default = format!(r#" | default("{DEFAULT_INSTRUCTION}")"#);
        let roles = QWEN3
            .replace("{{ instruction }}", &role("system", &default))
            .replace("{{ query }}", &role("query", ""))
            .replace("{{ document }}", &role("document", ""));
        let chat = of(&roles, None).unwrap();
        let qwen3 = RerankTemplate::qwen3();
        assert_eq!(chat.default_instruction(), None);
        for instruction in [None, Some("Find \"it\".")] {
            assert_eq!(
                chat.render(instruction, "q<b>", "d\n").unwrap(),
                qwen3
                    .render(instruction.or(Some(DEFAULT_INSTRUCTION)), "q<b>", "d\n")
                    .unwrap()
            );
        }
        let named = of(&roles, Some("Find it.")).unwrap();
        assert_eq!(named.default_instruction(), Some("Find it."));
        // Templates of chats have no places for pairs, or refuse their roles.
        assert!(of("{% for m in messages %}{{ m.role }}{% endfor %}", None).is_none());
        let strict = "{% if messages[0].role != 'user' %}{{ raise_exception('no') }}{% endif %}";
        assert!(of(strict, None).is_none());
        // Those that print every message as it comes have.
        assert!(of("{% for m in messages %}{{ m.content }}{% endfor %}", None).is_some());
    }
}
