//! The form in which a template reads the content of messages: as a string, or as a list of parts.
//!
//! Requests carry strings. Templates of models that also see pictures (and Llama Guard 3 1B's, which
//! sees none) look for parts of type `text` in a list, and print nothing of a string.

use serde_json::{Map, Value as Json, json};

use super::{ChatInputs, ChatTemplate};

/// A text that no template holds.
const PROBE: &str = "prelude-content-probe";

impl ChatTemplate {
    /// Returns true if the template prints the text of a message only where its content is a list.
    pub(super) fn needs_parts(&self) -> bool {
        let names_type = ["'text'", "\"text\""];
        if !names_type.iter().any(|name| self.source.contains(name)) {
            return false;
        }
        let prints = |content: Json| {
            let inputs = ChatInputs {
                messages: &[json!({"role": "user", "content": content})],
                tools: None,
                documents: None,
                add_generation_prompt: true,
                kwargs: &Map::new(),
            };
            let printed = self.render(&inputs);
            printed.is_ok_and(|prompt| prompt.contains(PROBE))
        };
        !prints(json!(PROBE)) && prints(parts(PROBE))
    }
}

/// Returns messages whose contents are lists of parts.
pub(super) fn with_parts(messages: &[Json]) -> Vec<Json> {
    let mut messages = messages.to_vec();
    for message in &mut messages {
        if let Some(Json::String(text)) = message.get("content") {
            let list = parts(text);
            message["content"] = list;
        }
    }
    messages
}

fn parts(text: &str) -> Json {
    json!([{"type": "text", "text": text}])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(source: &str, expected: &str) {
        let template = ChatTemplate::new(source, []).unwrap();
        let inputs = ChatInputs {
            messages: &[json!({"role": "user", "content": "hi"})],
            tools: None,
            documents: None,
            add_generation_prompt: true,
            kwargs: &Map::new(),
        };
        assert_eq!(
            template.render(&inputs).as_deref(),
            Ok(expected),
            "{source}"
        );
        let replaced = ChatTemplate::new("", []).unwrap();
        let replaced = replaced.replaced(source, 1000).unwrap();
        assert_eq!(
            replaced.render(&inputs).as_deref(),
            Ok(expected),
            "{source}"
        );
    }

    #[test]
    fn contents_have_the_form_that_a_template_reads() {
        check("{{ messages[0].content }}", "hi");
        check("{{ messages[0].content }} 'text'", "hi 'text'");
        check(
            "{% for m in messages %}{% for c in m['content'] | selectattr('type', 'equalto', 'text') \
             %}<{{ c['text'] | trim }}>{% endfor %}{% endfor %}",
            "<hi>",
        );
        // A template that reads both forms is given strings.
        check(
            "{% set c = messages[0].content %}{% if c is string %}s {{ c }}{% else %}\
             {{ c[0]['text'] }}{% endif %}",
            "s hi",
        );
        // One that prints no content at all.
        check("{% if messages[0].content == 'text' %}{% endif %}x", "x");
    }
}
