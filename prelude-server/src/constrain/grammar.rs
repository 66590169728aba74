//! Regular expressions, schemas and grammars, by way of `llguidance`.
//!
//! A compiled grammar is never walked itself: each continuation gets a copy with lexer tables of
//! its own. Shared tables would make what one row may still spend depend on what others did.

use std::{
    borrow::Cow,
    fmt,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    thread,
};

use llguidance::ParserFactory;
use prelude_core::{Constraint, MatchState, Matcher, TokenId, TokenMask, TokenSet};

use super::{
    ConstraintContext, Language,
    flights::{Flights, Stop},
    mask_threads::MaskThreads,
    source::{Compiled, Failure, Kind, Refusal, Source, depth},
    spec::WHITESPACE_PATTERN,
    vocabulary,
};
use crate::{admission::Admission, config::ms, error::ApiError, log};

/// Brackets within brackets: parsers recurse over them.
const DEPTH_MAX: usize = 100;

/// Upper bound of the parser tables that all constrained continuations of a model may hold
/// together, in bytes: each has an equal share. A grammar that needs more is refused (400), and a
/// continuation that comes to need more fails.
const STATE_BYTES_MAX: usize = 1 << 30;

/// The compiled grammars of one model, and what is needed to compile more.
pub(crate) struct Grammars {
    factory: OnceLock<Result<Arc<ParserFactory>, String>>,
    threads: OnceLock<Arc<MaskThreads>>,
    compiled: OnceLock<Flights<Compiled>>,
    /// Continuations that may run at once.
    continuations: u32,
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

impl Grammars {
    /// Makes the state for a model of which `continuations` may run at once.
    pub(crate) fn new(continuations: u32) -> Self {
        Self {
            factory: OnceLock::new(),
            threads: OnceLock::new(),
            compiled: OnceLock::new(),
            continuations,
        }
    }

    /// Returns the bytes of the compiled grammars that are kept.
    pub(crate) fn bytes(&self) -> usize {
        self.compiled.get().map_or(0, Flights::bytes)
    }

    /// Returns the constraint for a language. `ends` are offered where a text may end.
    ///
    /// # Errors
    /// 400 naming `param`, 429 if too many wait already.
    pub(super) async fn constraint(
        &self,
        context: ConstraintContext<'_>,
        language: &Language,
        param: &'static str,
        ends: Arc<[u32]>,
    ) -> Result<Arc<dyn Constraint>, ApiError> {
        let source = Source::new(language);
        super::check_bytes(source.text.len(), context.limits, param)?;
        if depth(&source.text) > DEPTH_MAX {
            let message = format!("`{param}` has more than {DEPTH_MAX} brackets within another");
            return Err(ApiError::grammar_too_complex(message, param));
        }
        if let Some(must) = source.refused() {
            return Err(ApiError::grammar(must, param));
        }
        let key = source.key();
        let limits = context.limits;
        let compiled = self
            .compiled
            .get_or_init(|| Flights::new(limits.grammar_cache_bytes));
        let outcome = match compiled.kept(&key) {
            Some(kept) => {
                context.metrics.grammar_cache_hit();
                kept.map_err(Failure::Refused)
            }
            None => {
                let factory = self.factory(context).await?;
                let work = move |stop: &Stop| source.compile(&factory, stop);
                compiled.make(key, ms(limits.grammar_ms), work).await
            }
        };
        let compiled = outcome.map_err(|failure| answer(failure, context, param, language))?;
        let threads = self.threads.get_or_init(|| {
            let cores = thread::available_parallelism().map_or(1, usize::from);
            let threads = u32::try_from((cores / 2).clamp(1, 8)).expect("the number is at most 8");
            Arc::new(MaskThreads::start(threads))
        });
        let vocab_size = context.vocab_size;
        let ends_first = ends.iter().filter(|_| compiled.accepts_nothing);
        let first = compiled.first.ids().chain(ends_first.copied());
        Ok(Arc::new(Grammar {
            first: Arc::new(TokenSet::from_ids(first, vocab_size)),
            compiled,
            threads: Arc::clone(threads),
            ends,
        }))
    }

    /// Returns one continuation's share of `state_bytes`, if all run that may.
    fn share_of(&self, state_bytes: usize) -> usize {
        state_bytes / self.continuations.max(1) as usize
    }

