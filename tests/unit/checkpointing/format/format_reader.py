"""A reader of stores that was written from checkpointing/FORMAT.md and uses nothing else of this
project: what it needs and the page does not say is a defect of the page.

It is for folders that nobody writes to. Bits are what it gives: unsigned numbers, bytes for
complex128.
"""

from __future__ import annotations

import base64
import json
import math
import re
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zstandard
from blake3 import blake3
from numpy.typing import NDArray

Array = NDArray[Any]
Box = tuple[tuple[int, ...], tuple[int, ...]]  # offsets, sizes

_ONE = "bool int8 uint8 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"
SIZES = dict.fromkeys([*_ONE.split(), "float4_e2m1fn_x2"], 1)
SIZES |= dict.fromkeys(["int16", "uint16", "float16", "bfloat16"], 2)
SIZES |= dict.fromkeys(["int32", "uint32", "float32", "complex32"], 4)
SIZES |= dict.fromkeys(["int64", "uint64", "float64", "complex64"], 8)
SIZES |= {"complex128": 16}
_BITS = {1: "<u1", 2: "<u2", 4: "<u4", 8: "<u8", 16: "V16"}

_MANIFEST = re.compile(r"(\d{10})-([0-9a-f]{8})(?:\.([1-9]\d*))?\.manifest")
_PACK_ROW = struct.Struct("<32s32sQQQQB3s")
_PACK_END = struct.Struct("<QQQ8s")
_COLUMNS = {"id": "V32", "pack": "<u4", "offset": "<u8", "length": "<u8", "raw": "<u8"}
_COLUMNS |= {"codec": "u1", "checksum": "<u8", "base": "<i4"}
_RECORDS = {"leases/*.lease": "lease", "tombs/*": "tomb"}
_RECORDS |= {"runs/*/owners/*": "owner", "runs/*/marks/*": "mark"}


class DamagedError(Exception):
    """Something is not as the page says."""


_OF_JSON = (LookupError, TypeError, ValueError, OverflowError)
BROKEN = (DamagedError, OSError, struct.error, zstandard.ZstdError, *_OF_JSON)
"""What bytes raise that are not those of a store."""


def need(holds: object, problem: str) -> None:
    if not holds:
        raise DamagedError(problem)


def record(data: bytes, *formats: str) -> dict[str, Any]:
    """The JSON object in `data`, checked."""
    need(data[:11] == b'{"blake3":"' and data[75:77] == b'",', "it begins with no hash")
    need(data[11:75].decode() == blake3(b"{" + data[77:]).hexdigest(), "its hash is another one")
    body: dict[str, Any] = json.loads(data)
    need(body["format"] in formats, f"it is a {body['format']}")
    known = ([], ["tensor-groups"]) if formats[0] == "hpckit-manifest" else ([],)
    need(body["version"] == 1 and body["features"] in known, "it is of another version")
    return body


def keys(name: str) -> tuple[str, ...]:
    """The keys on the way to a leaf."""
    return tuple(key.replace("~1", "/").replace("~0", "~") for key in name.split("/"))


@dataclass(frozen=True)
class Other:
    """A value of a class that this reader has not: torch's, or one that a program has declared."""

    tag: str
    content: Any


