//! Tools of the parity test: the reference's outputs, a driver for any executor, a table.

pub(crate) mod driver;
pub(crate) mod golden;
pub(crate) mod table;
