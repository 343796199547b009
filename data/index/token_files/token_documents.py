"""The documents of a token file, and the ranges of them that are the shards of a dataset."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from data.errors import ShardError
from data.index.shard.shard_index import IntArray
from data.index.token_files.token_file import TokenFile, read_range

SHARD_BYTES = 64 << 20
SHARD_DOCUMENTS = 65536
"""The most bytes, on average, and the most documents of a range. The order of samples depends on
both: they are part of ORDER.md."""
MOST_SHARDS = 1 << 20
"""The most ranges of a file, each of which takes some memory."""
READ_BYTES = 16 << 20
MOST_TOKENS = 2**32 - 1
"""The most tokens of one document."""


class DocumentTable(NamedTuple):
    """Successive documents; columns of shape (documents,)."""

    begins: IntArray
    """The offset of each one's first token in the file."""
    lengths: IntArray
    """The tokens of each."""


class TokenDocuments(ABC):
    """The documents 0 .. count - 1 of a file."""

    def __init__(self, file: TokenFile, count: int) -> None:
        self.file = file
        self.count = count

    @abstractmethod
    def table(self, first: int, end: int) -> DocumentTable:
        """Return the documents first .. end - 1. Raises ShardError if there cannot be such
        ones."""

    @property
    def highest(self) -> int | None:
        """The highest token of the file, or of the part of it that was read; None if no token was
        read."""
        return self.file.highest

    def checked_table(self, first: int, end: int) -> DocumentTable:
        """Return `table`, all of whose documents are in the file. Raises ShardError."""
        found = self.table(first, end)
        begins, lengths = found
        item, size = self.file.item, self.file.bytes
        # no length exceeds MOST_TOKENS, and no begin the file, so the sums cannot overflow
        wrong = (lengths < 0) | (lengths > MOST_TOKENS) | (begins < 0) | (begins > size)
        wrong |= begins + np.clip(lengths, 0, MOST_TOKENS) * item > size
        if bool(wrong.any()):
            which = int(wrong.argmax())
            begin, length = int(begins[which]), int(lengths[which])
            raise ShardError(
                self.file.path,
                max(0, min(begin, size)),
                f"document {first + which} has {length} tokens from byte {begin} on, and the file"
                f" ends at byte {size}; the file is truncated, or its index is of another one:"
                " copy both again",
            )
        return found

    def summary(self, first: int, end: int) -> tuple[int, str]:
        """Return the number of tokens of some documents, and the digest (hex) that identifies
        them. Raises ShardError."""
        lengths = self.checked_table(first, end).lengths
        return int(lengths.sum()), self._digest(first, end, lengths)

    def problem(self, first: int, end: int) -> str | None:
        """Read all bytes of some documents and return what is wrong with them, None if nothing.
        Raises ShardError."""
        begins, lengths = self.checked_table(first, end)
        ends = begins + lengths * self.file.item
        has_tokens = lengths > 0
        if bool(has_tokens.any()):
            last = int(ends[has_tokens].max())
            for at in range(int(begins[has_tokens].min()), last, READ_BYTES):
                read_range(self.file.path, at, min(READ_BYTES, last - at))
        return None

    def _digest(self, first: int, end: int, lengths: npt.NDArray[np.int64]) -> str:
        facts = f"hpckit-token-documents-1 {self.file.dtype} {self.file.bytes} {first} {end} "
        digest = blake3(facts.encode())
        digest.update(bytes.fromhex(self.file.content))
        digest.update(np.ascontiguousarray(lengths, "<i8").tobytes())
        return digest.hexdigest()


def shard_borders(documents: TokenDocuments) -> list[int]:
    """Return the first document of each shard of a file, and the number of documents at the end.
    Raises ShardError for more shards than can be held."""
    by_bytes = -(-documents.file.bytes // SHARD_BYTES)
    shards = max(1, by_bytes, -(-documents.count // SHARD_DOCUMENTS))
    shards = min(shards, max(1, documents.count))
    if shards > MOST_SHARDS:
        problem = f"has {documents.count} documents, and {MOST_SHARDS * SHARD_DOCUMENTS} are read"
        raise ShardError(
            documents.file.path, 0, f"{problem} at most; split it, or take longer ones"
        )
    return [documents.count * number // shards for number in range(shards + 1)]
