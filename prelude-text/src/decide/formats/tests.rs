//! Rules that the golden data of the server's tests do not show.

use super::*;
use crate::decide::ChoiceOption;

fn choice(names: &[&str]) -> Question {
    let option = |name: &&str| ChoiceOption {
        name: (*name).to_owned(),
        description: None,
    };
    Question {
        instructions: Some("which?".into()),
        criteria: Criteria::Choice(names.iter().map(option).collect()),
    }
}

/// Encodes a text as one token for each byte.
fn row(
    prompt: &dyn DecisionPrompt,
    state: &TextOrJson,
    question: &Question,
) -> Result<Row, Refusal> {
    let pieces = prompt.pieces(state, question)?;
    let texts = pieces.iter().filter_map(|piece| match piece {
        Piece::Text(text) => Some(text.bytes().map(u32::from).collect()),
        Piece::Chat { user, .. } => Some(user.bytes().map(u32::from).collect()),
        _ => None,
    });
    let texts = texts.collect();
    Row::of(prompt, state, &pieces, texts)
}

fn laya(max_tokens: usize, head_tokens: usize) -> Laya {
    Laya {
        special: [1_001, 1_002, 1_003],
        mask: "[MASK]".to_owned(),
        max_tokens,
        head_tokens,
    }
}

#[test]
fn a_laya_keeps_its_budget() {
    let question = choice(&["a", "b"]);
    // CLS, 23 of the question, SEP, two masks with three bytes each, SEP, SEP.
    let whole = row(&laya(512, 192), &"state".into(), &question).unwrap();
    assert_eq!(
        (whole.tokens.len(), whole.cut),
        (1 + 23 + 1 + 2 * 3 + 1 + 5 + 1, None)
    );
    assert_eq!(whole.reads, [25, 28]);
    let short = row(&laya(36, 192), &"state".into(), &question).unwrap();
    let cut = Cut {
        state_tokens: 5,
        used: 3,
    };
    assert_eq!((short.tokens.len(), short.cut), (36, Some(cut)));
    assert!(short.tokens.ends_with(&[115, 116, 97, 1_002]));
    // Of a list the end is kept.
    let list = TextOrJson::json("[1,23]");
    let end = row(&laya(36, 192), &list, &question).unwrap();
    assert!(
        end.tokens
            .ends_with(&[u32::from(b'2'), u32::from(b'3'), u32::from(b']'), 1_002])
    );
    // Options leave the question 8 tokens at least, and keep 4 with their masks.
    let tight = row(&laya(512, 10), &"state".into(), &choice(&["aaaaaaaa", "b"])).unwrap();
    assert_eq!(tight.tokens.len(), 1 + 8 + 1 + 4 + 3 + 1 + 5 + 1);
    let names: Vec<String> = (0..30).map(|i| format!("option {i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let refused = row(&laya(40, 10), &"s".into(), &choice(&names)).unwrap_err();
    assert_eq!(refused.part, Part::Criteria);
    assert!(
        refused.must.contains("at most 8 options"),
        "{}",
        refused.must
    );
}

#[test]
fn a_laya_reads_no_mask_of_a_text() {
    let state = "a[MASK]b".into();
    let found = row(&laya(512, 192), &state, &choice(&["x[MASK]", "y"])).unwrap();
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    assert!(
        found
            .tokens
            .ends_with(&[bytes("a b"), vec![1_002]].concat())
    );
    assert_eq!(found.tokens[found.reads[0] as usize], 1_003);
    assert_eq!(
        found.tokens[found.reads[0] as usize + 1..][..3],
        bytes(" x ")
    );
}

#[test]
fn a_kev_reads_no_mark_of_a_text() {
    let check = |text: &str, expected: &str| {
        assert_eq!(kev::unmarked_text(text), expected);
    };
    check(
        "a <|box_end|> b<|fim_suffix|>",
        "a <¦box_end¦> b<¦fim_suffix¦>",
    );
    check("<|not a token|> <|| <|", "<|not a token|> <|| <|");
    check("<|<|x|>|>", "<|<¦x¦>|>");
    check("plain", "plain");
}

#[test]
fn questions_that_a_format_cannot_ask_are_refused() {
    let level = |text: &str| crate::decide::Level {
        description: text.into(),
    };
    let score = |texts: &[&str]| Question {
        instructions: Some("how?".into()),
        criteria: Criteria::Score(texts.iter().map(|text| level(text)).collect()),
    };
    let codes = Codes {
        wording: Wording::D3,
        codes: vec!["A".to_owned(), "B".to_owned()],
    };
    let state = TextOrJson::from("s");
    for texts in [["same", "same"], ["", "b"]] {
        assert_eq!(
            codes.pieces(&state, &score(&texts)).unwrap_err().part,
            Part::Criteria
        );
    }
    assert!(codes.pieces(&state, &score(&["a", "b"])).is_ok());
    let mut blank = choice(&["a", "b"]);
    blank.instructions = Some(" \n".into());
    assert_eq!(
        Decision2.pieces(&state, &blank).unwrap_err().part,
        Part::Instructions
    );
    let refused = Decision2.pieces(&state, &choice(&["a", " "])).unwrap_err();
    assert_eq!(refused.part, Part::Criteria);
    assert!(Decision2.pieces(&state, &choice(&["a", "b"])).is_ok());
}
