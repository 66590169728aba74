//! The step's activations: handed out from the front of one buffer, which is sized at start.

use std::ops::Range;

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
    /// Returns the byte of the arena at which the tensor begins.
    #[must_use]
    pub const fn offset(&self) -> usize {
        self.offset
    }

    /// Returns the number of rows.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the number of elements per row.
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

/// The part of an arena that tensors occupy: those of the whole step first, then those of the slice
/// that runs. The same sequence of calls yields the same offsets.
///
/// ```text
/// bytes.start ... kept_end ... end ... bytes.end
///    | kept        | of the slice | free    |
/// ```
#[derive(Debug)]
pub struct ArenaCursor {
    bytes: Range<usize>,
    kept_end: usize,
    end: usize,
}

impl ArenaCursor {
    /// Returns an empty arena of these bytes; offsets are numbers of them.
    #[must_use]
    pub const fn new(bytes: Range<usize>) -> Self {
        let start = bytes.start;
        Self {
            bytes,
            kept_end: start,
            end: start,
        }
    }

    /// Removes all tensors.
    pub const fn reset(&mut self) {
        self.kept_end = self.bytes.start;
        self.end = self.bytes.start;
    }

    /// Removes the tensors that end with a slice.
    pub const fn end_slice(&mut self) {
        self.end = self.kept_end;
    }

    /// Places a `[rows, width]` tensor of `bytes` bytes, padding included, that ends with the
    /// slice.
    ///
    /// # Errors
    /// [`ArenaFull`] if fewer bytes are free.
    pub const fn alloc(
        &mut self,
        rows: usize,
        width: usize,
        bytes: usize,
    ) -> Result<ArenaTensor, ArenaFull> {
        let free_bytes = self.bytes.end - self.end;
        if bytes > free_bytes {
            return Err(ArenaFull {
                rows,
                width,
                free_bytes,
            });
        }
        let offset = self.end;
        self.end += bytes;
        Ok(ArenaTensor {
            offset,
            rows,
            width,
        })
    }

    /// Places a tensor that stays until the end of the step: see [`ArenaCursor::alloc`].
    ///
    /// # Errors
    /// [`ArenaFull`] if fewer bytes are free.
    ///
    /// # Panics
    /// If a tensor of the slice is there already.
    pub fn alloc_kept(
        &mut self,
        rows: usize,
        width: usize,
        bytes: usize,
    ) -> Result<ArenaTensor, ArenaFull> {
        assert_eq!(
            self.end, self.kept_end,
            "tensors of the whole step come first"
        );
        let tensor = self.alloc(rows, width, bytes)?;
        self.kept_end = self.end;
        Ok(tensor)
    }
}

/// Returns the size of the activations of the largest step of at most `tokens` tokens and `outputs`
/// output positions, as [`crate::Model::forward`] takes them. `room` returns the size of a
/// `[rows, width]` tensor, in any unit.
#[must_use]
pub fn activation_room(
    model: &ModelConfig,
    tokens: usize,
    outputs: usize,
    chunk_tokens: u32,
    room: impl Fn(usize, usize) -> usize,
) -> usize {
    let of = |outputs| match model.encoder {
        Some(_) => whole_room(model, tokens, outputs, chunk_tokens, &room),
        None => {
            kept_room(model, tokens, outputs, &room)
                + slice_room(model, tokens, outputs, chunk_tokens, &room)
        }
    };
    let outputs = outputs.min(tokens);
    of(outputs).max(of(outputs.min(tokens / 2)))
}

/// Returns the size of the activations of a step of an encoder: the output positions, before and
/// after the first product of a head, the means of their texts, a chunk of whole segments and, if
/// at most half of the tokens are output positions, what those attended to.
fn whole_room(
    model: &ModelConfig,
    tokens: usize,
    outputs: usize,
    chunk_tokens: u32,
    room: &impl Fn(usize, usize) -> usize,
) -> usize {
    let shape = model.attn_shape();
    let chunk = (chunk_tokens as usize).min(tokens);
    let mut widths = vec![
        model.hidden_size,
        shape.qkv_width(),
        shape.out_width(),
        model.intermediate_size,
    ];
    let encoder = model.encoder.as_ref();
    if model.family.has_pre_norms() {
        widths.extend([model.hidden_size, 2 * model.intermediate_size]);
    }
    if encoder.is_some_and(|encoder| encoder.markers.is_some()) {
        widths.extend([model.hidden_size, 4 * model.hidden_size]);
    }
    let means = usize::from(encoder.is_some_and(|encoder| encoder.has_mean_classes()));
    let chunk_room = widths.into_iter().map(|width| room(chunk, width));
    (2 + means) * room(outputs, model.hidden_size)
        + attended_room(model, tokens, outputs, room)
        + chunk_room.sum::<usize>()
}

/// Returns the size of what the output positions attended to, if at most half of the tokens are
/// output positions.
fn attended_room(
    model: &ModelConfig,
    tokens: usize,
    outputs: usize,
    room: &impl Fn(usize, usize) -> usize,
) -> usize {
    match 2 * outputs <= tokens {
        true => room(outputs, model.attn_shape().out_width()),
        false => 0,
    }
}

/// Returns the size of what a step keeps from slice to slice: all hidden states and, if at most
/// half of the tokens are output positions, what those attended to. See [`activation_room`].
#[must_use]
pub fn kept_room(
    model: &ModelConfig,
    tokens: usize,
    outputs: usize,
    room: &impl Fn(usize, usize) -> usize,
) -> usize {
    room(tokens, model.hidden_size) + attended_room(model, tokens, outputs, room)
}

/// Returns the size of what a slice of a step takes and does not keep: a chunk's intermediates, and
/// the output positions before and after the norm. See [`activation_room`].
#[must_use]
pub fn slice_room(
    model: &ModelConfig,
    tokens: usize,
    outputs: usize,
    chunk_tokens: u32,
    room: &impl Fn(usize, usize) -> usize,
) -> usize {
    let shape = model.attn_shape();
    let chunk = (chunk_tokens as usize).min(tokens);
    let hidden = model.hidden_size;
    let mut chunk_widths = vec![
        hidden,
        shape.qkv_width(),
        shape.out_width(),
        2 * model.intermediate_size,
        model.intermediate_size,
    ];
    if let Some(experts) = &model.experts {
        let width = experts.intermediate_size;
        chunk_widths.extend([experts.count, 2 * width, width, hidden, hidden, hidden]);
    }
    let chunk_room = chunk_widths.into_iter().map(|width| room(chunk, width));
    2 * room(outputs, hidden) + chunk_room.sum::<usize>()
}
