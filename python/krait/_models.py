"""krait.eval and krait.convert."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from . import _core
from . import data as _data

if TYPE_CHECKING:
    from . import Model

__all__ = ["Evaluation", "convert", "eval"]

PathLike = str | os.PathLike[str]


@dataclass(frozen=True)
class Evaluation:
    """How well a model predicts a text. `nats` is the mean of -log p over the scored tokens; bytes are those of the scored
    tokens, 0 without a tokenizer."""

    nats: float
    tokens: int
    bytes: int

    @property
    def perplexity(self) -> float:
        """exp(nats)."""
        return math.exp(self.nats)

    @property
    def bits_per_byte(self) -> float:
        """Bits for each byte of the scored text; NaN without a tokenizer."""
        return self.nats * self.tokens / (math.log(2) * self.bytes) if self.bytes else math.nan

    def __str__(self) -> str:
        lines = [f"nats/token {self.nats:.9g}", f"perplexity {self.perplexity:.9g}"]
        if self.bytes:
            lines.append(f"bits/byte  {self.bits_per_byte:.9g}")
        lines.append(f"tokens     {self.tokens}")
        return "\n".join([*lines, f"bytes      {self.bytes}"] if self.bytes else lines)


Ids = np.ndarray[Any, np.dtype[np.int32]]


class _Reader:
    """Sums the scores of tokens that come in pieces; documents and windows begin anew."""

    def __init__(self, model: Any, tokenizer: Any, has_bos: bool, chunk: int, window: int | None) -> None:
        self._scorer = _core.Scorer(model._core, None if tokenizer is None else tokenizer._core)
        self._begin = np.array(self._scorer.begin if has_bos else (), dtype=np.int32)
        self._chunk, self._window = chunk, window
        self.nats, self.tokens, self.bytes = 0.0, 0, 0
        self._start()

    def _start(self) -> None:
        """Reads the tokens that begin a text: the last of them predicts the first token of the text."""
        self._in_window = 0
        self._held = self._begin[-1:]
        if len(self._begin) > 1:
            self._scorer.score(self._begin)

    def restart(self) -> None:
        """What follows does not continue what was read."""
        self.flush()
        self._scorer.reset()
        self._start()

    def put(self, ids: Ids) -> None:
        """Scores ids; the last one is kept to predict the next."""
        while len(ids):
            if self._window is not None and self._in_window == self._window:
                self.restart()
            take = len(ids) if self._window is None else min(len(ids), self._window - self._in_window)
            self._held = np.concatenate([self._held, ids[:take]])
            self._in_window += take
            ids = ids[take:]
            while len(self._held) > self._chunk:
                self._score(self._held[: self._chunk + 1])
                self._held = self._held[self._chunk :]

    def flush(self) -> None:
        """Scores what is held."""
        self._score(self._held)
        self._held = self._held[-1:]

    def _score(self, ids: Ids) -> None:
        if len(ids) > 1:
            nats, count = self._scorer.score(np.ascontiguousarray(ids, dtype=np.int32))
            self.nats += nats
            self.bytes += count
            self.tokens += len(ids) - 1


def eval(  # noqa: A001  the name of the command
    model: Model | PathLike,
    data: Any,
    *,
    tokenizer: Any = None,
    chunk: int = 512,
    reset_every: int | None = None,
    max_tokens: int | None = None,
    bos: bool = True,
    special: bool = True,
    device: str | None = None,
    threads: int | None = None,
) -> Evaluation:
    """How well a model predicts each token of a text from all tokens before it; what `krait eval` prints.

    data: a path, a krait.data.Source, or an array of ids. The state is carried from chunk to chunk, so memory does not grow
    with the text; documents of a source begin anew. reset_every: so does each window of so many tokens. bos: prepend the
    tokens with which texts of the model begin. special: special tokens in the text of a path are parsed.

    >>> import krait
    >>> m = krait.new("mamba2", d_model=16, n_layers=1, vocab_size=256, per_head_dim=16, state_rank=16)
    >>> e = m.eval(krait.data.string("to be, or not to be"))
    >>> e.tokens, 5 < e.nats < 6
    (18, True)
    """
    if isinstance(model, (str, os.PathLike)):
        from . import load

        model = load(model, device=device, threads=threads)
    if isinstance(data, _data.Source):
        source = data
    elif isinstance(data, (str, os.PathLike)):
        source = _data.open(data)
        if source.is_text:
            source.options["special"] = special
    else:
        source = _data.ids(data)
    if source.is_text:
        source.options["memory_budget"] = 1 << 60
    for name, value in (("chunk", chunk), ("reset_every", reset_every), ("max_tokens", max_tokens)):
        if value is not None and value < 1:
            raise ValueError(f"eval: {name} is {value}, but must be at least 1")
    tok = source.tokenizer if tokenizer is None else tokenizer
    if tok is None:
        tok = model.tokenizer
    tok = _data.open_tokenizer(tok) if tok is not None or source.is_text else None
    return _evaluate(model, source, tok, bos, chunk, reset_every, max_tokens)


def _documents(opened: _core.Source, count: int, chunk: int) -> Iterator[tuple[Ids, bool]]:
    """All ids of a source in order, in pieces, and whether a piece begins another document than the piece before it."""
    if count < 2:
        return
    loader = _core.Loader(opened, {"batch": 1, "length": chunk, "shuffle": False, "epochs": 1})
    is_first = True
    label = -1
    while (batch := loader.next()) is not None:
        ids, labels = (np.frombuffer(batch[name][0], dtype=np.int32)[: batch["n_positions"]] for name in ("ids", "labels"))
        marks = np.zeros(len(ids), dtype=np.int32)
        if batch["reset"] is not None:
            marks = np.frombuffer(batch["reset"][0], dtype=np.int32)[: len(ids)]
        cuts = [at for at in np.flatnonzero(marks).tolist() if at]
        # The first position of a row has no mark: the token before it has no label where a document ends.
        starts = [not is_first and label < 0, *(True for _ in cuts)]
        for begin, end, is_start in zip([0, *cuts], [*cuts, len(ids)], starts):
            yield ids[begin:end], is_start
        label, is_first = int(labels[-1]), False
    if label >= 0:  # the last token of the source is only a label
        yield np.array([label], dtype=np.int32), False


def _evaluate(
    model: Any,
    source: _data.Source,
    tok: Any,
    has_bos: bool,
    chunk: int,
    window: int | None,
    max_tokens: int | None,
) -> Evaluation:
    opened = source.open(model.context, tok)
    info = opened.info()
    if not info["n_ids"]:
        raise ValueError("eval: the data are features; krait.eval scores tokens")
    if info["n_ids"] > model.vocab_size:
        most = info["n_ids"] - 1
        raise ValueError(f"eval: the model has {model.vocab_size} tokens, but those of the data go up to {most}")
    reader = _Reader(model, tok, has_bos, chunk, window)
    left = info["count"] if max_tokens is None else min(max_tokens, info["count"])
    for ids, is_start in _documents(opened, info["count"], chunk):
        if is_start:
            reader.restart()
        reader.put(ids[:left])
        left -= min(left, len(ids))
        if not left:
            break
    reader.flush()
    if not reader.tokens:
        raise ValueError("eval: nothing to score: a token is scored if another one precedes it")
    return Evaluation(reader.nats / reader.tokens, reader.tokens, reader.bytes)


# ---- convert ----

SIDE_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
)


def convert(
    source: PathLike,
    target: PathLike,
    *,
    layout: str | None = None,
    dtype: str | None = None,
    container: str = "safetensors",
    max_shard_size: int = 0,
    force: bool = False,
) -> Path:
    """Writes a model folder in another layout ("official", "hf"), type ("f32", "bf16", "f16") or container ("safetensors",
    "torch"), as `krait convert` does; returns the new folder. None: unchanged. max_shard_size: bytes of a file of weights at
    most (0: one file). Other files of a model, such as tokenizer.json, are copied. force: replace a model in `target`.
    """
    from . import Context, load
    from ._training import MODEL_FILES

    read, written = Path(source), Path(target)
    if written.exists() and read.exists() and written.samefile(read):
        raise ValueError(f"convert: {read} and {written} are the same folder")
    there = next((name for name in MODEL_FILES if (written / name).exists()), None)
    if there is not None and not force:
        raise FileExistsError(f"convert: {written} holds a model already ({there}); replace it with force=True")
    model = load(read, context=Context(device="cpu"), dtype=dtype, tokenizer=False)
    model._core.save(
        os.fspath(written), layout=layout, dtype=dtype, container=container, max_shard_bytes=max_shard_size
    )
    for name in SIDE_FILES:
        if (read / name).exists():
            shutil.copyfile(read / name, written / name)
    return written
