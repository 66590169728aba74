//! The pieces of a request's body, kept as they came.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::{picker::Picker, refusal::Refusal};

/// The pieces of a body until the pick.
#[derive(Debug)]
pub(super) struct BodyBuffer {
    picker: Arc<Picker>,
    chunks: Vec<Bytes>,
    len: usize,
}

impl BodyBuffer {
    pub(super) fn new(picker: &Arc<Picker>) -> Self {
        Self {
            picker: Arc::clone(picker),
            chunks: Vec::new(),
            len: 0,
        }
    }

    /// Returns the bytes of all pieces.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Keeps a piece.
    ///
    /// # Errors
    /// [`Refusal::BodyTooLarge`], [`Refusal::BuffersFull`].
    pub(super) fn push(&mut self, chunk: Bytes) -> Result<(), Refusal> {
        if chunk.is_empty() {
            return Ok(());
        }
        let most = self.picker.config.max_body_bytes;
        if chunk.len() > most.saturating_sub(self.len) {
            return Err(Refusal::BodyTooLarge { most });
        }
        self.picker.reserve(chunk.len())?;
        self.len += chunk.len();
        self.chunks.push(chunk);
        Ok(())
    }

    /// Returns the whole body: the piece itself if there is one alone, else a copy of all.
    pub(super) fn joined(&self) -> Bytes {
        match &self.chunks[..] {
            [] => Bytes::new(),
            [one] => one.clone(),
            all => {
                let mut joined = BytesMut::with_capacity(self.len);
                all.iter().for_each(|chunk| joined.extend_from_slice(chunk));
                joined.freeze()
            }
        }
    }

    /// Returns the pieces, and gives back the room that they took.
    pub(super) fn take(&mut self) -> Vec<Bytes> {
        self.picker.release(self.len);
        self.len = 0;
        std::mem::take(&mut self.chunks)
    }
}

impl Drop for BodyBuffer {
    fn drop(&mut self) {
        self.picker.release(self.len);
    }
}
