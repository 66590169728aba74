//! One thread that joins a scheduler and an executor.
#![forbid(unsafe_code)]
