//! KV-cache bookkeeping: a reference-counted block pool and a block-level prefix trie.
#![forbid(unsafe_code)]
