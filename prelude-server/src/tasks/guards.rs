//! Guards that are language models: which guard a model is, as its chat template says, and the task
//! of those that judge a text by all of their own categories at once.

use std::borrow::Cow;

use super::{
    answers::Answers, escaping::Escaping, guidelines::Form, labels::user_turn, submit::Common,
};
use crate::{endpoint::Call, error::ApiError, served_model::ServedModel};

/// The verdicts of Qwen3Guard-Gen, each with the name of its category. Its chat template asks for
/// these answers by name.
pub(crate) const QWEN3_GUARD: [(&str, &str); 3] = [
    ("Safety: Safe", "safe"),
    ("Safety: Controversial", "controversial"),
    ("Safety: Unsafe", "unsafe"),
];

/// The text before and behind the list of categories in the prompt of a Llama Guard.
const CATEGORIES: [&str; 2] = [
    "<BEGIN UNSAFE CONTENT CATEGORIES>",
    "<END UNSAFE CONTENT CATEGORIES>",
];

/// The verdicts of a Llama Guard.
const SAFE: &str = "safe";
pub(crate) const UNSAFE: &str = "unsafe";

/// A guard, by the way in which it is asked.
#[derive(Debug)]
pub(crate) enum Guard {
    /// Qwen3Guard: one verdict about a text.
    Verdicts,
    /// Llama Guard: safe, or unsafe with the codes of the categories that its prompt lists.
    Categories(Vec<String>),
    /// ShieldGemma and Granite Guardian: yes or no, one guideline at a time.
    Guidelines(&'static Form),
}

impl Guard {
    /// Returns the guard that a model is, if it is one.
    ///
    /// # Errors
    /// 400 `template_error` if the template of a Llama Guard renders no prompt.
    pub(crate) fn of(model: &ServedModel) -> Result<Option<Self>, ApiError> {
        let source = model.template.as_ref().map_or("", |of| of.source());
        let names = |name: &&str| source.contains(*name);
        if CATEGORIES.iter().all(names) {
            // The codes are read from a prompt without any caller's text.
            let codes = codes(&user_turn(model, "")?);
            if !codes.is_empty() {
                return Ok(Some(Self::Categories(codes)));
            }
        }
        if QWEN3_GUARD.iter().all(|(answer, _)| names(answer)) {
            return Ok(Some(Self::Verdicts));
        }
        Ok(Form::of(source).map(Self::Guidelines))
    }
}

/// Returns the codes of the categories that a prompt lists, such as `S1`: one at the beginning of
/// each line, before a colon.
fn codes(prompt: &str) -> Vec<String> {
    let [begin, end] = CATEGORIES;
    let list = prompt
        .split_once(begin)
        .and_then(|(_, rest)| rest.split_once(end));
    let lines = list.map_or("", |(list, _)| list).lines();
    let is_code = |code: &&str| {
        let rest = code.strip_prefix(|c: char| c.is_ascii_uppercase());
        let is_number = |digits: &str| digits.bytes().all(|b| b.is_ascii_digit());
        rest.is_some_and(|digits| (1..=3).contains(&digits.len()) && is_number(digits))
    };
    let heads = lines.filter_map(|line| Some(line.split_once(':')?.0.trim()));
    heads.filter(is_code).map(str::to_owned).collect()
}

/// Returns for each text the probability that a Llama Guard calls it unsafe, and for each category
/// that it does and names that one first.
///
/// The guard writes `unsafe` and, in a line of its own, the categories that are violated. Each word's
/// probability is its share among those that may stand in its place, so that the first number is
/// that of the verdict alone.
///
/// # Errors
/// 400 for whatever is wrong with the request, 429, 503, 500.
pub(crate) async fn by_categories(
    call: &Call,
    model: &ServedModel,
    common: &Common<'_>,
    texts: &[Cow<'_, str>],
    codes: &[String],
) -> Result<Vec<(f64, Vec<f64>)>, ApiError> {
    let all = || texts.iter().map(|text| &**text).collect();
    let escaping = Escaping::new(call, model, None, all)?;
    let unsafe_answers: Vec<String> = codes
        .iter()
        .map(|code| format!("{UNSAFE}\n{code}"))
        .collect();
    let answers: Vec<&str> = [SAFE]
        .into_iter()
        .chain(unsafe_answers.iter().map(String::as_str))
        .collect();
    // Rendered without texts, so that the room for them is known.
    let around = user_turn(model, "")?.len();
    let bytes: usize = texts.iter().map(|text| text.len() + around).sum();
    let asked = Answers {
        escaping,
        field: "input",
        texts: texts.len(),
        answers: &answers,
        // Other categories may follow the first one.
        open: codes_are_told_apart(model, codes),
        prompts: texts.len(),
        bytes,
    };
    let rendered = || {
        let prompt = move |text: &Cow<'_, str>| user_turn(model, &escaping.text(text));
        texts.iter().map(prompt)
    };
    let found = asked
        .behind(call, common, rendered, |trie, scores| {
            trie.probabilities(scores, 1.0)
        })
        .await?;
    let split = |of: Vec<f64>| (1.0 - of[0], of[1..].to_vec());
    Ok(found.outputs.into_iter().map(split).collect())
}

/// Returns true if no code is the beginning of another one to the model: `S1` of `S10` where each
/// digit is a token.
fn codes_are_told_apart(model: &ServedModel, codes: &[String]) -> bool {
    let ids = |code: &String| model.tokenizer.encode(&format!("\n{code}"), false);
    let ids: Vec<Vec<u32>> = codes.iter().map(ids).collect();
    let begins = |(i, of): (usize, &Vec<u32>)| {
        let others = ids.iter().enumerate().filter(|(j, _)| *j != i);
        others.into_iter().any(|(_, other)| other.starts_with(of))
    };
    !ids.iter().enumerate().any(begins)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn categories_are_the_lines_of_the_list() {
        let check = |prompt: &str, expected: &[&str]| assert_eq!(codes(prompt), expected);
        let listed = |list: &str| {
            let [begin, end] = CATEGORIES;
            format!("S7: before\n{begin}\n{list}\n{end}\nUser: S8: behind")
        };
        check(
            &listed("S1: Violent Crimes.\nS14: Code.\nO3: Old"),
            &["S1", "S14", "O3"],
        );
        check(
            &listed("S1: A.\nShould not\n- do: this\nS: x\nSx: y\ns2: z"),
            &["S1"],
        );
        check(&listed("S1234: too long\n: none"), &[]);
        check("no list", &[]);
    }
}
