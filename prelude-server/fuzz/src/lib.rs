//! The parts that targets share: models without arithmetic in service, bodies made wrong, and what
//! every answer has to be.

mod bodies;
mod model;
// Where the published package has it: a test of a served process makes the same schemas.
#[path = "../../tests/process/schemas.rs"]
pub mod schemas;
mod world;

pub use bodies::{Asked, Leaf};
pub use world::{LIMITS, World, check_answer};