def plain(value: Any) -> Any:
    """The Python value that JSON with tags stands for."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and (tag := next(iter(value))).startswith("$"):
        need(tag in _TAGS, f"the tag {tag} is not known")
        return _TAGS[tag](value[tag])
    return {key: plain(one) for key, one in value.items()}


def _pairs(pairs: Any) -> dict[Any, Any]:
    return {plain(key): plain(value) for key, value in pairs}


def _raw(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _array(content: Any) -> Array:
    name, shape, text = content
    need(_NUMPY.fullmatch(name), f"no dtype: {name}")
    return np.ndarray(tuple(shape), np.dtype(name), bytearray(_raw(text)))


def _scalar(content: Any) -> Any:
    name, text = content
    if name in ("U", "S"):
        return np.str_(text) if name == "U" else np.bytes_(_raw(text))
    return _array([name, [], text])[()]


_NUMPY = re.compile(r"[<>|](b1|[iu][1248]|f[248]|c8|c16|[SU][0-9]+|[mM]8(\[[0-9]*[A-Za-zμ]+\])?)")
_TAGS: dict[str, Callable[[Any], Any]] = {
    "$float": {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}.__getitem__,
    "$tuple": lambda values: tuple(plain(values)),
    "$dict": _pairs,
    "$ordered": lambda pairs: OrderedDict(_pairs(pairs)),
    "$counter": lambda pairs: Counter(_pairs(pairs)),
    "$set": lambda values: set(plain(values)),
    "$frozenset": lambda values: frozenset(plain(values)),
    "$bytes": _raw,
    "$bytearray": lambda text: bytearray(_raw(text)),
    "$complex": lambda halves: complex(*plain(halves)),
    "$array": _array,
    "$scalar": _scalar,
    "$size": lambda content: Other("size", tuple(content)),
    "$dtype": lambda content: Other("dtype", content),
    "$device": lambda content: Other("device", content),
    "$tensor": lambda content: Other("tensor", (content[0], *content[1], _raw(content[2]))),
    "$record": lambda content: Other(content[0], _pairs(content[1])),
}


def frame(data: bytes, size: int | None = None, most: int = 16 << 30) -> bytes:
    """The content of a zstd frame."""
    stated = zstandard.frame_content_size(data)
    need(0 <= stated <= most and size in (None, stated), f"a frame of {stated} bytes")
    return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)


def flags(data: bytes, count: int) -> NDArray[np.bool_]:
    bits = np.unpackbits(np.frombuffer(data, np.uint8), bitorder="little").astype(bool)
    need(len(data) == -(-count // 8) and not bits[count:].any(), "flags of nothing")
    return bits[:count]


def decode(codec: int, data: bytes, size: int, word: int, base: bytes | None) -> bytes:
    """The raw bytes of a chunk of `size` bytes, in words of `word` bytes."""
    need((base is not None) or codec not in (3, 6), "it has no base")
    if not size:
        need(not data, "bytes of nothing")
        return b""
    before = None if base is None else np.frombuffer(base, f"<u{word}")
    if codec in (0, 1):
        return data if codec == 0 else frame(data, size)
    if codec in (2, 3):
        return _body(data, size // word, word, before if codec == 3 else None).tobytes()
    if codec == 4:
        need(len(data) == word, "no constant")
        return data * (size // word)
    if codec == 5:
        return _rows(data, size, word, before).tobytes()
    need(codec == 6 and before is not None, f"codec {codec} is not known")
    assert before is not None
    return _groups(data, word, before).tobytes()


def _body(data: bytes, count: int, word: int, base: Array | None = None) -> Array:
    words = np.zeros(count, f"<u{word}")
    if not count:
        need(not data, "a body of no words")
        return words
    begins, coded, sparse, change = data[:4]
    starts = [i for i in range(8) if begins >> i & 1]
    need(starts[0] == 0 and starts[-1] < word, "pieces outside of words")
    pieces = list(zip(starts, [*starts[1:], word], strict=True))
    lengths = iter(struct.unpack_from(f"<{coded.bit_count()}I", data, 4))
    at = 4 + 4 * coded.bit_count()
    for start, end in sorted(pieces, key=lambda piece: coded >> piece[0] & 1):  # lowest first
        if coded >> start & 1:
            length = next(lengths)
            plane_of = _sparse if sparse >> start & 1 else _dense
            plane = plane_of(data[at : at + length], count)
        else:
            length = count * (end - start)
            plane = np.frombuffer(data, f"<u{end - start}", count, at)
        words |= plane.astype(words.dtype) << (8 * start)
        at += length
    need(at == len(data) and (change == 2) == (base is not None), "a body of another kind")
    return _unchanged(words, change, base)


def _unchanged(words: Array, change: int, base: Array | None = None) -> Array:
    need(change <= 2, f"change {change} is not known")
    if change == 1:
        return (words >> 1) | (words << (8 * words.itemsize - 1))
    if base is not None:
        halves = words >> 1
        return base + np.where(words & 1, ~halves, halves)  # ~h is -h - 1
    return words


def _dense(data: bytes, count: int) -> Array:
    return np.frombuffer(frame(data, count), np.uint8)


def _sparse(data: bytes, count: int) -> Array:
    end = 4 + struct.unpack_from("<I", data)[0]
    there = flags(frame(data[4:end], -(-count // 8)), count)
    plane = np.zeros(count, np.uint8)
    if there.any():
        plane[there] = _dense(data[end:], int(there.sum()))
    else:
        need(end == len(data), "values of nothing")
    return plane


def _rows(data: bytes, size: int, word: int, base: Array | None) -> Array:
    on_base, width, stored = struct.unpack_from("<B3xII", data)
    need(width and width % word == 0 and size % width == 0, "no whole rows")
    need(bool(on_base) == (base is not None), "rows on another base")
    count, at = size // width, 12
    found = np.zeros(size // word, f"<u{word}") if base is None else base.copy()
    there = np.full(count, stored > 0)
    if 0 < stored < count:
        at += -(-count // 8)
        there = flags(data[12:at], count)
    need(there.sum() == stored, "another number of rows")
    body = _body(data[at:], stored * width // word, word)
    found.reshape(count, -1)[there] = body.reshape(stored, width // word)
    return found


def _groups(data: bytes, word: int, base: Array) -> Array:
    count = data[0]
    need(2 <= count <= 8, "no groups")
    limits = np.frombuffer(data, f"<u{word}", count - 1, 4)
    at = 4 + limits.nbytes
    lengths = struct.unpack_from(f"<{count}I", data, at)
    at += 4 * count
    magnitudes = base & ((1 << (8 * word - 1)) - 1)
    group = (limits[:, None] <= magnitudes).sum(axis=0)
    changed = np.zeros_like(base)
    for number, length in enumerate(lengths):
        mine = group == number
        changed[mine] = _body(data[at : at + length], int(mine.sum()), word)
        at += length
    need(at == len(data), "more than its groups")
    return _unchanged(changed, 2, base)


@dataclass(frozen=True)
class Chunk:
    id: bytes
    pack: str
    offset: int
    length: int
    raw: int
    codec: int
    checksum: int
    base: Chunk | None

    @property
    def row(self) -> tuple[Any, ...]:
        """What its pack says of it."""
        base = bytes(32) if self.base is None else self.base.id
        place = (self.offset, self.length, self.raw, self.checksum)
        return (self.id, base, *place, self.codec, bytes(3))


@dataclass(frozen=True)
class Tensor:
    dtype: str
    shape: tuple[int, ...]
    tile: tuple[int, ...]
    chunks: list[tuple[Box, Chunk]]

    def all_chunks(self) -> Iterator[Chunk]:
        for _, chunk in self.chunks:
            at: Chunk | None = chunk
            while at is not None:
                yield at
                at = at.base


def table(data: bytes, packs: list[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the values of an item."""
    raw = frame(data, most=min(16 << 30, max(64 << 20, 1000 * len(data))))
    at = 4 + int.from_bytes(raw[:4], "little")
    head = json.loads(raw[4:at])
    boxes: list[list[Box]] = []
    for spec in head["tensors"]:
        count, dims = spec["chunks"], len(spec["shape"])
        numbers = np.frombuffer(raw, "<i8", 2 * count * dims, at).reshape(count, 2, dims)
        boxes.append([(tuple(low), tuple(size)) for low, size in numbers.tolist()])
        at += numbers.nbytes
    chunks = iter(_chunks(raw[at:], sum(map(len, boxes)) + head["bases"], packs))
    tensors: dict[str, Tensor] = {}
    for spec, its in zip(head["tensors"], boxes, strict=True):
        need(spec["name"] not in tensors, f"{spec['name']} is there twice")
        shape, tile = tuple(spec["shape"]), tuple(spec["tile"])
        placed = [(box, next(chunks)) for box in its]
        tensors[spec["name"]] = Tensor(spec["dtype"], shape, tile, placed)
    for name, tensor in tensors.items():
        _check_tensor(name, tensor)
    return tensors, head["values"]


