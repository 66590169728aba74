//! What makes a served model a decision model: the prompt of its format, and the head.

use std::sync::Arc;

use prelude_models::{CodeWording, Decision, DecisionFormat};
use prelude_text::decide::formats::{Codes, Decision2, DecisionPrompt, Kev, Laya, Wording};

use crate::assets::{Assets, LoadError};

/// The format of a served decision model: its prompt for this tokenizer, and its head.
#[derive(Debug)]
pub struct Decider {
    pub(crate) decision: Arc<Decision>,
    pub(crate) prompt: Box<dyn DecisionPrompt>,
    /// The distance between ids of tokens of different types, if the model has types of questions.
    pub(crate) type_step: Option<u32>,
    /// Numbers of a hidden state.
    pub(crate) hidden: usize,
}

impl Decider {
    /// Finds the tokens of the format's prompt in the model's tokenizer.
    ///
    /// # Errors
    /// [`LoadError::Option`] naming a token that is not there.
    pub(crate) fn new(decision: Arc<Decision>, assets: &Assets) -> Result<Self, LoadError> {
        let tokenizer = &assets.tokenizer;
        let lacks = |what: String| {
            let name = decision.format().name();
            LoadError::Option(format!(
                "the tokenizer does not fit the format {name}: {what}"
            ))
        };
        let token = |text: &str| {
            let found = tokenizer.token_to_id(text);
            found.ok_or_else(|| lacks(format!("it has no token {text:?}")))
        };
        let special = |name: &str| {
            let text = assets.tokenizer_config.token(name);
            text.ok_or_else(|| lacks(format!("tokenizer_config.json names no {name}")))
        };
        let prompt: Box<dyn DecisionPrompt> = match decision.format() {
            DecisionFormat::Laya {
                max_tokens,
                head_tokens,
            } => {
                let mask = special("mask_token")?;
                let (first, separator) = (special("cls_token")?, special("sep_token")?);
                Box::new(Laya {
                    special: [token(first)?, token(separator)?, token(mask)?],
                    mask: mask.to_owned(),
                    max_tokens: *max_tokens,
                    head_tokens: *head_tokens,
                })
            }
            DecisionFormat::Codes { wording, codes } => {
                for (code, id) in codes {
                    if tokenizer.encode(code, false) != [*id] {
                        return Err(lacks(format!("the code {code:?} is not its token {id}")));
                    }
                }
                if assets.chat_template.is_none() {
                    return Err(lacks("it has no chat template".to_owned()));
                }
                Box::new(Codes {
                    wording: match wording {
                        CodeWording::Pplx => Wording::PPLX,
                        CodeWording::D3 => Wording::D3,
                    },
                    codes: codes.iter().map(|(code, _)| code.clone()).collect(),
                })
            }
            DecisionFormat::Kev => {
                let [a, b, c, d, e] = Kev::TOKENS;
                Box::new(Kev([token(a)?, token(b)?, token(c)?, token(d)?, token(e)?]))
            }
            DecisionFormat::Decision2 => Box::new(Decision2),
            other => return Err(lacks(format!("{other:?} is not known"))),
        };
        let config = assets.checkpoint.config();
        let types = config.encoder.as_ref().and_then(|encoder| encoder.markers);
        Ok(Self {
            type_step: types.map(|_| u32::try_from(config.vocab_size).unwrap_or(u32::MAX)),
            hidden: config.hidden_size,
            prompt,
            decision,
        })
    }

    /// Returns the format's name in answers.
    pub(crate) fn format(&self) -> &'static str {
        self.decision.format().name()
    }
}
