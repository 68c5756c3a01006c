"""Training data: sources of text, tokens, tables, images and arrays, and batches of them.

A source only describes data; it is opened where it is used, in the context of the model that reads it.

>>> from krait import data
>>> source = data.string("abcdefgh")
>>> batch = next(iter(source.batches(batch=1, length=4, shuffle=False)))
>>> batch["ids"].tolist(), batch["labels"].tolist()
([[97, 98, 99, 100]], [[98, 99, 100, 101]])
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from . import _core
from ._contexts import default_context
from ._tokenizer import Tokenizer

__all__ = [
    "Batches",
    "Source",
    "arrays",
    "csv",
    "ids",
    "idx",
    "jsonl",
    "open",
    "raw",
    "string",
    "text",
    "tokens",
]

PathLike = str | os.PathLike[str]
Array = np.ndarray[Any, np.dtype[Any]]

#: Memory for the ids of a text, unless the run has a folder for a token file.
BUDGET = 256 << 20


class Source:
    """Training data that can be opened: made by the functions of this module.

    kind is "text", "string", "jsonl", "tokens", "raw", "csv", "idx" or "arrays"; path the file, or None.
    """

    def __init__(
        self,
        kind: str,
        options: dict[str, Any],
        *,
        path: PathLike | None = None,
        labels: PathLike | None = None,
        tokenizer: Any = None,
        text: bytes | None = None,
        arrays: dict[str, Array] | None = None,
    ) -> None:
        self.kind = kind
        self.path = None if path is None else Path(path)
        self.labels_path = None if labels is None else Path(labels)
        self.tokenizer = tokenizer
        self.options = {name: value for name, value in options.items() if value is not None}
        self._text = text
        self._arrays = arrays

    def __repr__(self) -> str:
        parts = [] if self.path is None else [repr(str(self.path))]
        if self._text is not None:
            parts.append(f"{len(self._text)} bytes")
        if self._arrays is not None:
            parts += [f"{name} {list(array.shape)}" for name, array in self._arrays.items()]
        parts += [f"{name}={value!r}" for name, value in self.options.items() if self._arrays is None]
        return f"krait.data.{self.kind}({', '.join(parts)})"

    @property
    def is_text(self) -> bool:
        """Is a tokenizer needed?"""
        return self.kind in ("text", "string", "jsonl")

    def open(self, context: _core.Context, tokenizer: Any = None, token_path: Path | None = None) -> _core.Source:
        """The source of the library in a context. tokenizer: for texts that name none. For krait.train and krait.eval."""
        options = dict(self.options)
        if self.path is not None:
            options["path"] = os.fsencode(self.path)
        if self.labels_path is not None:
            options["labels"] = os.fsencode(self.labels_path)
        if self.is_text and token_path is not None:
            options["token_path"] = os.fsencode(token_path)
        if self.kind == "csv" and "delimiter" not in options and self.path is not None and self.path.suffix == ".tsv":
            options["delimiter"] = "\t"
        core = None
        if self.is_text:
            opened = open_tokenizer(self.tokenizer if self.tokenizer is not None else tokenizer)
            core = opened._core
            if isinstance(options.get("document_end"), str):
                options["document_end"] = find_token(opened, options["document_end"])
        kind = "text" if self._arrays is not None else self.kind
        return _core.Source(context, kind, options, core, self._text, self._arrays)

    def info(self) -> dict[str, Any]:
        """Sizes: count of positions, n_ids, n_features, n_classes, n_targets, and whether the next position is predicted.

        >>> string("to be").info()["count"]
        5
        """
        return dict(self.open(default_context()).info())

    def columns(self) -> list[dict[str, Any]]:
        """The columns of a table: name, is_target, missing values, mean, offset and scale."""
        return list(self.open(default_context()).columns())

    def save(self, path: PathLike) -> None:
        """Writes a source of tokens as a token file, which opens without a tokenizer (see `tokens`)."""
        self.open(default_context()).save(os.fspath(path))

    def batches(self, **options: Any) -> Batches:
        """Batches as dicts of arrays, for loops of your own.

        batch=8, length=256: rows and positions; length=0 with pack=False: a row for each document. seed=0, shuffle=True,
        epochs=1 (0: without end), pack=True, resets=True (mark where documents start), carry=False, drop_last=False,
        score_last=False, part="train" or "validation" with validation_fraction=0.0 and split_seed=0.
        """
        opened = self.open(default_context())
        return Batches(_core.Loader(opened, {"epochs": 1, **options}))


class Batches:
    """An iterator over batches: dicts with "ids" [b s] or "x" [b s f], "labels", "targets", "scored", "reset", "mask"
    (None where there is none) and the numbers "n_positions", "n_scored", "epoch", "step"."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        batch = self._loader.next()
        if batch is None:
            raise StopIteration
        return {name: _array(name, value) for name, value in batch.items()}

    @property
    def steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        return int(self._loader.position()[4])

    @property
    def position(self) -> tuple[int, ...]:
        """Five numbers, to continue later with the same batches."""
        return tuple(self._loader.position())

    @position.setter
    def position(self, value: tuple[int, ...]) -> None:
        self._loader.restore(value)


