//! The step's activations: handed out from the front of one buffer, which is sized at start.

use thiserror::Error;

use crate::ModelConfig;

/// A `[rows, width]` tensor in a step's arena, row-major.
#[derive(Debug)]
pub struct ArenaTensor {
    offset: usize,
    rows: usize,
    width: usize,
}

impl ArenaTensor {
    /// Byte of the arena at which the tensor begins.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.offset
    }

    /// Number of rows.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Elements per row.
    #[must_use]
    pub const fn width(&self) -> usize {
        self.width
    }
}

/// A step asked for more activations than its batch could need: a defect of the model definition
/// or of the executor's memory plan.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("no room for [{rows}, {width}] activations: {free_bytes} bytes of the arena are free")]
pub struct ArenaFull {
    /// Rows asked for.
    pub rows: usize,
    /// Elements per row asked for.
    pub width: usize,
    /// Bytes left.
    pub free_bytes: usize,
}

/// The part of an arena that tensors occupy. The same sequence of calls yields the same offsets.
#[derive(Debug)]
pub struct ArenaCursor {
    arena_bytes: usize,
    used_bytes: usize,
}

impl ArenaCursor {
    /// An empty arena of `arena_bytes` bytes.
    #[must_use]
    pub const fn new(arena_bytes: usize) -> Self {
        Self {
            arena_bytes,
            used_bytes: 0,
        }
    }

    /// Removes all tensors.
    pub const fn reset(&mut self) {
        self.used_bytes = 0;
    }

    /// Places a `[rows, width]` tensor of `bytes` bytes, padding included.
    ///
    /// # Errors
    /// [`ArenaFull`] if fewer bytes are free.
    pub const fn alloc(
        &mut self,
        rows: usize,
        width: usize,
        bytes: usize,
    ) -> Result<ArenaTensor, ArenaFull> {
        let free_bytes = self.arena_bytes - self.used_bytes;
        if bytes > free_bytes {
            return Err(ArenaFull {
                rows,
                width,
                free_bytes,
            });
        }
        let offset = self.used_bytes;
        self.used_bytes += bytes;
        Ok(ArenaTensor {
            offset,
            rows,
            width,
        })
    }
}

/// Returns the size of the activations of the largest step, as [`crate::Model::forward`] takes
/// them. `room` returns the size of a `[rows, width]` tensor, in any unit.
#[must_use]
pub fn activation_room(
    model: &ModelConfig,
    max_step_tokens: u32,
    chunk_tokens: u32,
    room: impl Fn(usize, usize) -> usize,
) -> usize {
    let tokens = max_step_tokens as usize;
    let few = step_room(model, tokens, tokens / 2, chunk_tokens, &room);
    few.max(step_room(model, tokens, tokens, chunk_tokens, &room))
}

/// Returns the size of the activations of a step of `tokens` tokens and at most `outputs` output
/// positions: all hidden states, a chunk's intermediates, the output positions before and after the
/// norm, and, if at most half of the tokens are output positions, what those attended to.
/// `room` returns the size of a `[rows, width]` tensor, in any unit.
#[must_use]
pub fn step_room(
    model: &ModelConfig,
    tokens: usize,
    outputs: usize,
    chunk_tokens: u32,
    room: &impl Fn(usize, usize) -> usize,
) -> usize {
    let shape = model.attn_shape();
    let chunk = (chunk_tokens as usize).min(tokens);
    let outputs = outputs.min(tokens);
    let hidden = model.hidden_size;
    let chunk_widths = [
        hidden,
        shape.qkv_width(),
        shape.out_width(),
        2 * model.intermediate_size,
        model.intermediate_size,
    ];
    let attended = match 2 * outputs <= tokens {
        true => room(outputs, shape.out_width()),
        false => 0,
    };
    let chunk_room = chunk_widths.into_iter().map(|width| room(chunk, width));
    room(tokens, hidden) + 2 * room(outputs, hidden) + attended + chunk_room.sum::<usize>()
}
