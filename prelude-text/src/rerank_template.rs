//! Prompts that ask whether a document answers a query.

use minijinja::{Environment, context};

use crate::template::{NAME, TemplateError, add_template, classify, environment};

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

/// A compiled template over `instruction`, `query` and `document`.
#[derive(Debug)]
pub struct RerankTemplate(Environment<'static>);

impl RerankTemplate {
    /// Returns the template of the Qwen3-Reranker family.
    #[must_use]
    pub fn qwen3() -> Self {
        Self::new(QWEN3).expect("it is tested")
    }

    /// Compiles `source`.
    ///
    /// # Errors
    /// [`TemplateError::Syntax`].
    pub fn new(source: &str) -> Result<Self, TemplateError> {
        let mut env = environment(FUEL);
        add_template(&mut env, source)?;
        Ok(Self(env))
    }

    /// Renders the prompt of one pair.
    ///
    /// # Errors
    /// [`TemplateError`] if the template cannot cope with the texts.
    pub fn render(
        &self,
        instruction: &str,
        query: &str,
        document: &str,
    ) -> Result<String, TemplateError> {
        let template = self.0.get_template(NAME).expect("it was added by `new`");
        let texts = context! { instruction, query, document };
        template.render(texts).map_err(|error| classify(&error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts() {
        let qwen3 = RerankTemplate::qwen3().render("i", "q<b>", "d\n").unwrap();
        assert!(qwen3.starts_with("<|im_start|>system\nJudge whether"));
        assert!(qwen3.contains("\"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n"));
        let end = "<Instruct>: i\n<Query>: q<b>\n<Document>: d\n<|im_end|>\n\
                   <|im_start|>assistant\n<think>\n\n</think>\n\n";
        assert!(qwen3.ends_with(end), "{qwen3:?}");
        let own = RerankTemplate::new("{{ query }}|{{ document }}").unwrap();
        assert_eq!(own.render("i", "q", "d").unwrap(), "q|d");
        assert!(RerankTemplate::new("{{ query").is_err());
        let endless =
            "{% for i in range(9999) %}{% for j in range(9999) %}{{ i }}{% endfor %}{% endfor %}";
        let endless = RerankTemplate::new(endless).unwrap().render("i", "q", "d");
        assert_eq!(endless, Err(TemplateError::TooCostly));
    }
}
