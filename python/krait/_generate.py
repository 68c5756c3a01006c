"""Text generation: krait.Generation, many sequences that are generated together."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict, Union, Unpack

import numpy as np
import numpy.typing as npt

from . import _core
from ._arrays import ids32
from ._errors import of_status

if TYPE_CHECKING:
    from ._model import Model

Prompt = Union[str, bytes, Sequence[int], "npt.NDArray[Any]"]
Processor = Callable[["npt.NDArray[np.int32]", "npt.NDArray[np.float64]"], Any]
Constraint = Callable[["npt.NDArray[np.int32]"], Any]

class GenerateOptions(TypedDict, total=False):
    """Options of Model.generate and Generation.add."""

    max_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None
    seed: int
    random_stream: int
    stop: str | Sequence[str]
    stop_ids: Sequence[int]
    ignore_eos: bool
    top_logprobs: int
    score_prompt: bool
    process: Processor | None
    constrain: Constraint | None


_EVENT_TOKEN, _EVENT_ERROR = 1, 2
_FINISH = (None, "length", "stop", "stop")


@dataclass
class Generated:
    """What was generated for one prompt.

    `logprobs` has the log-probability of each token in the model's distribution, `top` the most probable tokens at each
    position as (id, log-probability), `prompt_logprobs` those of the prompt's tokens after the first, if asked for.
    `finish` is "length", "stop" (a stop text, a stop id or EOS), "cancelled", or None while the row generates.
    """

    text: str = ""
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top: list[list[tuple[int, float]]] = field(default_factory=list)
    prompt_logprobs: list[tuple[int, float]] = field(default_factory=list)
    finish: str | None = None
    error: _core.Error | None = None


def is_one_prompt(prompt: Any) -> bool:
    """One prompt: a text, or a row of ids; otherwise a list of prompts."""
    if isinstance(prompt, (str, bytes)):
        return True
    if isinstance(prompt, np.ndarray):
        return prompt.ndim <= 1
    return len(prompt) > 0 and all(isinstance(item, (int, np.integer)) for item in prompt)


def _processor(process: Processor) -> Callable[[memoryview, memoryview], None]:
    def call(ids: memoryview, memory: memoryview) -> None:
        logits = np.frombuffer(memory, np.float64).copy()
        result = process(np.frombuffer(ids, np.int32).copy(), logits)
        changed = logits if result is None else np.asarray(result, np.float64)
        if changed.shape != logits.shape:
            raise _core.ShapeError(f"process returned {list(changed.shape)}, but there are {list(logits.shape)} logits")
        np.frombuffer(memory, np.float64)[:] = changed

    return call


def _constraint(constrain: Constraint, vocab: int) -> Callable[[memoryview, memoryview], None]:
    def call(ids: memoryview, memory: memoryview) -> None:
        allowed = np.asarray(constrain(np.frombuffer(ids, np.int32).copy()))
        mask = np.zeros(len(memory) * 8, bool)
        if allowed.dtype == bool:
            if allowed.shape != (vocab,):
                raise _core.ShapeError(f"constrain returned a mask of {list(allowed.shape)}, but there are {vocab} tokens")
            mask[:vocab] = allowed
        elif allowed.size:
            if allowed.min() < 0 or allowed.max() >= vocab:
                raise _core.ArgumentError(f"constrain returned an id that is not below {vocab}")
            mask[allowed.astype(np.int64)] = True
        np.frombuffer(memory, np.uint8)[:] = np.packbits(mask, bitorder="little")

    return call


class Generation(Iterator[Any]):
    """Sequences that are generated together; Model.generate makes it.

    Iterating generates: with one prompt it gives pieces of text, with several (row, piece), and ids instead of texts
    without a tokenizer. Rows may be added and cancelled at any time between two pieces. On the CPU the tokens of a row
    do not depend on the other rows.

    >>> import krait
    >>> m = krait.new("mamba2", d_model=16, n_layers=1, vocab_size=256, state_rank=8, per_head_dim=8)
    >>> g = m.generate(["Once", "Upon"], max_tokens=3, temperature=0)
    >>> rows = [row for row, piece in g]
    >>> sorted(set(rows)), [result.finish for result in g.results]
    ([0, 1], ['length', 'length'])
    """

    def __init__(self, model: Model, *, is_single: bool, max_rows: int) -> None:
        self._model = model
        self._tokenizer = model.tokenizer
        self._batch = _core.RowBatch(
            model._core, self._tokenizer._core if self._tokenizer else None, max_rows=max_rows
        )
        self._is_single = is_single
        self._rows: dict[int, int] = {}  # number in the batch: index of the result
        self._top: list[int] = []
        self._pieces: deque[Any] = deque()
        self.results: list[Generated] = []

    # ---- rows ----

    def _feed(self, row: int, prompt: Prompt) -> None:
        if isinstance(prompt, (str, bytes)):
            if self._tokenizer is None:
                raise _core.ArgumentError(
                    "generate: the model has no tokenizer; pass token ids, or set model.tokenizer"
                )
            if prompt:
                self._batch.feed(row, prompt)
                return
            info = self._model._info
            first = info["bos"] or ([info["start"]] if info["start"] >= 0 else info["eos"][:1])
            if not first:
                raise _core.ArgumentError("generate: the prompt is empty, and the model has no token to begin with")
            prompt = first
        self._batch.feed(row, ids32("prompt", prompt))

    def add(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> int:
        """Adds a sequence, with the options of Model.generate. Returns the index of its result."""
        settings = self._settings(dict(options))
        row = self._batch.create()
        try:
            self._feed(row, prompt)
            self._batch.generate(row, **settings)
        except BaseException:
            self._batch.destroy(row)
            raise
        return self._register(row, settings)

    def _register(self, row: int, settings: dict[str, Any]) -> int:
        index = len(self.results)
        self._rows[row] = index
        self._top.append(settings["n_top"])
        self.results.append(Generated())
        return index

    def _settings(self, options: dict[str, Any]) -> dict[str, Any]:
        merged = {**_DEFAULTS, "random_stream": len(self.results), **options}
        unknown = set(merged) - set(_DEFAULTS)
        if unknown:
            raise TypeError(f"generate: unknown option '{sorted(unknown)[0]}'")
        stop = merged.pop("stop")
        stop_ids = merged.pop("stop_ids")
        ignore_eos = merged.pop("ignore_eos")
        process, constrain = merged.pop("process"), merged.pop("constrain")
        merged["stops"] = (stop,) if isinstance(stop, str) else tuple(stop or ())
        merged["stop_ids"] = [*(stop_ids or ()), *(() if ignore_eos else self._model.eos)]
        merged["stream"] = merged.pop("random_stream")
        merged["n_top"] = merged.pop("top_logprobs")
        merged["process"] = _processor(process) if process else None
        merged["constrain"] = _constraint(constrain, self._model.vocab_size) if constrain else None
        if merged["logit_bias"] is not None:
            merged["logit_bias"] = dict(merged["logit_bias"])
        return merged

    def cancel(self, index: int) -> None:
        """Stops a sequence; its result keeps what was generated."""
        for row, at in list(self._rows.items()):
            if at == index:
                self._batch.destroy(row)
                del self._rows[row]
                self.results[index].finish = "cancelled"

    # ---- steps ----

    def _take(self, event: tuple[Any, ...]) -> None:
        kind, row, _, _, token, logprob, text, finish, status, scores, top = event
        index = self._rows.get(row)
        if index is None:
            return
        result = self.results[index]
        if kind == _EVENT_ERROR:
            result.error = of_status(status, text.decode("utf-8", "replace"))
            result.finish = "error"
            self._retire(row)
            if self._is_single:
                raise result.error
            return
        if kind != _EVENT_TOKEN:
            result.prompt_logprobs.extend(scores)
            return
        piece = text.decode("utf-8", "replace")
        result.ids.append(token)
        result.logprobs.append(logprob)
        result.text += piece
        if self._top[index]:
            result.top.append(top)
        result.finish = _FINISH[finish]
        given = piece if self._tokenizer is not None else token
        if given != "":
            self._pieces.append(given if self._is_single else (index, given))
        if finish:
            self._retire(row)

    def _retire(self, row: int) -> None:
        del self._rows[row]
        self._batch.destroy(row)

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> Any:
        while not self._pieces:
            events = self._batch.step() if self._rows else None
            if events is None:
                raise StopIteration
            for event in events:
                self._take(event)
        return self._pieces.popleft()

    def run(self) -> list[Generated]:
        """Generates to the end and returns the results, one for each sequence."""
        for _ in self:
            pass
        return self.results

    @property
    def text(self) -> str:
        """The text of the first sequence so far."""
        return self.results[0].text

    @property
    def stats(self) -> Mapping[str, Any]:
        """Counts of the batch: rows, tokens, bytes of a state."""
        return self._batch.stats()


_DEFAULTS: dict[str, Any] = {
    "max_tokens": 256,
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "logit_bias": None,
    "seed": 0,
    "random_stream": 0,
    "stop": (),
    "stop_ids": (),
    "ignore_eos": False,
    "top_logprobs": 0,
    "score_prompt": False,
    "process": None,
    "constrain": None,
}
