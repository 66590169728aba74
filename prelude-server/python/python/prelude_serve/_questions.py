"""Typed questions about a state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Noul:
    """A question whose answer is the probability of yes.

    `true` and `false` say what yes and no mean. Texts may also be JSON, which the model is shown.
    """

    instructions: Any = None
    true: Any = None
    false: Any = None

    def to_json(self) -> dict[str, Any]:
        """Return the question as a request has it."""
        question: dict[str, Any] = {"type": "noul"}
        if self.true is not None or self.false is not None:
            sides = {"true": self.true, "false": self.false}
            question["criteria"] = {name: side for name, side in sides.items() if side is not None}
        return _with_instructions(question, self.instructions)


@dataclass(frozen=True)
class Choice:
    """A question whose answer is one of 2 to 255 options.

    `options` are names, or a mapping of names to what they mean.
    """

    instructions: Any
    options: Sequence[str] | Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the question as a request has it."""
        options = self.options
        if not isinstance(options, Mapping):
            if isinstance(options, str) or len(set(options)) < len(options):
                raise ValueError(f"the options of a choice are different names, not {options!r}")
            options = dict.fromkeys(options)
        return _with_instructions({"type": "choice", "criteria": dict(options)}, self.instructions)


@dataclass(frozen=True)
class Score:
    """A question whose answer is the mean of 2 to 10 levels, of which the first counts 0."""

    instructions: Any
    levels: Sequence[Any]

    def to_json(self) -> dict[str, Any]:
        """Return the question as a request has it."""
        if isinstance(self.levels, str):
            raise ValueError(f"the levels of a score are a list of texts, not {self.levels!r}")
        return _with_instructions({"type": "score", "criteria": list(self.levels)}, self.instructions)


Question = Noul | Choice | Score


def _with_instructions(question: dict[str, Any], instructions: Any) -> dict[str, Any]:
    if instructions is not None:
        question["instructions"] = instructions
    return question


def to_json(questions: Mapping[str, Question | Mapping[str, Any] | str]) -> dict[str, Any]:
    """Return questions as a request has them. A text is a `Noul`; a mapping is taken as it is."""
    if not isinstance(questions, Mapping):
        raise TypeError(f"questions must be a mapping of ids to questions, not {type(questions).__name__}")

    def one(question: Any) -> Any:
        if isinstance(question, str):
            return Noul(question).to_json()
        return question.to_json() if isinstance(question, Question) else question

    return {name: one(question) for name, question in questions.items()}
