//! CPU executor: the embedded default and the correctness oracle.