def outline(data: bytes) -> dict[str, Any] | None:
    """The JSON of an item whose table is cut into groups."""
    raw = frame(data)
    at = 4 + int.from_bytes(raw[:4], "little")
    found: dict[str, Any] = json.loads(raw[4:at])
    if "groups" not in found:
        return None
    need(at == len(raw) and found["bases"] == 0, "an outline has columns")
    need(sum(found["groups"]) == len(found["tensors"]), "groups of other tensors")
    need(all(count > 0 for count in found["groups"]), "a group without tensors")
    return found


def _chunks(raw: bytes, count: int, packs: list[str]) -> list[Chunk]:
    need(len(raw) == 73 * count, "columns of another length")
    columns, at = {}, 0
    for name, kind in _COLUMNS.items():
        columns[name] = np.frombuffer(raw, kind, count, at).tolist()
        at += count * np.dtype(kind).itemsize
    found: dict[int, Chunk] = {}
    for row in reversed(range(count)):
        values = {name: column[row] for name, column in columns.items()}
        base = values.pop("base")
        need(base == -1 or base in found, "a base that is no later row")
        values |= {"pack": packs[values["pack"]], "id": bytes(values["id"])}
        found[row] = Chunk(**values, base=found.get(base))
    return [found[row] for row in range(count)]


