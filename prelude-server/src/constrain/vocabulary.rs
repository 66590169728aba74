//! A model's vocabulary as `llguidance` wants it: a trie over the bytes that tokens stand for.

use std::sync::Arc;

use llguidance::{
    ParserFactory,
    api::ParserLimits,
    earley::SlicedBiasComputer,
    toktrie::{InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId, TokenizerEnv},
};
use prelude_text::tokenizer::Tokenizer;

/// The id of no token, which stands for the end token: the server offers the end itself.
const NO_TOKEN: TokenId = TokenId::MAX;

/// Upper bound of a lexer state's memory: four bytes for each of up to 256 classes of bytes, and
/// the expressions that it stands for.
const LEXER_STATE_BYTES: usize = 2 << 10;

/// Returns the limits of a parser, of which lexer states take nearly all the memory: they are
/// bounded by `state_bytes`, in a compiled grammar and in each continuation that it constrains. A
/// mask takes about ten milliseconds at most. What needs more is refused, before or in the midst of its answer.
fn limits(state_bytes: usize) -> ParserLimits {
    ParserLimits {
        max_lexer_states: (state_bytes / LEXER_STATE_BYTES).max(1),
        // 50 units take a microsecond, and 100 bytes each.
        initial_lexer_fuel: 200_000,
        // 14 units take a microsecond.
        step_lexer_fuel: 100_000,
        // A row takes time quadratic in its items.
        step_max_items: 16_000,
        max_items_in_row: 2_000,
        // Each unit takes a kilobyte.
        max_grammar_size: 40_000,
        // The setting would run through the whole vocabulary for every large lexeme.
        precompute_large_lexemes: false,
        // Verbose errors would quote the grammar.
        verbose_errors: false,
    }
}

struct Vocabulary {
    trie: TokTrie,
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        self.trie.greedy_tokenize(bytes)
    }

    /// Returns false: the model chooses how it spells text that the grammar forces.
    fn tokenize_is_canonical(&self) -> bool {
        false
    }
}

/// Compiles grammars for this vocabulary of `vocab_size` ids, into parsers whose states take at
/// most `state_bytes` each. Takes a while with a large one.
///
/// # Errors
/// If `llguidance` cannot work with it.
pub(super) fn factory(
    tokenizer: &Tokenizer,
    vocab_size: u32,
    state_bytes: usize,
) -> Result<ParserFactory, String> {
    let words: Vec<Vec<u8>> = (0..vocab_size)
        .map(|id| {
            let piece = tokenizer.id_to_piece(id).unwrap_or_default();
            // No text has this byte, so no grammar of text allows a special token.
            let marker = tokenizer
                .is_special(id)
                .then_some(TokTrie::SPECIAL_TOKEN_MARKER);
            marker.into_iter().chain(piece.iter().copied()).collect()
        })
        .collect();
    let info = TokRxInfo::new(vocab_size, NO_TOKEN);
    let trie = TokTrie::from(&info, &words);
    let env: TokEnv = Arc::new(Vocabulary { trie });
    let slices = SlicedBiasComputer::general_slices();
    let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
        .map_err(|e| e.to_string())?;
    *factory.limits_mut() = limits(state_bytes);
    factory.quiet();
    Ok(factory)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory of all of a lexer's states is bounded by one continuation's share.
    #[test]
    fn states_are_as_many_as_fit() {
        let check = |bytes: usize, expected: usize| {
            let states = limits(bytes).max_lexer_states;
            assert_eq!(states, expected, "{bytes} bytes");
            assert!(states == 1 || states * LEXER_STATE_BYTES <= bytes);
        };
        // Without any a lexer could not begin.
        check(0, 1);
        check(LEXER_STATE_BYTES, 1);
        check(2 * LEXER_STATE_BYTES - 1, 1);
        check(2 * LEXER_STATE_BYTES, 2);
        check(4 << 20, 2_048);
    }
}
