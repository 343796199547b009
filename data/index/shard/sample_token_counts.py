"""The number of tokens of each sample: from the size, the header or the content of one member.

`tokens` is "npy" (a .npy member: the product of its shape), "bin:uint16" (a member .bin of numbers
of that dtype), "json:num_tokens" (that field of a .json member), or a function of a sample
{extension: bytes} that returns the number.
"""

import json
import re
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from data.errors import DataError, ShardError
from data.index.shard.shard_index import ShardIndex, TarMember
from data.index.tar.tar_walk import Read

Tokens: TypeAlias = str | Callable[[Mapping[str, bytes]], int]

_MOST = 2**32 - 1  # of one sample
_NPY_HEAD = 4096  # bytes; NumPy writes 128 for simple arrays
_SHAPE = re.compile(rb"'shape': *\(([\d, ]*)\)")


def name_of(tokens: Tokens | None) -> str | None:
    """Return the name that an index gives to this way of counting."""
    if tokens is None or isinstance(tokens, str):
        return tokens
    return f"{tokens.__module__}.{getattr(tokens, '__qualname__', type(tokens).__qualname__)}"


def check(tokens: Tokens | None) -> None:
    """Raise DataError for a text that names no way of counting."""
    if not isinstance(tokens, str):
        return
    extension, _, detail = tokens.partition(":")
    if tokens == "npy" or (extension == "json" and detail) or (detail and _item(detail)):
        return
    raise DataError(f"tokens={tokens!r}: expected npy, bin:uint16 (or other type), or json:FIELD")


def count(
    index: ShardIndex, read: Read, tokens: Tokens, shard: Path | str
) -> npt.NDArray[np.uint32]:
    """Return the tokens of each sample of `shard`, with shape (len(index),).

    Raises ShardError, with the member's offset, where a sample lacks the member or the member gives
    no number.
    """
    counts = np.zeros(len(index), np.uint32)
    for i in range(len(index)):
        members = {member.extension: member for member in index.members(i)}
        try:
            number = _count(members, read, tokens)
        except (ValueError, KeyError, TypeError) as error:
            offset = next(iter(members.values())).offset
            problem = f"sample {index.key(i)!r}: {name_of(tokens)!r} counts no tokens: {error!r}"
            raise ShardError(shard, offset, problem) from error
        counts[i] = number
    return counts


def of_sample(sample: Mapping[str, bytes], tokens: Tokens) -> int:
    """Return the tokens of one sample {extension: content}. Raises ValueError, KeyError or
    TypeError."""
    contents = list(sample.values())
    members = {
        extension: TarMember(extension, i, len(content), 0)
        for i, (extension, content) in enumerate(sample.items())
    }
    return _count(members, lambda i, size: contents[i][:size], tokens)


def _count(members: Mapping[str, TarMember], read: Read, tokens: Tokens) -> int:
    number = _stated(members, read, tokens)
    if not 0 <= number <= _MOST:
        raise ValueError(f"{number} tokens")
    return number


def _stated(members: Mapping[str, TarMember], read: Read, tokens: Tokens) -> int:
    if not isinstance(tokens, str):
        content = {m.extension: read(m.offset, m.size) for m in members.values()}
        return int(tokens(content))
    extension, _, detail = tokens.partition(":")
    member = members[extension]
    if extension == "npy":
        return _of_npy(read(member.offset, min(member.size, _NPY_HEAD)))
    if extension == "json":
        number = json.loads(read(member.offset, member.size))[detail]
        if type(number) is not int:
            raise TypeError(f"{detail} is {number!r:.100}")
        return number
    size = _item(detail)
    if member.size % size:
        raise ValueError(f"{member.size} bytes are not a multiple of {size}")
    return member.size // size


def _of_npy(head: bytes) -> int:
    """Return the number from the header of NumPy's format (numpy.lib.format): a Python dict as
    text."""
    found = _SHAPE.search(head)
    if head[:6] != b"\x93NUMPY" or not found:
        raise ValueError("no .npy")
    return prod(int(side) for side in found[1].split(b",") if side.strip())


def _item(name: str) -> int:
    """Return the bytes of a number of the dtype `name`, 0 if there is no such dtype."""
    known = {f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (8, 16, 32, 64)}
    return known.get(name, 0)
