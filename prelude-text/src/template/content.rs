//! The form in which a template reads the content of messages: as a string, or as a list of parts.
//!
//! Requests carry strings. Templates of models that also see pictures (and Llama Guard 3 1B's, which
//! sees none) look for parts of type `text` in a list, and print nothing of a string.

use serde_json::{Map, Value as Json, json};

use super::{ChatInputs, ChatTemplate};

/// Texts that no template holds.
const PROBES: [&str; 2] = ["prelude-content-probe", "prelude-second-probe"];

/// The forms in which a template reads contents of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Forms {
    pub(super) texts: bool,
    pub(super) parts: bool,
}

impl Default for Forms {
    fn default() -> Self {
        Self {
            texts: true,
            parts: false,
        }
    }
}

impl ChatTemplate {
    /// Returns true if the template reads the content of a user's message as a list of parts, be it
    /// beside or instead of a string.
    #[must_use]
    pub const fn reads_parts(&self) -> bool {
        self.forms.parts
    }

    /// Finds out which forms the template reads, by rendering each.
    pub(super) fn probed(&self) -> Forms {
        let names_type = ["'text'", "\"text\""];
        if !names_type.iter().any(|name| self.source.contains(name)) {
            return Forms::default();
        }
        let prints = |content: Json| {
            let inputs = ChatInputs {
                messages: &[json!({"role": "user", "content": content})],
                tools: None,
                documents: None,
                add_generation_prompt: true,
                kwargs: &Map::new(),
            };
            let printed = self.render(&inputs).unwrap_or_default();
            let has_all = PROBES.iter().all(|probe| printed.contains(probe));
            // A list that is printed as a list was not read.
            has_all
                && !printed.contains(&format!("': '{}", PROBES[0]))
                && !printed.contains(&format!("\": \"{}", PROBES[0]))
        };
        let parts = PROBES.map(|probe| json!({"type": "text", "text": probe}));
        let parts = prints(Json::from(parts.to_vec()));
        Forms {
            texts: !parts || prints(json!(PROBES.concat())),
            parts,
        }
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
        assert!(
            !ChatTemplate::new("{{ messages[0].content }} 'text'", [])
                .unwrap()
                .reads_parts()
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
