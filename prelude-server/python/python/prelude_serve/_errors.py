"""The exceptions of requests."""

from __future__ import annotations

import json
from typing import Any

from ._prelude_serve import PreludeError


class RequestError(PreludeError):
    """A request was not answered.

    `status` and `reason` are what a server would have sent: the HTTP status, and a name that does not
    change with the wording of the message. `param` is the field at fault, if one is.
    """

    def __init__(self, status: int, reason: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.param = param

    def __reduce__(self) -> Any:
        return type(self), (self.status, self.reason, self.args[0], self.param)


class InvalidRequest(RequestError, ValueError):
    """The request is at fault: the message names the field and what it must be."""


class Overloaded(RequestError):
    """More requests wait than the limits allow, or a deadline passed. Later the same may succeed."""


class EngineFailed(RequestError):
    """The engine failed, or was stopped."""


def refusal(status: int, body: bytes) -> RequestError:
    """Return the exception for an answer that is not a success."""
    try:
        error = json.loads(body)
    except ValueError:
        error = {}
    error = error if isinstance(error, dict) else {}
    inner = error.get("error")
    if isinstance(inner, dict):
        reason, message, param = (inner.get(name) for name in ("reason", "message", "param"))
    else:
        # The dialect of Text Embeddings Inference.
        reason, message, param = error.get("error_type"), inner, None
    kind = Overloaded if status == 429 else InvalidRequest if status < 500 else EngineFailed
    return kind(status, reason or f"status_{status}", message or f"status {status}", param)