def _array(name: str, value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    memory, shape = value
    return np.frombuffer(memory, dtype=np.float32 if name in ("x", "targets") else np.int32).reshape(shape)


def open_tokenizer(tokenizer: Any) -> Tokenizer:
    """A Tokenizer: from None or "bytes", a path, or a Tokenizer."""
    if tokenizer is None or (isinstance(tokenizer, str) and tokenizer == "bytes"):
        return Tokenizer.bytes()
    return tokenizer if isinstance(tokenizer, Tokenizer) else Tokenizer.load(tokenizer)


def find_token(tokenizer: Tokenizer, text: str) -> int:
    """The id of a special token by its text."""
    found = tokenizer.find(text)
    if found is None:
        raise ValueError(f"document_end is {text!r}, which is no special token of the tokenizer; give its id")
    return found


# ---- by file ----

_ENDINGS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".tokens": "tokens",
    ".bin": "raw",
    ".csv": "csv",
    ".tsv": "csv",
    ".idx": "idx",
}


def kind_of(path: PathLike) -> str:
    """The kind of data that a file's name tells, as for the program."""
    name = os.fspath(path)
    if name.endswith("ubyte"):
        return "idx"
    return next((kind for ending, kind in _ENDINGS.items() if name.endswith(ending)), "text")


def open(path: PathLike, **options: Any) -> Source:
    """A source by the name of its file: .jsonl, .tokens, .bin, .csv, .tsv, .idx, otherwise text. Options: of that function.

    >>> open("notes.txt").kind, open("table.csv", targets="y").kind
    ('text', 'csv')
    """
    makers = {"text": text, "jsonl": jsonl, "tokens": tokens, "raw": raw, "csv": csv, "idx": idx}
    return makers[kind_of(path)](path, **options)


def text(
    path: PathLike,
    tokenizer: Any = None,
    *,
    separator: str | None = None,
    document_end: int | str | None = None,
    special: bool = False,
    memory_budget: int = BUDGET,
) -> Source:
    """A text file; the next token is predicted.

    tokenizer: a Tokenizer, the path of a tokenizer.json, or None for that of the model, else bytes. separator: the text
    between documents (None: one document). document_end: a token, by id or text, at the end of each document. special:
    special tokens in the text are parsed. memory_budget: bytes for the ids; a training run with a folder writes more than
    that to data.tokens in it.
    """
    options = _text_options(document_end, special, memory_budget)
    return Source("text", {**options, "separator": separator}, path=path, tokenizer=tokenizer)


def string(
    text: str | bytes,
    tokenizer: Any = None,
    *,
    separator: str | None = None,
    document_end: int | str | None = None,
    special: bool = False,
) -> Source:
    """A text in memory; options as for `text`.

    >>> string("abc").info()["n_ids"]
    256
    """
    memory = text.encode() if isinstance(text, str) else bytes(text)
    if not memory:
        raise ValueError("the text is empty")
    options = _text_options(document_end, special, 1 << 60)
    return Source("string", {**options, "separator": separator}, tokenizer=tokenizer, text=memory)


def jsonl(
    path: PathLike,
    field: str = "text",
    tokenizer: Any = None,
    *,
    document_end: int | str | None = None,
    special: bool = False,
    memory_budget: int = BUDGET,
) -> Source:
    """JSON Lines: each line is an object whose member `field` is a document; other options as for `text`."""
    options = _text_options(document_end, special, memory_budget)
    return Source("jsonl", {**options, "field": field}, path=path, tokenizer=tokenizer)


def _text_options(document_end: int | str | None, special: bool, memory_budget: int) -> dict[str, Any]:
    return {"document_end": document_end, "special": special, "memory_budget": memory_budget}


def tokens(path: PathLike) -> Source:
    """A token file, as Source.save and the program write it."""
    return Source("tokens", {}, path=path)


def raw(path: PathLike, vocab: int | None = None, *, id_bytes: Literal[2, 4] = 2, separator_id: int | None = None) -> Source:
    """A file of ids of 2 or 4 bytes, little-endian. vocab: ids are below it (None: that of the model). separator_id: ends
    each document."""
    return Source("raw", {"vocab": vocab, "id_bytes": id_bytes, "separator_id": separator_id}, path=path)


