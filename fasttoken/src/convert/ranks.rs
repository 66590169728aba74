//! Tokens with ranks, from which tiktoken merges, as the merge rules of a `tokenizer.json`.
//!
//! tiktoken joins two neighbouring tokens if the bytes of both are a token, the lowest rank first and
//! the leftmost of equal ranks. A rule of a `tokenizer.json` names two tokens, and its place among
//! the rules is its rank. One rule for each token is enough:
//!
//! Take a token `t`, and split its bytes as tiktoken would if it had only the tokens of lower ranks.
//! Let two tokens `l` and `r` remain, which join to `t`. Now take a text in which tiktoken makes `t`
//! somewhere. Before any merge of the rank of `t` or higher, the bytes of that `t` have been merged
//! among themselves only (or `t` could not be made of them later), by lower ranks, lowest and
//! leftmost first, as when `t` was alone. So they are `l` and `r` by then, and no other rule can
//! make `t`.
//!
//! If more than two tokens remain, no lower ranks lead to `t`. Then either no two tokens join to `t`,
//! and it is found only where it is a whole word; or two tokens do, one of them of a higher rank, and
//! the order in which tiktoken makes it has no counterpart. Such ranks are refused.

use crate::error::Error;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use twox_hash::XxHash3_64;

/// Upper bound of the bytes of a token, so that a file cannot ask for much time.
const TOKEN_BYTES_MAX: usize = 1024;

/// Two tokens that join to a third.
type Pair<'a> = (&'a [u8], &'a [u8]);

/// Tokens by rising rank.
pub(super) struct Ranks<'a> {
    tokens: &'a [(Vec<u8>, u32)],
    ranks: HashMap<&'a [u8], u32, BuildHasherDefault<XxHash3_64>>,
}

impl<'a> Ranks<'a> {
    /// Takes tokens by rising rank. Every byte has to be one.
    pub(super) fn new(tokens: &'a [(Vec<u8>, u32)]) -> Result<Self, Error> {
        let mut ranks = HashMap::with_capacity_and_hasher(tokens.len(), Default::default());
        for (token, rank) in tokens {
            let shown = || String::from_utf8_lossy(token).into_owned();
            if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
                let problem = format!(
                    "a token has 1 to {TOKEN_BYTES_MAX} bytes, not {}",
                    token.len()
                );
                return Err(Error::invalid(format!("rank {rank}"), problem));
            }
            if ranks.insert(token.as_slice(), *rank).is_some() {
                return Err(Error::DuplicateToken { token: shown() });
            }
        }
        let lacking = (0..=u8::MAX).find(|byte| !ranks.contains_key([*byte].as_slice()));
        if let Some(byte) = lacking {
            let problem = format!("byte {byte:#04X} is no token, so that some text has no ids");
            return Err(Error::invalid("the ranks", problem));
        }
        Ok(Self { tokens, ranks })
    }

    /// Returns the two tokens of each merge rule, by rising rank of what they make.
    pub(super) fn merges(&self) -> Result<Vec<Pair<'a>>, Error> {
        let mut merges = Vec::with_capacity(self.tokens.len());
        let mut ends = Vec::new();
        for (token, rank) in self.tokens.iter().filter(|(token, _)| token.len() > 1) {
            self.split(token, *rank, &mut ends);
            if let &[middle, _] = ends.as_slice() {
                merges.push(token.split_at(middle));
            } else if self.joins(token) {
                let shown = String::from_utf8_lossy(token);
                return Err(Error::unsupported(
                    format!("rank {rank}"),
                    format!("token {shown:?}, which only tokens of higher ranks join to"),
                ));
            }
        }
        Ok(merges)
    }

    /// Fills `ends` with the ends of the tokens of `token` when only tokens below rank `limit` may be
    /// made.
    fn split(&self, token: &[u8], limit: u32, ends: &mut Vec<usize>) {
        ends.clear();
        ends.extend(1..=token.len());
        while ends.len() > 2 {
            let start = |n: usize| if n == 0 { 0 } else { ends[n - 1] };
            let rank = |n: usize| self.ranks.get(&token[start(n)..ends[n + 1]]).copied();
            let pairs = (0..ends.len() - 1).filter_map(|n| Some((rank(n)?, n)));
            match pairs.filter(|(rank, _)| *rank < limit).min() {
                Some((_, n)) => ends.remove(n),
                None => return,
            };
        }
    }

    /// Returns true if some two tokens join to `token`.
    fn joins(&self, token: &[u8]) -> bool {
        let is_token = |bytes: &[u8]| self.ranks.contains_key(bytes);
        (1..token.len()).any(|at| is_token(&token[..at]) && is_token(&token[at..]))
    }
}
