"""Prelude in your own process: classify, decide, score, rerank, embed and generate without a server."""

from ._errors import EngineFailed, InvalidRequest, Overloaded, RequestError
from ._llm import LLM
from ._prelude_serve import LoadError, PreludeError, __version__
from ._questions import Choice, Noul, Question, Score
from ._results import Answer, Classes, DecidedStates, Decisions, Generation, Ranking

__all__ = [
    "Answer",
    "Choice",
    "Classes",
    "DecidedStates",
    "Decisions",
    "EngineFailed",
    "Generation",
    "InvalidRequest",
    "LLM",
    "LoadError",
    "Noul",
    "Overloaded",
    "PreludeError",
    "Question",
    "Ranking",
    "RequestError",
    "Score",
    "__version__",
]
