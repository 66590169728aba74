//! Questions, and the user turn that asks one.

use std::fmt::Write as _;

use super::{
    TextOrJson,
    labels::{ChoiceLabels, LabelKind},
};

/// One question about the state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The text of the question, if the request has one.
    pub instructions: Option<TextOrJson>,
    /// The question's type, and the meaning of its answers.
    pub criteria: Criteria,
}

/// The type of a question and its possible answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Criteria {
    /// Yes or no.
    Noul {
        /// The meaning of yes.
        yes: Option<TextOrJson>,
        /// The meaning of no.
        no: Option<TextOrJson>,
    },
    /// The answer is one of several options, 2 to 255.
    Choice(Vec<ChoiceOption>),
    /// A level on a scale, low to high, 2 to 10.
    Score(Vec<Level>),
}

/// An option of a choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoiceOption {
    /// The option's name, which answers return unchanged.
    pub name: String,
    /// The meaning of the option.
    pub description: Option<TextOrJson>,
}

/// A level of a score.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Level {
    /// The meaning of the level, as the model reads it.
    pub description: TextOrJson,
}

impl Criteria {
    /// Returns the name of the type: `"noul"`, `"choice"` or `"score"`.
    #[must_use]
    pub const fn type_name(&self) -> &'static str {
        match self {
            Self::Noul { .. } => "noul",
            Self::Choice(_) => "choice",
            Self::Score(_) => "score",
        }
    }

    /// Returns the labels by which the question is answered.
    #[must_use]
    pub const fn labels(&self) -> LabelKind {
        match self {
            Self::Noul { .. } => LabelKind::YesNo,
            Self::Choice(options) if options.len() <= 26 => LabelKind::Letters(options.len()),
            Self::Choice(options) => LabelKind::Codes(options.len()),
            Self::Score(levels) => LabelKind::Digits(levels.len()),
        }
    }
}

impl Question {
    /// Writes the user turn: the state, a blank line, the question, its options one per line, the
    /// answer rule. Place `i` in the list is option `(i + rotation) % n` of a choice; the other types do
    /// not rotate.
    ///
    /// The text after the state begins with a letter behind a newline, where prompts can be cut
    /// ([`crate::shared_prefix`]), and holds nothing but the question: an answer depends on no
    /// other question and on no question's id.
    #[must_use]
    pub fn user_turn(&self, state: &str, rotation: usize, labels: ChoiceLabels) -> String {
        let mut out = format!("{state}\n\nQuestion: ");
        let (default, rule) = match &self.criteria {
            Criteria::Noul { .. } => ("Yes or no?", "Answer with yes or no."),
            Criteria::Score(_) => ("Which level fits best?", "Answer with one digit."),
            Criteria::Choice(_) if labels == ChoiceLabels::Text => (
                "Which option fits best?",
                "Answer with the name of one option.",
            ),
            Criteria::Choice(options) if options.len() <= 26 => {
                ("Which option fits best?", "Answer with one letter.")
            }
            Criteria::Choice(_) => ("Which option fits best?", "Answer with one number."),
        };
        out.push_str(
            self.instructions
                .as_ref()
                .map_or(default, TextOrJson::as_str),
        );
        out.push('\n');
        match &self.criteria {
            Criteria::Noul { yes, no } => {
                for (label, meaning) in [("yes", yes), ("no", no)] {
                    if let Some(meaning) = meaning {
                        let _ = writeln!(out, "{label}: {meaning}");
                    }
                }
            }
            Criteria::Choice(options) => {
                let kind = self.criteria.labels();
                for i in 0..options.len() {
                    let option = &options[(i + rotation) % options.len()];
                    if labels == ChoiceLabels::Code {
                        let _ = write!(out, "{}: ", kind.text(i));
                    }
                    out.push_str(&option.name);
                    if let Some(description) = &option.description {
                        let _ = write!(out, " - {description}");
                    }
                    out.push('\n');
                }
            }
            Criteria::Score(levels) => {
                for (i, level) in levels.iter().enumerate() {
                    let _ = writeln!(out, "{i}: {}", level.description);
                }
            }
        }
        out.push_str(rule);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(instructions: Option<&str>, criteria: Criteria, rotation: usize, expected: &str) {
        let question = Question {
            instructions: instructions.map(TextOrJson::from),
            criteria,
        };
        assert_eq!(
            question.user_turn("{\"a\":1}", rotation, ChoiceLabels::Code),
            expected
        );
    }

    fn option(name: &str, description: Option<&str>) -> ChoiceOption {
        ChoiceOption {
            name: name.to_owned(),
            description: description.map(TextOrJson::from),
        }
    }

    /// The wording is an interface: another wording is another `PROMPT_FORMAT`.
    #[test]
    fn prompts_of_this_format() {
        check(
            Some("Is it urgent?"),
            Criteria::Noul {
                yes: Some("today".into()),
                no: None,
            },
            0,
            "{\"a\":1}\n\nQuestion: Is it urgent?\nyes: today\nAnswer with yes or no.",
        );
        check(
            None,
            Criteria::Choice(vec![
                option("billing", Some("money")),
                option("sales", None),
            ]),
            1,
            "{\"a\":1}\n\nQuestion: Which option fits best?\nA: sales\nB: billing - money\nAnswer with one letter.",
        );
        let level = |d: &str| Level {
            description: d.into(),
        };
        check(
            Some("How angry?"),
            Criteria::Score(vec![level("calm"), level("angry")]),
            0,
            "{\"a\":1}\n\nQuestion: How angry?\n0: calm\n1: angry\nAnswer with one digit.",
        );
    }

    #[test]
    fn options_answered_by_name_have_no_codes() {
        let options = vec![option("billing", Some("money")), option("sales", None)];
        let question = Question {
            instructions: None,
            criteria: Criteria::Choice(options),
        };
        assert_eq!(
            question.user_turn("s", 1, ChoiceLabels::Text),
            "s\n\nQuestion: Which option fits best?\nsales\nbilling - money\nAnswer with the name of one option."
        );
    }

    #[test]
    fn long_lists_are_numbered_at_fixed_width() {
        let options = (0..101).map(|i| option(&format!("o{i}"), None)).collect();
        let question = Question {
            instructions: None,
            criteria: Criteria::Choice(options),
        };
        let text = question.user_turn("s", 0, ChoiceLabels::Code);
        assert!(
            text.contains("\n000: o0\n") && text.ends_with("\n100: o100\nAnswer with one number.")
        );
    }
}
