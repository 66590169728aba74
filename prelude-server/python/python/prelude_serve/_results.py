"""The results of requests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, overload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Classes:
    """The classes of texts.

    `labels` has the likeliest class of each text. `probs[i, j]` is the probability that text `i` has
    class `names[j]`, or its logit if the request asked for logits.
    """

    labels: list[str | None]
    probs: NDArray[np.float64]
    names: list[str]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Ranking:
    """Documents in the order of their relevance, the most relevant first.

    `indices[k]` is the place of document `k` of this order among those given, and `scores[k]` its score.
    """

    indices: NDArray[np.int64]
    scores: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.indices)


class Answer(NamedTuple):
    """The answer to a typed question.

    `value` is the probability of yes of a noul, the name of the likeliest option of a choice, and the
    mean level of a score. `probabilities` are those of options or levels, by their names; a noul has
    none. `label_mass` is the probability that the model says any of the possible answers: where it is
    tiny, the model was not trained for such questions.
    """

    type: str
    value: float | str
    probabilities: dict[str, float] | None
    confidence: float | None
    label_mass: float | None
    margin: float | None


class Decisions(Mapping[str, Answer]):
    """The answers to the questions about one state, by the ids of the questions.

    `raw` is the body that a server would have sent.
    """

    def __init__(self, raw: dict[str, Any]) -> None:
        self.raw = raw
        diagnostics = raw.get("x_prelude", {}).get("diagnostics", {})
        self._answers = {name: _answer(body, diagnostics.get(name, {})) for name, body in raw["answers"].items()}

    def __getitem__(self, name: str) -> Answer:
        return self._answers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._answers)

    def __len__(self) -> int:
        return len(self._answers)

    def __repr__(self) -> str:
        return f"Decisions({ {name: answer.value for name, answer in self.items()} })"


def _answer(body: dict[str, Any], more: dict[str, Any]) -> Answer:
    kind = body["type"]
    return Answer(
        kind,
        body[kind],
        body.get("probabilities"),
        body.get("confidence"),
        more.get("label_mass"),
        more.get("margin"),
    )


class DecidedStates(Sequence[Decisions]):
    """The answers to the same questions about many states, in the order of the states."""

    def __init__(self, decisions: list[Decisions]) -> None:
        self._decisions = decisions

    @overload
    def __getitem__(self, index: int) -> Decisions: ...
    @overload
    def __getitem__(self, index: slice) -> DecidedStates: ...
    def __getitem__(self, index: int | slice) -> Decisions | DecidedStates:
        found = self._decisions[index]
        return found if isinstance(found, Decisions) else DecidedStates(found)

    def __len__(self) -> int:
        return len(self._decisions)

    def values(self, question: str) -> NDArray[Any]:
        """Return the answers to one question as an array: numbers, or the names of options."""
        import numpy as np

        return np.array([decisions[question].value for decisions in self._decisions])

    def probabilities(self, question: str) -> NDArray[np.float64]:
        """Return a row for each state: the probabilities of `options(question)`."""
        import numpy as np

        def row(answer: Answer) -> list[float]:
            if answer.probabilities is None:
                return [1 - float(answer.value), float(answer.value)]
            return list(answer.probabilities.values())

        rows = [row(decisions[question]) for decisions in self._decisions]
        return np.array(rows, dtype=np.float64)

    def options(self, question: str) -> list[str]:
        """Return the names of a question's possible answers; those of a noul are `no` and `yes`."""
        probabilities = self._decisions[0][question].probabilities
        return ["no", "yes"] if probabilities is None else list(probabilities)

    def __repr__(self) -> str:
        return f"DecidedStates({len(self)} states)"


@dataclass(frozen=True)
class Generation:
    """What a model wrote for one prompt.

    `texts` has a text for each of `n` continuations and `finish_reasons` why each ended. `raw` is the
    body that a server would have sent, with whatever else was asked for, such as log-probabilities.
    """

    texts: list[str]
    finish_reasons: list[str | None]
    raw: dict[str, Any]

    @property
    def text(self) -> str:
        """The text of the first continuation."""
        return self.texts[0]

    def __str__(self) -> str:
        return self.text