def csv(
    path: PathLike,
    *,
    features: Sequence[str] | str | None = None,
    targets: Sequence[str] | str | None = None,
    class_target: bool = False,
    sequence_column: str | None = None,
    delimiter: str | None = None,
    header: bool = True,
    scale: Literal["none", "standard", "min-max"] = "none",
    missing: Literal["error", "drop", "forward", "mean"] = "error",
    memory_budget: int = BUDGET,
) -> Source:
    """A table of numbers; a row is a position.

    features, targets: column names (None: all other columns; the next row). class_target: the one target is a class, 0, 1,
    .... sequence_column: a sequence ends where it changes (None: at blank lines). scale: computed from the training rows.
    """
    options = {
        "features": _names(features),
        "targets": _names(targets),
        "class_target": class_target,
        "sequence_column": sequence_column,
        "delimiter": delimiter,
        "header": header,
        "scale": scale,
        "missing": missing,
        "csv_budget": memory_budget,
    }
    return Source("csv", options, path=path)


def _names(names: Sequence[str] | str | None) -> str | None:
    return names if names is None or isinstance(names, str) else ",".join(names)


def idx(
    path: PathLike,
    labels: PathLike | None = None,
    *,
    patch: tuple[int, int] = (1, 1),
    mean: float = 0.0,
    deviation: float = 1.0,
    count: int = 0,
) -> Source:
    """Images and their classes in the format of MNIST. A position is a patch of (height, width) pixels; the class is
    predicted at the last one. A feature is (byte / 255 - mean) / deviation. count: the first images only (0: all)."""
    height, width = patch
    options = {"patch_height": height, "patch_width": width, "mean": mean, "deviation": deviation, "count": count}
    return Source("idx", options, path=path, labels=labels)


# ---- arrays ----


def _starts(starts: npt.ArrayLike | None, count: int) -> Array | None:
    if starts is None:
        return None
    array = np.ascontiguousarray(starts, dtype=np.int64)
    if array.ndim != 1 or len(array) == 0 or array[0] != 0 or array[-1] >= count or (np.diff(array) <= 0).any():
        raise ValueError("starts must be ascending positions of documents, the first 0, all below the number of positions")
    return array


def ids(array: npt.ArrayLike, *, vocab: int | None = None, starts: npt.ArrayLike | None = None) -> Source:
    """Token ids in an array [n], which may be a memory map; int32 is read in place, other types are copied once.

    vocab: ids are below it (None: the largest one plus one). starts: the positions at which documents begin.

    >>> ids([3, 1, 2, 1]).info()["n_ids"]
    4
    """
    given = np.asarray(array)
    if given.ndim != 1 or given.dtype.kind not in "iu" or len(given) == 0:
        raise ValueError(f"ids must be a row of integers, but are {given.dtype} of shape {list(given.shape)}")
    most, least = int(given.max()), int(given.min())
    if vocab is None:
        vocab = most + 1
    if least < 0 or most >= vocab or vocab > 2**31 - 1:
        raise ValueError(f"ids are from {least} to {most}, but must be from 0 to {vocab - 1}")
    held = {"ids": np.ascontiguousarray(given, dtype=np.int32)}
    return _array_source(held, starts, {"count": len(given), "n_ids": vocab, "predict_next": True})


def arrays(
    x: npt.ArrayLike,
    *,
    labels: npt.ArrayLike | None = None,
    targets: npt.ArrayLike | None = None,
    starts: npt.ArrayLike | None = None,
) -> Source:
    """Features [n f] with a class for each position, labels [n] (-100: not scored), or numbers, targets [n o] (NaN: not
    scored); with neither the next position is predicted. float32 and int32 are read in place, and may be memory maps.

    >>> import numpy
    >>> arrays(numpy.zeros((5, 2)), labels=[0, 1, 2, 1, 0]).info()["n_classes"]
    3
    """
    features = np.ascontiguousarray(x, dtype=np.float32)
    if features.ndim != 2 or features.size == 0:
        raise ValueError(f"x must have the shape [positions, features], but has {list(features.shape)}")
    held = {"x": features}
    numbers: dict[str, Any] = {"count": len(features), "n_features": features.shape[1]}
    if labels is not None and targets is not None:
        raise ValueError("a source has labels or targets, not both")
    if labels is not None:
        held["labels"] = np.ascontiguousarray(labels, dtype=np.int32)
        numbers["n_classes"] = int(held["labels"].max()) + 1
    elif targets is not None:
        held["targets"] = np.ascontiguousarray(targets, dtype=np.float32)
        numbers["n_targets"] = held["targets"].shape[1] if held["targets"].ndim == 2 else 1
    else:
        numbers["predict_next"] = True
    for name, array in held.items():
        if len(array) != len(features):
            raise ValueError(f"{name} has {len(array)} rows, but x has {len(features)}")
    return _array_source(held, starts, numbers)


def _array_source(held: dict[str, Array], starts: npt.ArrayLike | None, numbers: dict[str, Any]) -> Source:
    begin = _starts(starts, numbers["count"])
    if begin is not None:
        held["starts"] = begin
    return Source("arrays", numbers, arrays=held)
