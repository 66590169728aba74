//! A demo model's tokenizer, template and heads on an executor that computes nothing: it says a
//! script, so that parsers of what models say get to see something.

use prelude_core::{
    Capacity, Executor, ExecutorError, ForwardBatch, LabelScores, OneShotBatch, OutputHead,
    OutputRow, PositionLogprobs, RowOutput, SampleHead, SampledToken, StepId, StepOutput,
    TokenLogprob, TokenSource,
};
use prelude_engine::{EngineConfig, EngineError, ScheduledEngine};
use prelude_server::{
    assets::{Assets, EmbeddedModel},
    executor::Devices,
    load::{LoadOptions, Loaded, load},
};
use prelude_text::Tokenizer;

/// Longest sequence: short, so that whatever is asked ends soon.
const CONTEXT: u32 = 256;
/// Ids up to here are in the demo's vocabulary and not special.
const ORDINARY: u32 = 4_000;
const CLASSES: usize = 77;

/// Texts that models produce: calls, reasoning, ends of turns, pieces of letters.
const SCRIPT: &str = "I think.</think>\n\nYes.<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": \"a\"}}\n\
    </tool_call><tool_call>{\"name\":\"g\",\"arguments\":[]}</tool_call> <tool_call>\n{\"name\": <think>\
    <tool_call></tool_call></think> 漢字 🙂 é x</s>\n\n[1, {\"a\": 2}] ab ba <|im_end|> no <|im_start|>";

/// Returns a demo model under another name, computed by nothing.
///
/// # Errors
/// The error of the engine's configuration.
pub(crate) fn fake(
    files: &EmbeddedModel,
    name: &str,
    engine: &EngineConfig,
) -> Result<Loaded, EngineError> {
    let options = LoadOptions {
        pooling: Some(prelude_core::Pooling::Last),
        rerank_template: Some("qwen3".into()),
        ..LoadOptions::default()
    };
    let plain = LoadOptions::default();
    let devices = Devices::of_machine();
    let assets = || Assets::embedded(files).expect("the demo's files are whole");
    let loaded = load(assets(), &options, &devices).or_else(|_| load(assets(), &plain, &devices));
    let mut loaded = loaded.expect("the demo loads");
    let executor = Says {
        script: script(&loaded.model.tokenizer),
        capacity: Capacity {
            block_size: 16,
            num_blocks: 512,
            max_step_tokens: 1024,
            full_step_tokens: 2048,
            max_context_len: CONTEXT,
            vocab_size: loaded.model.vocab_size,
            pipeline_depth: 1,
            passes: None,
            attention: prelude_core::Attention::Causal,
            host_blocks: 0,
        },
        hidden: { loaded.model.vectors() }.map_or(0, |of| of.hidden_size as usize),
        done: None,
    };
    let engine = ScheduledEngine::spawn(name, engine.clone(), Box::new(executor))?;
    loaded.model.name = name.to_owned();
    loaded.model.max_model_len = CONTEXT;
    loaded.model.engine = engine.handle();
    loaded.engine = engine;
    Ok(loaded)
}

fn script(tokenizer: &Tokenizer) -> Vec<u32> {
    let mut script = tokenizer.encode(SCRIPT, false);
    // Bytes that are no text, at places where a text may break.
    script.extend([200, 4_001, 129, 3_999, 187, 240]);
    script
}

struct Says {
    script: Vec<u32>,
    capacity: Capacity,
    hidden: usize,
    done: Option<StepOutput>,
}

impl Executor for Says {
    fn capacity(&self) -> Capacity {
        self.capacity
    }

    fn submit(&mut self, step: StepId, batch: ForwardBatch) -> Result<(), ExecutorError> {
        batch.validate(&self.capacity).expect("a batch is valid");
        let (oneshot, prefill, decode) = batch.parts();
        let next = |row: &prelude_core::DecodeRow| {
            let TokenSource::Known(token) = row.token else {
                panic!("the pipeline is one step deep");
            };
            self.sample(token, row.context_len, &row.sample)
        };
        self.done = Some(StepOutput {
            oneshot: self.rows(oneshot),
            prefill: self.rows(prefill),
            decode: decode.rows.iter().map(next).collect(),
            step,
        });
        Ok(())
    }

    fn collect(&mut self, _step: StepId) -> Result<StepOutput, ExecutorError> {
        Ok(self.done.take().expect("a step was submitted"))
    }

    fn computes_at_once(&self) -> bool {
        true
    }
}