def _check_tensor(name: str, tensor: Tensor) -> None:
    filled = np.zeros(tensor.shape, np.uint8)
    for (low, size), chunk in tensor.chunks:
        need(chunk.raw == math.prod(size) * SIZES[tensor.dtype], f"{name}: another length")
        whole = zip(low, size, tensor.tile, strict=True)
        need(all(a // t == (a + n - 1) // t for a, n, t in whole), f"{name}: not in one tile")
        filled[_slices((low, size))] += 1
    need((filled == 1).all(), f"{name}: its chunks do not cover it once")
    for chunk in tensor.all_chunks():
        need(chunk.base is None or chunk.base.raw == chunk.raw, f"{name}: a base of another length")


def _slices(box: Box) -> tuple[Any, ...]:
    return (*(slice(low, low + size) for low, size in zip(*box, strict=True)), ...)


class Checkpoint:
    """One manifest."""

    def __init__(self, store: Store, path: Path) -> None:
        self.store, data = store, path.read_bytes()
        need(data[:8] == b"HPKDOC01", "it is no manifest")
        start = 12 + int.from_bytes(data[8:12], "little")
        need(start <= 256 << 20, "a header beyond all bounds")
        self.header = record(data[12:start], "hpckit-manifest", "hpckit-abandoned")
        self.is_abandoned = self.header["format"] == "hpckit-abandoned"
        self.id = f"{self.header['step']:010d}-{self.header['session']}"
        is_named = path.name.startswith(f"{self.id}.") and path.parts[-3] == self.header["run"]
        need(is_named, "it is another checkpoint's manifest")
        self._sections: dict[str, bytes] = {}
        end = start
        places = self.header["sections"].items()
        for name, place in sorted(places, key=lambda p: (p[1]["offset"], p[1]["length"])):
            begin, end = end, end + place["length"]
            section = self._sections[name] = data[begin:end]
            is_whole = blake3(section).hexdigest() == place["blake3"]
            need(start + place["offset"] == begin and is_whole, f"section {name} is not whole")
        need(end == len(data), "bytes that belong to no section")
        named = {"packs", *(f"item:{name}" for name in self.header.get("items", ()))}
        if self.header["features"]:
            for item in self.items:
                head = outline(self._sections[f"item:{item}"]) or {"groups": []}
                named |= {f"group:{n}:{item}" for n in range(len(head["groups"]))}
        need(self._sections.keys() == (set() if self.is_abandoned else named), "other sections")

    @cached_property
    def packs(self) -> dict[str, int]:
        return {
            name.hex(): size for name, size in struct.iter_unpack("<16sQ", self._sections["packs"])
        }

    @property
    def metrics(self) -> dict[str, float]:
        return {name: plain(value) for name, value in self.header["metrics"].items()}

    @property
    def certified(self) -> str | None:
        """How its ranks were found to compute alike, if they were."""
        found = self.header.get("certified")
        need(found is None or (isinstance(found, str) and found != ""), "certified is no text")
        return found

    @property
    def items(self) -> list[str]:
        return sorted(self.header["items"])

    @cached_property
    def tables(self) -> Mapping[str, tuple[dict[str, Tensor], dict[str, Any]]]:
        return {item: self._table(item) for item in self.items}

    def _table(self, item: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        data, packs = self._sections[f"item:{item}"], list(self.packs)
        head = outline(data) if self.header["features"] else None
        if head is None:
            return table(data, packs)
        tensors: dict[str, Tensor] = {}
        for number, count in enumerate(head["groups"]):
            found, values = table(self._sections[f"group:{number}:{item}"], packs)
            stated = head["tensors"][len(tensors) : len(tensors) + count]
            of_group = [
                (name, one.dtype, list(one.shape), list(one.tile), len(one.chunks))
                for name, one in found.items()
            ]
            fields = ("name", "dtype", "shape", "tile", "chunks")
            of_outline = [tuple(spec[field] for field in fields) for spec in stated]
            need(of_group == of_outline and not values, f"group {number} is not as outlined")
            tensors |= found
        return tensors, head["values"]

    @property
    def tensors(self) -> dict[str, Tensor]:
        return {name: one for its, _ in self.tables.values() for name, one in its.items()}

    @property
    def values(self) -> dict[str, Any]:
        return {name: plain(one) for _, its in self.tables.values() for name, one in its.items()}

    def load(self, name: str) -> Array:
        """The bits of a tensor."""
        tensor = self.tensors[name]
        found = np.zeros(tensor.shape, _BITS[SIZES[tensor.dtype]])
        for box, chunk in tensor.chunks:
            raw = self.store.content(chunk, tensor.dtype)
            found[_slices(box)] = np.frombuffer(raw, found.dtype).reshape(box[1])
        return found

    def check(self) -> None:
        """Read everything that it refers to."""
        if self.is_abandoned:
            return
        rows = {pack: self.store.rows(pack) for pack in self.packs}
        for pack, size in self.packs.items():
            need(self.store.pack_path(pack).stat().st_size == size, f"pack {pack}: another size")
        for tensor in self.tensors.values():
            for chunk in tensor.all_chunks():
                is_same = rows[chunk.pack].get(chunk.offset) == chunk.row
                need(is_same, f"pack {chunk.pack} says something else of a chunk")
                self.store.content(chunk, tensor.dtype)


class Store:
    """A store in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        stored = record((root / "hpckit.json").read_bytes(), "hpckit-store")
        need(stored["hash"] == "blake3-256", "hashes of another kind")

    def runs(self) -> list[str]:
        return sorted(path.parent.name for path in self.root.glob("runs/*/steps"))

    def checkpoints(self, run: str) -> list[Checkpoint]:
        """Those of a run, the newest first: of each the highest revision that can be read."""
        best: dict[str, Checkpoint] = {}
        for _, path in sorted(self._manifests(run)):
            try:
                found = Checkpoint(self, path)
            except BROKEN:
                continue
            if not found.is_abandoned:
                best[found.id] = found
        newest = sorted(best.values(), key=lambda c: (c.header["step"], c.header["created"]))
        return newest[::-1]

    def _manifests(self, run: str) -> Iterator[tuple[int, Path]]:
        for path in (self.root / "runs" / run / "steps").iterdir():
            if match := _MANIFEST.fullmatch(path.name):
                yield int(match[3] or 0), path

    def pins(self, run: str) -> dict[str, str]:
        """Ids of pinned checkpoints, and why."""
        marks = [
            record(p.read_bytes(), "hpckit-mark") for p in self.root.glob(f"runs/{run}/marks/*")
        ]
        return {mark["id"]: mark["why"] for mark in marks if mark["pinned"]}

    def content(self, chunk: Chunk, dtype: str) -> bytes:
        """The raw bytes of a chunk."""
        base = None if chunk.base is None else self.content(chunk.base, dtype)
        with self.pack_path(chunk.pack).open("rb") as file:
            file.seek(chunk.offset)
            stored = file.read(chunk.length)
        where = f"pack {chunk.pack} at {chunk.offset}"
        need(xxhash.xxh3_64_intdigest(stored, seed=0) == chunk.checksum, f"{where}: checksum")
        word = SIZES[dtype] // (2 if dtype.startswith("complex") else 1)
        raw = decode(chunk.codec, stored, chunk.raw, word, base)
        need(blake3(dtype.encode() + b"\0" + raw).digest() == chunk.id, f"{where}: hash")
        return raw

    def pack_path(self, name: str) -> Path:
        return self.root / "packs" / name[:2] / f"{name}.pack"

    def rows(self, pack: str) -> dict[int, tuple[Any, ...]]:
        """What a pack says of its chunks, by offset."""
        data = self.pack_path(pack).read_bytes()
        checksum, count, size, magic = _PACK_END.unpack(data[-32:])
        need(data[:8] == magic == b"HPKPACK1" and size == len(data), "it is no whole pack")
        rows = data[size - 32 - 100 * count : size - 32]
        need(xxhash.xxh3_64_intdigest(rows, seed=0) == checksum, "its rows have another checksum")
        found = list(_PACK_ROW.iter_unpack(rows))
        ends = [8, *(row[2] + row[3] for row in found)]
        need(ends == [*(row[2] for row in found), size - 32 - 100 * count], "it has gaps")
        for _, _, at, length, _, stored, _, _ in found:
            is_whole = xxhash.xxh3_64_intdigest(data[at : at + length], seed=0) == stored
            need(is_whole, f"what is at {at} has another checksum")
        return {row[2]: row for row in found}

    def verify(self) -> list[str]:
        """What is wrong with anything in the store."""
        return [
            problem for path in sorted(self.root.rglob("*")) for problem in self._problems(path)
        ]

    def _problems(self, path: Path) -> Iterator[str]:
        try:
            if path.suffix == ".pack":
                self.rows(path.stem)
            elif path.suffix == ".manifest":
                Checkpoint(self, path).check()
            for pattern, kind in _RECORDS.items():
                if path.match(pattern):
                    record(path.read_bytes(), f"hpckit-{kind}")
        except BROKEN as error:
            yield f"{path.relative_to(self.root)}: {type(error).__name__}: {error}"
