"""Exact, fast, inference-only tokenizer for Hugging Face tokenizer.json files."""

from ._fasttoken import (
    AddedToken,
    EncodeError,
    Encoding,
    LoadError,
    Tokenizer,
    UnsupportedError,
    __version__,
)
from ._transformers import patch_transformers, unpatch_transformers

__all__ = [
    "AddedToken",
    "EncodeError",
    "Encoding",
    "LoadError",
    "Tokenizer",
    "UnsupportedError",
    "__version__",
    "patch_transformers",
    "unpatch_transformers",
]
