//! Flat arrays that are owned, or lie in an image that is mapped or held in memory.
//!
//! Reading one costs the same either way: a pointer and a length. The array keeps
//! what it points into alive, so clones and parts of an image can be passed around
//! freely. The bytes of an image are read as plain numbers, whose every bit pattern
//! is valid; what the numbers mean is for their users to check.

mod flat;
mod image;
mod movable;
mod room;

pub(crate) use flat::Flat;
pub(crate) use image::{Image, LINE};
pub(crate) use movable::{Movable, gather};
pub(crate) use room::{Room, read};

#[cfg(test)]
mod tests;
