"""Fuzzing of readers: mutated bytes in, and nothing out but a value or a documented refusal.

    python -m tests.faults.fuzz --inputs 1000000 --seed 1 --save failing/

Input `n` of a reader is a pure function of the seed, the reader's name and `n`. Each is read with
little CPU time and little new memory allowed, so a hang or a blow-up is an exception like others.
"""

from __future__ import annotations

import random
import re
import resource
import signal
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

CPU_S = 10.0
"""Of one input, after which it counts as a hang. All honest ones take milliseconds."""
MEMORY = 256 << 20
"""Bytes of address space that reading may add: two threads' stacks and heaps, and little more."""
MOST = 1 << 15
"""Bytes of an input: so that no blow-up is the input's own size, and pipes take it whole."""

_NUMBERS = (
    *(0, 1, 2, 127, 128, 255, 256, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**40),
    *(2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1),
)
_TOKENS = (
    *(b"null", b"true", b"[]", b"{}", b'""', b"-1", b"NaN", b"Infinity", b"-Infinity", b"1e999"),
    *(b"0.5", b"[" * 5_000, b'{"a":' * 5_000, b"9" * 4_300, b"9" * 5_000, b"1" + b"0" * 400),
    *(b'"\\ud800"', b'"../../../../etc/passwd"', b'"/etc/passwd"', b'"\\u0000"', b"&a", b"*a"),
    *(b"!!python/object/apply:os.system ['true']", b"!!int ''", b"2001-99-99", b"\xff\xfe", b"\n"),
)
_WORD = re.compile(rb'-?\d+(?:\.\d+)?|"(?:[^"\\]|\\.)*"|\[[^\[\]{}]{0,200}\]|true|false|null')


@dataclass(frozen=True)
class Reader:
    """Something that reads bytes that others wrote."""

    name: str
    seeds: Sequence[bytes]
    """Valid ones, to mutate."""
    read: Callable[[bytes], object]
    """Reads all that can be read of it."""
    refuses: tuple[type[Exception], ...] = ()
    """Its documented errors."""
    weight: float = 1.0
    """How many of its inputs are tried, to those of other readers."""


@dataclass(frozen=True)
class Failure:
    """An input that a reader neither read nor refused as it should."""

    reader: str
    data: bytes
    error: BaseException

    def __str__(self) -> str:
        return f"{self.reader}: {self.error!r:.300} of {len(self.data)} bytes: {self.data!r:.300}"


class HangError(Exception):
    """An input took longer than any may."""


def make_input(reader: Reader, seed: int, number: int) -> bytes:
    """An input, a pure function of its arguments: one of the valid ones, mutated, or noise."""
    rng = random.Random(f"{seed} {reader.name} {number}")
    if rng.random() < 0.02:
        return rng.randbytes(rng.randrange(200))
    data = bytearray(rng.choice(reader.seeds))
    for _ in range(rng.choice((1, 1, 1, 2, 3, 5))):
        rng.choice(_MUTATIONS)(rng, data, reader.seeds)
    return bytes(data[:MOST])


def failure_of(reader: Reader, data: bytes) -> Failure | None:
    """What is wrong with how an input is read; None if nothing is. To be called in `bounded`."""
    signal.setitimer(signal.ITIMER_VIRTUAL, CPU_S)
    try:
        reader.read(data)
    except reader.refuses:
        return None
    except Exception as error:  # noqa: BLE001 (what it is, is the answer)
        return Failure(reader.name, data, error)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)
    return None


@contextmanager
def bounded() -> Iterator[None]:
    """Little memory to be had beyond what the process has, and signals that end hangs. For the
    main thread."""

    def hang(number: int, frame: FrameType | None) -> None:
        raise HangError(f"still reading after {CPU_S:g} s of CPU time")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    handler = signal.signal(signal.SIGVTALRM, hang)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        signal.signal(signal.SIGVTALRM, handler)


def minimised(reader: Reader, failure: Failure) -> Failure:
    """The same kind of failure, of fewer bytes: pieces are left out as long as it stays."""
    step = max(1, len(failure.data) // 2)
    while step:
        at, before = 0, len(failure.data)
        while at < len(failure.data):
            shorter = failure.data[:at] + failure.data[at + step :]
            found = failure_of(reader, shorter)
            if found is not None and type(found.error) is type(failure.error):
                failure = found
            else:
                at += step
        step = step // 2 if len(failure.data) == before or step > 1 else step
    return failure


def _flip(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    for _ in range(rng.choice((1, 1, 2, 8))):
        if data:
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _set(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))


def _cut(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _drop(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.choice((1, 2, 8, 64, 512))]


def _insert(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    at, size = rng.randrange(len(data) + 1), rng.choice((1, 4, 8, 64, 512))
    data[at:at] = rng.choice((rng.randbytes(size), bytes(size), b"\xff" * size))


def _repeat(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = bytes(data[at : at + rng.choice((1, 8, 64, 512))]) * rng.choice((1, 2, 20))


def _splice(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    other = rng.choice(seeds)
    start = rng.randrange(len(other) + 1)
    at = rng.randrange(len(data) + 1)
    data[at : at + rng.choice((0, 8, 64, len(data)))] = other[start : start + rng.choice((8, 64))]


def _number(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    """Overwrite what may be a length or an offset, more often near the ends, where they lie."""
    form = rng.choice(("<B", "<H", "<I", "<Q", ">I", ">Q"))
    size = struct.calcsize(form)
    if len(data) < size:
        return
    last = len(data) - size
    at = rng.choice((rng.randint(0, last), min(last, 4 * rng.randrange(8))))
    at = rng.choice((at, max(0, last - 4 * rng.randrange(16))))
    number = rng.choice((rng.choice(_NUMBERS), len(data), len(data) + rng.randint(-40, 40)))
    data[at : at + size] = struct.pack(form, number % (1 << 8 * size))


def _word(rng: random.Random, data: bytearray, seeds: Sequence[bytes]) -> None:
    """Put another value in the place of one of JSON or YAML."""
    words = list(_WORD.finditer(data))
    if not words:
        return
    word = rng.choice(words)
    number = str(rng.choice(_NUMBERS)).encode()
    other = rng.choice(words)[0]
    data[word.start() : word.end()] = rng.choice((rng.choice(_TOKENS), number, other))


_MUTATIONS = (_flip, _set, _cut, _drop, _insert, _repeat, _splice, _number, _number, _word, _word)
