"""The class `LLM`: a model in this process."""

from __future__ import annotations

import glob
import json
import os
import site
import sys
import sysconfig
import warnings
from binascii import a2b_base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from . import _inputs, _questions
from ._batches import answers
from ._errors import refusal
from ._prelude_serve import Engine
from ._progress import Bar
from ._questions import Question
from ._results import Classes, DecidedStates, Decisions, Generation, Ranking

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Texts = str | Sequence[str] | ArrayLike
    Prompts = Texts | Sequence[int] | Sequence[Sequence[int]]

# Requests of a few texts each that are under way at once: the engine finds its next step waiting.
_AT_ONCE = 4
# Requests of one prompt each that are generating at once.
_GENERATING_AT_ONCE = 64


# What a bar calls the work.
_NAMES = {
    "/classify": "classify",
    "/score": "score",
    "/v1/chat/completions": "generate",
    "/v1/completions": "generate",
    "/v1/embeddings": "embed",
    "/v1/rerank": "rerank",
    "/v1/systemone": "decide",
}


class LLM:
    """A model in this process, with the answers of the server, bit for bit, and without one.

    `model` is a folder, a name on the Hugging Face Hub (`OWNER/MODEL`), or one of the models that this
    package holds for trying it, `demo-lm` and `demo-classifier`. The options are those of `prelude serve`:

    - `revision`: branch, tag or commit of a model on the Hub.
    - `device`: `cpu`, `cuda` or `cuda:N`.
    - `dtype`: `bf16` or `f32`, by default what suits the device. `quantization`: `int8` (CPU), `fp8` (GPU).
    - `kind`: the task of the checkpoint, where there is a choice: `lm`, `reranker`, `embedding`, `reward`.
    - `pooling`: `cls`, `last` or `mean`; makes a language model embed too.
    - `max_model_len`: longest sequence, in tokens.
    - `chat_template`: file of a template in place of the model's own. `rerank_template`: `qwen3`, or a file.
    - `generation_config`: `none` leaves the model's own sampling parameters out.
    - `reasoning_parser`, `tool_parser`: the form of reasoning (`qwen3`) and of tool calls (`hermes`).
    - `seed`: makes the seeds of requests that name none the same in every run.
    - `settings`: tables of the server's configuration, such as `{"kv": {"num_blocks": 512}}`: `limits`,
      `decide`, `scheduler`, `executor`, `kv`, `cuda`, `tokenizer`, `profile`, and what of `server` is not
      about connections. The environment variables of the server's settings are not read.
    - `beside`: another `LLM` whose threads this one shares, so that the two take turns.
    - `progress`: True or False for bars on standard error; by default on a terminal.

    The methods take further fields of their requests by name, and refuse unknown ones. All of them let
    other Python threads run and may be called by several at once; Ctrl-C ends what they wait for.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        revision: str | None = None,
        device: str = "cpu",
        dtype: Literal["bf16", "f32"] | None = None,
        quantization: Literal["int8", "fp8"] | None = None,
        kind: Literal["lm", "reranker", "embedding", "classifier", "reward", "token-classifier"] | None = None,
        pooling: Literal["cls", "last", "mean"] | None = None,
        max_model_len: int | None = None,
        chat_template: str | os.PathLike[str] | None = None,
        rerank_template: str | os.PathLike[str] | None = None,
        generation_config: Literal["auto", "none"] = "auto",
        reasoning_parser: Literal["qwen3"] | None = None,
        tool_parser: Literal["hermes"] | None = None,
        seed: int | None = None,
        settings: Mapping[str, Any] | None = None,
        beside: LLM | None = None,
        progress: bool | None = None,
    ) -> None:
        options: dict[str, Any] = {
            "model": os.fspath(model),
            "revision": revision,
            "device": device,
            "dtype": dtype,
            "quantization": quantization,
            "kind": kind,
            "pooling": pooling,
            "max_model_len": max_model_len,
            "chat_template": _path(chat_template),
            "rerank_template": _path(rerank_template),
            "generation_config": generation_config,
            "reasoning_parser": reasoning_parser,
            "tool_parser": tool_parser,
            "seed": seed,
            "settings": dict(settings or {}),
        }
        if device != "cpu":
            options["places"] = _cuda_places()
        self._progress = progress
        other: Engine | None = None if beside is None else beside._engine
        with Bar(f"fetching {options['model']}", 1, progress if progress is False else None, " MB", 10**6) as bar:

            def report(done: int, total: int, files: int, files_total: int) -> None:
                bar.set(done, total)

            self._engine: Engine = Engine.load(_inputs.to_body(options).decode(), report, other)
        for warning in self._engine.warnings:
            warnings.warn(f"{self.name}: {warning}", RuntimeWarning, stacklevel=2)
        (self._about,) = self.ask("/v1/models", method="GET")["data"]

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._engine.name

    @property
    def kind(self) -> str:
        """The task of the model: `lm`, `reranker`, `embedding`, `classifier`, `reward`, `token-classifier` or `decision`."""
        return str(self._about["kind"])

    @property
    def tasks(self) -> list[str]:
        """What the model can be asked for."""
        return list(self._about["tasks"])

    @property
    def max_model_len(self) -> int:
        """The longest sequence, in tokens."""
        return int(self._about["max_model_len"])

    @property
    def memory(self) -> str:
        """The memory that the model was planned to take, in words."""
        return self._engine.memory

    def classify(
        self,
        texts: Prompts,
        labels: Sequence[str] | None = None,
        *,
        template: str | None = None,
        batch_size: int = 64,
        progress: bool | None = None,
        **fields: Any,
    ) -> Classes:
        """Return the classes of texts.

        A classifier has classes of its own. A language model chooses among `labels`, of any length, and
        `template` puts words around each text: `"{{ text }}\\nWhich topic?"`.
        """
        numpy = _numpy()
        inputs = _inputs.prompts(texts, "texts")
        chosen = None if labels is None else _inputs.as_list(labels, "labels")
        fields = _given(fields, labels=chosen, template=template)
        found: list[str | None] = []
        probs: NDArray[np.float64] | None = None
        batches = self._batches("/classify", len(inputs), batch_size, progress, lambda a, b: {"input": inputs[a:b], **fields})
        for start, stop, answer in batches:
            for index, item in enumerate(answer["data"], start):
                found.append(item["label"])
                if probs is None:
                    probs = numpy.empty((len(inputs), item["num_classes"]), numpy.float64)
                probs[index] = item["probs"]
        assert probs is not None
        return Classes(found, probs, self._engine.labels if chosen is None else chosen)

    def decide(self, state: Any, questions: Mapping[str, Question | Mapping[str, Any] | str], **fields: Any) -> Decisions:
        """Return the answers to up to 256 typed questions about one state, which is computed once.

        `state` is a text, or JSON that the model is shown. A question is a `Noul`, a `Choice` or a `Score`,
        or what `/v1/systemone` takes; a text is a `Noul`.
        """
        return self._decided(state, _questions.to_json(questions), fields)

    def decide_all(
        self,
        states: Sequence[Any],
        questions: Mapping[str, Question | Mapping[str, Any] | str],
        *,
        progress: bool | None = None,
        **fields: Any,
    ) -> DecidedStates:
        """Return the answers to the same typed questions about each of many states."""
        asked = _questions.to_json(questions)
        each = [states] if isinstance(states, str) else _inputs.as_list(states, "states")
        body = lambda start, _: {"state": each[start], "questions": asked, **fields}
        batches = self._batches("/v1/systemone", len(each), 1, progress, body, 2 * _AT_ONCE)
        return DecidedStates([Decisions(answer) for _, _, answer in batches])

    def score(
        self,
        queries: Texts,
        documents: Texts,
        *,
        instruction: str | None = None,
        batch_size: int = 64,
        progress: bool | None = None,
        **fields: Any,
    ) -> NDArray[np.float64]:
        """Return the scores of pairs: of one query and each document, or of each query and its document."""
        numpy = _numpy()
        left, right = _inputs.texts(queries, "queries"), _inputs.texts(documents, "documents")
        if len(left) not in (1, len(right)):
            raise ValueError(f"{len(left)} queries and {len(right)} documents are no pairs: give one query, or one for each document")
        fields = _given(fields, instruction=instruction)

        def body(start: int, stop: int) -> dict[str, Any]:
            some = left[0] if len(left) == 1 else left[start:stop]
            return {"queries": some, "documents": right[start:stop], **fields}

        scores: NDArray[np.float64] = numpy.empty(len(right), numpy.float64)
        for start, stop, answer in self._batches("/score", len(right), batch_size, progress, body):
            scores[start:stop] = [item["score"] for item in answer["data"]]
        return scores

    def score_labels(
        self,
        query: str | Sequence[int],
        items: Prompts,
        labels: Sequence[str] | Sequence[int],
        *,
        batch_size: int = 64,
        progress: bool | None = None,
        **fields: Any,
    ) -> NDArray[np.float64]:
        """Return a row for each item: the probabilities of labels as the token behind query and item.

        `labels` are texts of one token each, or token ids. With `apply_softmax=True` the probabilities of
        a row sum to 1, without it they are of the whole vocabulary.
        """
        numpy = _numpy()
        all_items = _inputs.prompts(items, "items")
        wanted = _inputs.as_list(labels, "labels")
        name = "labels" if isinstance(wanted[0], str) else "label_token_ids"
        (first,) = _inputs.prompts(query, "query")
        fields = {"query": first, name: wanted, **fields}
        scores: NDArray[np.float64] = numpy.empty((len(all_items), len(wanted)), numpy.float64)
        body = lambda a, b: {"items": all_items[a:b], **fields}
        for start, stop, answer in self._batches("/score", len(all_items), batch_size, progress, body):
            scores[start:stop] = answer["scores"]
        return scores

    def rerank(
        self,
        query: str,
        documents: Texts,
        *,
        top_n: int | None = None,
        instruction: str | None = None,
        batch_size: int = 64,
        progress: bool | None = None,
        **fields: Any,
    ) -> Ranking:
        """Return the documents in the order of their relevance to the query, or the `top_n` best."""
        numpy = _numpy()
        texts = _inputs.texts(documents, "documents")
        if top_n is not None and top_n < 1:
            raise ValueError(f"top_n must be at least 1, not {top_n}")
        fields = _given(fields, instruction=instruction)
        body = lambda a, b: {"query": query, "documents": texts[a:b], "return_documents": False, **fields}
        scores = numpy.empty(len(texts), numpy.float64)
        for start, _, answer in self._batches("/v1/rerank", len(texts), batch_size, progress, body):
            for item in answer["results"]:
                scores[start + item["index"]] = item["relevance_score"]
        # Of equal scores the earlier document comes first, as the server has it.
        order = numpy.argsort(-scores, kind="stable")[:top_n].astype(numpy.int64)
        return Ranking(order, scores[order])

    def embed(
        self,
        texts: Prompts,
        *,
        dimensions: int | None = None,
        instruction: str | None = None,
        prompt_name: str | None = None,
        input_type: str | None = None,
        batch_size: int = 64,
        progress: bool | None = None,
        **fields: Any,
    ) -> NDArray[np.float32]:
        """Return the vectors of texts, one in each row.

        `input_type` is `query` or `document`, for models that embed the two differently; `dimensions` cuts
        vectors first, and normalises them after.
        """
        numpy = _numpy()
        inputs = _inputs.prompts(texts, "texts")
        # Bytes in base64, so that no number is printed and read.
        fields = _given(
            fields,
            dimensions=dimensions,
            instruction=instruction,
            prompt_name=prompt_name,
            input_type=input_type,
            encoding_format="base64",
        )
        vectors: NDArray[np.float32] | None = None
        body = lambda a, b: {"input": inputs[a:b], **fields}
        for start, _, answer in self._batches("/v1/embeddings", len(inputs), batch_size, progress, body):
            for index, item in enumerate(answer["data"], start):
                vector = numpy.frombuffer(a2b_base64(item["embedding"]), "<f4")
                if vectors is None:
                    vectors = numpy.empty((len(inputs), len(vector)), numpy.float32)
                vectors[index] = vector
        assert vectors is not None
        return vectors

    def generate(
        self,
        prompts: Prompts | Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        *,
        max_tokens: int | None = None,
        temperature: float | None = None,
        n: int | None = None,
        seed: int | None = None,
        stop: str | Sequence[str] | None = None,
        progress: bool | None = None,
        **fields: Any,
    ) -> list[Generation]:
        """Return what the model writes for each prompt: a text, token ids, or a list of messages.

        A text is continued as it is (`/v1/completions`). Messages, `{"role": "user", "content": "..."}`,
        are put into the model's chat template (`/v1/chat/completions`).
        """
        asked: Any = [prompts] if _inputs.is_conversation(prompts) else prompts
        is_chat = isinstance(asked, (list, tuple)) and any(map(_inputs.is_conversation, asked))
        each = list(asked) if is_chat else _inputs.prompts(asked, "prompts")
        if is_chat and not all(map(_inputs.is_conversation, each)):
            raise TypeError("prompts must be lists of messages alone, or texts alone")
        path, name = ("/v1/chat/completions", "messages") if is_chat else ("/v1/completions", "prompt")
        if fields.get("stream"):
            raise ValueError("stream must be left out: generate returns whole texts")
        fields = _given(fields, max_tokens=max_tokens, temperature=temperature, n=n, seed=seed, stop=stop)
        body = lambda start, _: {name: each[start], **fields}
        return [_generation(answer) for _, _, answer in self._batches(path, len(each), 1, progress, body, _GENERATING_AT_ONCE)]

    def ask(self, path: str, body: Any = None, *, method: str = "POST", strict: bool = False) -> Any:
        """Return the server's answer to a request, as parsed JSON, or as text where it is none.

        All paths of the server are there: `ask("/pooling", {"input": "a"})`. With `strict`, unknown fields are
        refused.
        """
        raw = b"" if body is None else _inputs.to_body(body)
        status, answer = self._engine.answer(method, path, raw, strict)
        if status != 200:
            raise refusal(status, answer)
        try:
            return json.loads(answer)
        except ValueError:
            return answer.decode()

    def close(self) -> None:
        """Stop the engine and free its memory, once what runs has ended. A second time does nothing."""
        self._engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"LLM({self.name!r}, kind={self.kind!r}, tasks={self.tasks})"

    def _decided(self, state: Any, questions: dict[str, Any], fields: dict[str, Any]) -> Decisions:
        return Decisions(self.ask("/v1/systemone", {"state": state, "questions": questions, **fields}, strict=True))

    def _batches(
        self,
        path: str,
        count: int,
        batch_size: int,
        progress: bool | None,
        body: Callable[[int, int], dict[str, Any]],
        at_once: int = _AT_ONCE,
    ) -> Iterator[tuple[int, int, Any]]:
        def ask(start: int, stop: int) -> Callable[[], Any]:
            asked = body(start, stop)
            if stop - start == count:
                # Alone, it is answered on this thread.
                return lambda: self.ask(path, asked, strict=True)
            call = self._engine.send("POST", path, _inputs.to_body(asked), True)

            def wait() -> Any:
                status, answer = call.wait()
                if status != 200:
                    raise refusal(status, answer)
                return json.loads(answer)

            return wait

        shown = self._progress if progress is None else progress
        with Bar(_NAMES[path], count, shown) as bar:
            for start, stop, answer in answers(ask, count, batch_size, at_once):
                yield start, stop, answer
                bar.advance(stop - start)


def _generation(answer: dict[str, Any]) -> Generation:
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    texts = [choice["text"] if "text" in choice else choice["message"]["content"] or "" for choice in choices]
    return Generation(texts, [choice["finish_reason"] for choice in choices], answer)


def _path(file: str | os.PathLike[str] | None) -> str | None:
    return None if file is None else os.fspath(file)


def _given(fields: dict[str, Any], **named: Any) -> dict[str, Any]:
    """Return the fields of a request: those that were given."""
    return {**fields, **{name: value for name, value in named.items() if value is not None}}


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as error:
        raise ImportError(
            "prelude_serve returns NumPy arrays: pip install numpy (LLM.ask, LLM.decide and LLM.generate work without)"
        ) from error
    return numpy


def _cuda_places() -> dict[str, Any]:
    """Return the folders of NVIDIA's libraries and of compiled kernels, as the program `prelude` has them."""
    named = os.environ.get("PRELUDE_CUDA_LIBS", "").split(os.pathsep)
    packages = [sysconfig.get_path("platlib"), *site.getsitepackages(), site.getusersitepackages(), *sys.path]
    toolkits = sorted(glob.glob("/usr/local/cuda*"), reverse=True)
    caches = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(caches):
        caches = str(Path.home() / ".cache")
    return {
        "first": [folder for folder in named if folder],
        "fallback": [folder for folder in dict.fromkeys(packages) if os.path.isabs(folder)] + toolkits,
        "cache": str(Path(caches) / "prelude" / "kernels"),
    }
