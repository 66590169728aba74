//! Sans-IO scheduler with execution classes for language-model decisions, and its simulator.
#![forbid(unsafe_code)]
