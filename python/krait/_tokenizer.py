"""krait.Tokenizer."""

from __future__ import annotations

import os
from typing import Any

import numpy.typing as npt

from . import _core
from ._arrays import ids32

bytes_ = bytes  # the class has a method of this name


class Tokenizer:
    """Text to token ids and back: byte-level BPE of a tokenizer.json, or plain bytes.

    Any text can be encoded and decodes to itself, unless the file has a normaliser. Objects may be used by several
    threads, also while a model computes, and can be pickled.

    >>> tok = Tokenizer.bytes()
    >>> tok.encode("Hi!")
    [72, 105, 33]
    >>> tok.decode([72, 105, 33])
    'Hi!'
    """

    __slots__ = ("_core", "_source")

    def __init__(self, core: _core.Tokenizer, source: tuple[str, Any]) -> None:
        self._core = core
        self._source = source

    @staticmethod
    def bytes() -> Tokenizer:
        """A tokenizer of 256 tokens, one for each byte.

        >>> Tokenizer.bytes().vocab_size
        256
        """
        return Tokenizer(_core.Tokenizer(), ("bytes", None))

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Tokenizer:
        """Loads a tokenizer.json, or that of a folder."""
        if os.path.isdir(path):
            path = os.path.join(path, "tokenizer.json")
        return Tokenizer(_core.Tokenizer(path), ("path", os.path.abspath(path)))

    @staticmethod
    def parse(json: str | bytes_) -> Tokenizer:
        """A tokenizer from the text of a tokenizer.json."""
        text = json if isinstance(json, str) else json.decode()
        return Tokenizer(_core.Tokenizer(json=text), ("json", text))

    @property
    def vocab_size(self) -> int:
        """The largest id plus one."""
        return self._core.size

    def encode(self, text: str | bytes_, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """The ids of a text. add_special: with the tokens that the file adds to each text. parse_special: special
        tokens in the text become ids; otherwise they are plain text.

        >>> Tokenizer.bytes().encode(b"\\xff\\x00")
        [255, 0]
        """
        return self._core.encode(text, add_special, parse_special)

    def decode(self, ids: npt.ArrayLike, *, skip_special: bool = True, errors: str = "replace") -> str:
        """The text of ids; bytes that are no UTF-8 are handled as bytes.decode does.

        >>> Tokenizer.bytes().decode([226, 130, 172])
        '€'
        """
        return self.decode_bytes(ids, skip_special=skip_special).decode("utf-8", errors)

    def decode_bytes(self, ids: npt.ArrayLike, *, skip_special: bool = True) -> bytes_:
        """The exact bytes of ids. An invalid id gives none."""
        return self._core.decode(ids32("ids", ids), skip_special)

    def token(self, id: int) -> bytes_ | None:
        """The bytes of one token; None for an invalid id.

        >>> Tokenizer.bytes().token(65)
        b'A'
        """
        found = self._core.token(id)
        return found[0] if found else None

    def is_special(self, id: int) -> bool:
        """Is it a special token, such as <|endoftext|>?"""
        found = self._core.token(id)
        return bool(found and found[1])

    def find(self, text: str) -> int | None:
        """The id of an added token by its text; None if there is none."""
        return self._core.find(text)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes tokenizer.json to a folder. A tokenizer of bytes has no file."""
        text = self._json()
        if text is not None:
            path = os.path.join(folder, "tokenizer.json")
            with open(path + ".new", "w", encoding="utf-8", newline="") as file:
                file.write(text)
            os.replace(path + ".new", path)

    def _json(self) -> str | None:
        kind, value = self._source
        if kind != "path":
            return None if kind == "bytes" else str(value)
        with open(value, encoding="utf-8", newline="") as file:
            return file.read()

    def __len__(self) -> int:
        return self._core.size

    def __repr__(self) -> str:
        return f"<krait.Tokenizer {self._core.size} tokens>"

    def __reduce__(self) -> tuple[Any, ...]:
        text = self._json()
        return (Tokenizer.bytes, ()) if text is None else (Tokenizer.parse, (text,))