    /// Returns the compiler of grammars, which is made for the first grammar.
    async fn factory(
        &self,
        context: ConstraintContext<'_>,
    ) -> Result<Arc<ParserFactory>, ApiError> {
        let bytes = self.share_of(STATE_BYTES_MAX);
        let make =
            || vocabulary::factory(context.tokenizer, context.vocab_size, bytes).map(Arc::new);
        let factory = match self.factory.get() {
            Some(factory) => factory,
            // Making the factory takes as long as encoding a long text.
            None => {
                let init = || self.factory.get_or_init(make);
                context.encoder.run(usize::MAX, init).await?
            }
        };
        factory.clone().map_err(|why| {
            log::line(format_args!(
                "error id={} grammars: {why}",
                context.request_id
            ));
            ApiError::internal(context.request_id)
        })
    }
}

fn answer(
    failure: Failure,
    context: ConstraintContext<'_>,
    param: &'static str,
    language: &Language,
) -> ApiError {
    match failure {
        Failure::Refused(Refusal::Invalid { must, param: part }) => {
            ApiError::grammar(must, part.map_or(Cow::Borrowed(param), Cow::Owned))
        }
        Failure::Refused(Refusal::Whitespace) => {
            let whitespace = match language {
                Language::Json(_) => Some(WHITESPACE_PATTERN),
                _ => None,
            };
            ApiError::grammar(Kind::Regex.must(), whitespace.unwrap_or(param))
        }
        Failure::Refused(Refusal::TooComplex) => {
            let limit = context.limits.grammar_ms;
            let message = format!(
                "`{param}` is too large to be enforced, or takes more than {limit} ms to \
                 compile; make it smaller"
            );
            ApiError::grammar_too_complex(message, param)
        }
        Failure::Busy => {
            let message = "queue is full: too many grammars wait to be compiled";
            ApiError::queue_full(message, Admission::soon())
        }
        Failure::NoThread => {
            let id = context.request_id;
            log::line(format_args!("error id={id} no grammar thread"));
            ApiError::internal(id)
        }
    }
}

/// A compiled grammar as the engine sees it.
#[derive(Debug)]
struct Grammar {
    compiled: Arc<Compiled>,
    threads: Arc<MaskThreads>,
    ends: Arc<[u32]>,
    first: Arc<TokenSet>,
}

impl Constraint for Grammar {
    fn start(&self) -> Box<dyn Matcher> {
        Box::new(Place {
            compiled: Arc::clone(&self.compiled),
            threads: Arc::clone(&self.threads),
            ends: Arc::clone(&self.ends),
            first: Arc::clone(&self.first),
            matcher: None,
        })
    }
}

/// The place of one continuation in a grammar.
struct Place {
    compiled: Arc<Compiled>,
    threads: Arc<MaskThreads>,
    ends: Arc<[u32]>,
    first: Arc<TokenSet>,
    /// `None` before the first token.
    matcher: Option<Arc<Mutex<llguidance::Matcher>>>,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place")
            .field("begun", &self.matcher.is_some())
            .finish_non_exhaustive()
    }
}

impl Matcher for Place {
    fn next(&mut self) -> Arc<dyn TokenMask> {
        match &self.matcher {
            None => Arc::clone(&self.first) as _,
            Some(matcher) => {
                let ends = Arc::clone(&self.ends);
                self.threads
                    .compute(Arc::clone(matcher), ends, &self.compiled.mask_cost)
            }
        }
    }

    fn take(&mut self, token: TokenId) -> MatchState {
        let matcher = self.matcher.get_or_insert_with(|| {
            let fresh = &self.compiled.matcher;
            let fresh = fresh.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::new(Mutex::new(fresh.deep_clone()))
        });
        let mut matcher = matcher.lock().unwrap_or_else(PoisonError::into_inner);
        // An error stays in the matcher: the next mask is nothing then.
        match matcher.consume_token(token) {
            Ok(()) if matcher.is_stopped() => MatchState::Complete,
            _ => MatchState::Open,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continuations_share_what_they_may_hold_together() {
        let check = |continuations, bytes, expected| {
            let share = Grammars::new(continuations).share_of(bytes);
            assert_eq!(share, expected, "{continuations} of {bytes}");
            assert!(share * continuations as usize <= bytes);
        };
        check(0, 100, 100);
        check(1, 100, 100);
        check(3, 100, 33);
        check(256, STATE_BYTES_MAX, 4 << 20);
    }
}
