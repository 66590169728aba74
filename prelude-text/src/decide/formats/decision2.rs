//! Decision 2.0: segments that are tokenised apart. `decision2-segmented-options-global-query-v1`.

use super::{DecisionPrompt, Part, Piece, Refusal, instructions, non_empty, sides};
use crate::decide::{Criteria, Question, TextOrJson, value::canonical_object};

/// The prompt of a Decision 2.0.
#[derive(Clone, Copy, Debug)]
pub struct Decision2;

/// Returns the keys of the options and what they mean.
fn options(criteria: &Criteria) -> Vec<(String, Option<TextOrJson>)> {
    match criteria {
        Criteria::Choice(options) => { options.iter() }
            .map(|option| (option.name.clone(), option.description.clone()))
            .collect(),
        Criteria::Score(levels) => { levels.iter().enumerate() }
            .map(|(i, level)| (i.to_string(), Some(level.description.clone())))
            .collect(),
        Criteria::Noul { .. } => {
            let names = [("false", "No"), ("true", "Yes")];
            let sides = sides(criteria).into_iter().flatten().zip(names);
            sides
                .map(|(text, (key, default))| {
                    let text = text.cloned().unwrap_or_else(|| default.into());
                    (key.to_owned(), Some(text))
                })
                .collect()
        }
    }
}

impl DecisionPrompt for Decision2 {
    fn pieces<'a>(
        &'a self,
        state: &'a TextOrJson,
        question: &'a Question,
    ) -> Result<Vec<Piece<'a>>, Refusal> {
        let refused = |part| Refusal {
            part,
            must: "have texts that are not blank: this model was never asked without".to_owned(),
        };
        let is_blank = |text: &str| text.trim().is_empty();
        let asked = instructions(question);
        if non_empty(Some(asked)).is_none_or(|asked| is_blank(asked.as_str())) {
            return Err(refused(Part::Instructions));
        }
        let kind = question.criteria.type_name();
        let first = format!(
            "Context:\n{}\n\nTask type: {kind}\nQuestion:\n{}\nOptions:",
            state.canonical(),
            asked.canonical()
        );
        let mut pieces = vec![Piece::Text(first.into())];
        for (key, description) in options(&question.criteria) {
            let is_wrong = description
                .as_ref()
                .is_some_and(|text| is_blank(text.as_str()));
            if is_blank(&key) || is_wrong {
                return Err(refused(Part::Criteria));
            }
            let key = TextOrJson::from(key);
            let members = [("key", Some(&key)), ("description", description.as_ref())];
            let object = canonical_object(&members);
            let option = format!("\n<option>\n{object}\n</option>");
            pieces.extend([Piece::Text(option.into()), Piece::Read]);
        }
        let last = "\n\nSelect the single option best supported by the context and instructions.\
            \nDecision:";
        pieces.extend([Piece::Text(last.into()), Piece::Read]);
        Ok(pieces)
    }
}
