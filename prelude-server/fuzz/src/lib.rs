//! The parts that targets share: models without arithmetic in service, bodies made wrong, and what
//! every answer has to be.

mod bodies;
mod model;
pub mod schemas;
mod world;

pub use bodies::{Asked, Leaf};
pub use world::{LIMITS, World, check_answer};
