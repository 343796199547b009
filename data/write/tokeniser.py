"""Conversion of text to tokens for packing, by a `tokenizer.json` of Hugging Face's tokenizers."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3

from data.errors import DataError
from data.write.pack_report import Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>")
"""The token after the last one of a document in GPT, Llama 3, Llama 2 and Gemma."""


class Tokeniser:
    """Converts texts to members `.npy`, each a vector of uint16, or uint32 for large
    vocabularies."""

    def __init__(self, path: Path, end: str | None = None) -> None:
        """
        Args:
            path: a `tokenizer.json`.
            end: the token that ends each document; None: the one of `ENDS` that exists.

        Raises:
            DataError: the library is missing, the file is not a tokenizer, or has no such token.
        """
        self.content = content = _read(path)
        """The content of the file."""
        self._tokenizer = _parsed(path, content)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        ids = self._tokenizer.get_vocab()
        last = max(ids.values())
        self.vocabulary = Vocabulary(last + 1, _end(path, ids, end), blake3(content).hexdigest())
        self._dtype = np.uint16 if last <= np.iinfo(np.uint16).max else np.uint32

    def members(self, texts: Sequence[str]) -> list[bytes]:
        """Return the tokens of each text and the end token, without tokens that a model would need
        before them."""
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [self._member(encoding.ids) for encoding in found]

    def _member(self, ids: list[int]) -> bytes:
        content = BytesIO()
        np.save(content, np.array([*ids, self.vocabulary.end], self._dtype), allow_pickle=False)
        return content.getvalue()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"the tokenizer {path} cannot be read: {error.strerror}") from error


def _parsed(path: Path, content: bytes) -> Tokenizer:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise DataError(
            "making tokens requires the package tokenizers: pip install tokenizers"
        ) from error
    try:
        return Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises no more specific error
        raise DataError(f"{path} is not a tokenizer.json: {error}") from error


def _end(path: Path, ids: dict[str, int], wanted: str | None) -> int:
    found = [name for name in ((wanted,) if wanted is not None else ENDS) if name in ids]
    if len(found) == 1:
        return ids[found[0]]
    if wanted is not None:
        raise DataError(f"{path} has no token {wanted!r} to end documents with")
    there = f"several of {', '.join(found)}" if found else f"none of {', '.join(ENDS)}"
    raise DataError(f"{path} has {there}: give the token that ends a document (--end)")
