"""Inputs as callers have them, in the form that requests have."""

from __future__ import annotations

import json
from collections.abc import Mapping
from numbers import Integral
from typing import Any


def to_body(body: Any) -> bytes:
    """Return a value as JSON. NumPy's arrays and numbers become lists and numbers."""
    try:
        return _ENCODER.encode(body).encode()
    except UnicodeEncodeError as error:
        near = error.object[max(0, error.start - 20) : error.start]
        raise ValueError(f"a text has a lone surrogate, which is no character, behind {near!r}") from None


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is nothing that JSON has")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain)


def as_list(values: Any, name: str) -> list[Any]:
    """Return a list of several inputs: of a list, a tuple, an array, a column of a table."""
    if isinstance(values, (bytes, bytearray, Mapping)) or not hasattr(values, "__iter__"):
        raise TypeError(f"{name} must be a text or a list of texts, not {type(values).__name__}")
    for method in ("tolist", "to_pylist"):
        if hasattr(values, method):
            values = getattr(values, method)()
    # An array without dimensions is one text.
    found: list[Any] = [values] if isinstance(values, str) else list(values)
    if not found:
        raise ValueError(f"{name} must not be empty")
    return found


def texts(values: Any, name: str) -> list[str]:
    """Return texts. One alone is a list of one."""
    found = [values] if isinstance(values, str) else as_list(values, name)
    for i, text in enumerate(found):
        if not isinstance(text, str):
            raise TypeError(f"{name}[{i}] must be a str, not {type(text).__name__}")
    return found


def prompts(values: Any, name: str) -> list[Any]:
    """Return prompts: all are texts, or all are lists of token ids. One alone is a list of one."""
    if isinstance(values, str):
        return [values]
    found = as_list(values, name)
    if _is_id(found[0]):
        found = [found]
    if isinstance(found[0], str):
        return texts(found, name)
    prompts = [as_list(prompt, f"{name}[{i}]") if not isinstance(prompt, str) else prompt for i, prompt in enumerate(found)]
    for i, prompt in enumerate(prompts):
        if isinstance(prompt, str) or not all(map(_is_id, prompt)):
            raise TypeError(f"{name}[{i}] must be a list of token ids, or {name} texts alone")
    return prompts


def _is_id(value: Any) -> bool:
    # NumPy's integers are of this kind, and its arrays are not.
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_conversation(prompt: Any) -> bool:
    """Return whether a prompt is a list of messages, `{"role": ..., "content": ...}`."""
    return isinstance(prompt, (list, tuple)) and bool(prompt) and isinstance(prompt[0], Mapping)
