//! Guards that are language models: which guard a model is, as its chat template says, and the task
//! of those that judge a text by all of their own categories at once.

use prelude_text::label_trie::{LabelTrie, RowScores};

use super::{
    guidelines::Form,
    judged::Judged,
    prompts::{Answers, Escaping, normalised, prompt, user_turn},
    submit::Ask,
};
use crate::{error::ApiError, served_model::ServedModel};

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

/// The order in every prompt of a Llama Guard. Other guards list categories between the same words and
/// ask for other answers, such as JSON.
const FIRST_LINE: &str = "First line must read 'safe' or 'unsafe'";

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
        let source = model.form.template.as_ref().map_or("", |of| of.source());
        let names = |name: &&str| source.contains(*name);
        if CATEGORIES.iter().all(names) {
            // The codes are read from a prompt without any caller's text.
            let prompt = user_turn(model, "")?;
            let codes = codes(&prompt);
            if !codes.is_empty() && prompt.contains(FIRST_LINE) {
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
    ask: &Ask<'_>,
    judged: &Judged<'_>,
    codes: &[String],
) -> Result<Vec<Vec<f64>>, ApiError> {
    let model = ask.model;
    let unsafe_answers: Vec<String> = codes
        .iter()
        .map(|code| format!("{UNSAFE}\n{code}"))
        .collect();
    let answers: Vec<&str> = [SAFE]
        .into_iter()
        .chain(unsafe_answers.iter().map(String::as_str))
        .collect();
    // Other categories may follow the first one.
    let open = codes_are_told_apart(model, codes);
    let read = |trie: &LabelTrie, scores: &[RowScores]| trie.probabilities(scores, 1.0);
    let mut found = answers_about(ask, judged, (&answers, open), read).await?;
    for of_text in &mut found {
        of_text[0] = 1.0 - of_text[0];
    }
    Ok(found)
}

/// Returns for each text the probabilities of the verdicts of [`QWEN3_GUARD`].
///
/// # Errors
/// 400 for whatever is wrong with the request, 429, 503, 500.
pub(crate) async fn by_verdicts(
    ask: &Ask<'_>,
    judged: &Judged<'_>,
) -> Result<Vec<Vec<f64>>, ApiError> {
    let answers = QWEN3_GUARD.map(|(answer, _)| answer);
    let read = |trie: &LabelTrie, scores: &[RowScores]| normalised(&trie.log_probabilities(scores));
    // A guard goes on with the categories of harm.
    answers_about(ask, judged, (&answers, true), read).await
}

/// Returns for each text what `read` makes of the scores of the answers behind its prompt. True beside
/// them says that an answer may go on behind these words.
async fn answers_about(
    ask: &Ask<'_>,
    judged: &Judged<'_>,
    (answers, open): (&[&str], bool),
    read: impl Fn(&LabelTrie, &[RowScores]) -> Vec<f64>,
) -> Result<Vec<Vec<f64>>, ApiError> {
    let model = ask.model;
    let escaping = Escaping::new(ask, None, || judged.all())?;
    // Rendered without texts, so that the room for them is known.
    let around = user_turn(model, "")?.len();
    let asked = Answers {
        escaping,
        field: "input",
        texts: judged.prompts(),
        answers,
        open,
        prompts: judged.prompts(),
        bytes: judged.bytes() + around * judged.prompts(),
        distinct: true,
    };
    let turns = judged.turns(escaping);
    let prompts = turns.map(|turns| judged.printed(prompt(model, &turns)?, &turns));
    Ok(asked.behind(ask, prompts, read).await?.outputs)
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