impl Says {
    fn rows(&self, batch: &OneShotBatch) -> Vec<RowOutput> {
        let output = |row: &OutputRow| {
            let segment = &batch.segments[row.segment.index()];
            let position = row.positions.end - 1;
            let last = segment.tokens.start + (position - segment.context_len.min(position));
            let token = batch.tokens[last.min(segment.tokens.end - 1) as usize];
            match &row.head {
                OutputHead::Sample(head) => self.sample(token, position, head),
                OutputHead::LabelScores { labels, .. } => RowOutput::LabelScores(LabelScores {
                    logits: labels.iter().map(|&l| score(l, position)).collect(),
                    log_sum_exp: Some(9.0),
                }),
                OutputHead::Logprobs { targets, top } => RowOutput::Logprobs {
                    first_position: row.positions.start + 1,
                    entries: (row.positions.start..)
                        .zip(targets)
                        .map(|(position, &token)| PositionLogprobs {
                            token,
                            logprob: -score(token, position),
                            rank: 1 + mix(token, position) % 7,
                            top: self.likeliest(token, *top),
                        })
                        .collect(),
                },
                OutputHead::Embed { dimensions, .. } => {
                    let width = dimensions.map_or(self.hidden, |d| d as usize);
                    RowOutput::Embedding(vec![0.5; width])
                }
                OutputHead::Classify => RowOutput::Classes(vec![0.25; CLASSES]),
                OutputHead::States(at) => RowOutput::Tokens {
                    first_position: row.positions.start,
                    rows: vec![vec![0.5; self.hidden]; at.len()],
                },
                OutputHead::Tokens(head) => RowOutput::Tokens {
                    first_position: row.positions.start,
                    rows: row
                        .positions
                        .clone()
                        .map(|_| vec![0.5; self.width(head)])
                        .collect(),
                },
            }
        };
        batch.rows.iter().map(output).collect()
    }

    fn width(&self, head: &prelude_core::TokenHead) -> usize {
        match head {
            prelude_core::TokenHead::Embed { dimensions, .. } => {
                dimensions.map_or(self.hidden, |d| d as usize)
            }
            prelude_core::TokenHead::Classify => CLASSES,
        }
    }

    /// Returns the script from the place that seed and choice name, for requests that sample; for
    /// others what follows the last token in it. Whatever is masked gives way to what is not.
    fn sample(&self, token: u32, position: u32, head: &SampleHead) -> RowOutput {
        let sampling = &head.sampling;
        let mut sampled = Vec::new();
        for choice in head.choice..head.choice + head.draws {
            let place = match sampling.temperature {
                0.0 => self
                    .script
                    .iter()
                    .position(|&t| t == token)
                    .map(|at| at + 1),
                _ => Some(
                    sampling.seed as usize % 997 + choice as usize + head.output_position as usize,
                ),
            };
            let place = place.unwrap_or(mix(token, position) as usize);
            let may = |id: u32| {
                let is_allowed = sampling.allowed_token_ids.as_ref();
                is_allowed.is_none_or(|ids| ids.contains(&id))
                    && !(head.masks_stops() && sampling.stop_token_ids.contains(&id))
            };
            let wish = self.script[place % self.script.len()];
            let next = match &head.mask {
                None => {
                    let listed = sampling.allowed_token_ids.as_deref();
                    let mut others = listed
                        .unwrap_or_default()
                        .iter()
                        .copied()
                        .chain(0..ORDINARY);
                    if may(wish) {
                        Some(wish)
                    } else {
                        others.find(|&id| may(id))
                    }
                }
                Some(mask) => {
                    let Some(set) = mask.wait() else {
                        return RowOutput::NoToken;
                    };
                    if set.contains(wish) && may(wish) {
                        Some(wish)
                    } else {
                        let all: Vec<u32> = set.ids().filter(|&id| may(id)).collect();
                        let at = mix(token, position) as usize;
                        (!all.is_empty()).then(|| all[at % all.len()])
                    }
                }
            };
            let Some(next) = next else {
                return RowOutput::NoToken;
            };
            sampled.push(SampledToken {
                token: next,
                logprob: head.top_logprobs.map(|_| -0.25),
                top: self.likeliest(next, head.top_logprobs.unwrap_or(0)),
            });
        }
        RowOutput::Sampled(sampled)
    }

    fn likeliest(&self, token: u32, top: u32) -> Vec<TokenLogprob> {
        (0..top.min(self.capacity.vocab_size))
            .map(|i| TokenLogprob {
                token: (token + i) % self.capacity.vocab_size,
                logprob: -0.25 - i as f32,
            })
            .collect()
    }
}

fn score(token: u32, position: u32) -> f32 {
    mix(token, position) as f32 / 1e3
}

fn mix(token: u32, position: u32) -> u32 {
    let mixed = token.wrapping_mul(0x9e37_79b1) ^ position.wrapping_mul(0x85eb_ca6b);
    (mixed ^ (mixed >> 15)).wrapping_mul(0x2c1b_3c6d) % ORDINARY
}
