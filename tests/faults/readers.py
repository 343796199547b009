"""Every reader of bytes that somebody else may have written, with valid bytes to begin from.

A "sealed" reader is given what lies below the hashes: the mutated bytes get the right hash, as from
a hostile writer, and the checks behind it are tried and not the hash.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pickle
import socket
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import zstandard
from blake3 import blake3

from checkpointing.codec import Codec, WordLayout, decode
from checkpointing.errors import CheckpointError, DamagedError, FormatError, ServiceError
from checkpointing.format import (
    canonical_json,
    document_container,
    item_table,
    manifest,
    packs,
    store_records,
)
from checkpointing.format.chunks import Chunk, checksum
from checkpointing.format.values.json_values import decode as decode_value
from checkpointing.interop import pickle_reader
from checkpointing.interop.dcp.folder_metadata import ALLOWED
from checkpointing.service.protocol import messages
from checkpointing.service.protocol.socket_frames import FrameSocket
from checkpointing.service.replication import replication_ring
from checkpointing.service.replication.replication_ring import ReplicationRing, RingNode
from checkpointing.service.snapshots import Generation
from checkpointing.service.spool import spool_file
from checkpointing.service.spool.spool_file import SpoolHeader
from data.cache.files.cache_entry import KINDS, CacheEntry, ShardRef
from data.errors import DataError, IndexFileError, ShardError
from data.index import column_container, manifest_rows
from data.index.manifest import Manifest
from data.index.manifest_summary import summarise
from data.index.shard import shard_index, sidecar
from data.index.shard.shard_index import ShardIndex
from data.index.shard.shard_scan import StreamedShardIndexer
from hpckit.agent.message_channel import Channel
from hpckit.config.spec_parser import SpecError, dump_spec, read_spec
from hpckit.events.event_log import EventTail
from hpckit.system.atomic_files import read_json
from tests.faults.fuzzing import MOST, Reader
from tests.unit.checkpointing.codec.test_forged_chunks import BASE, COUNT, FORGED, LAYOUT, WHOLE
from tests.unit.checkpointing.format.sample_documents import chunk, filled
from tests.unit.checkpointing.format.test_manifest import document, split, whole
from tests.unit.checkpointing.service.protocol import test_messages as sample
from tests.unit.data.tars import tar_bytes
from tests.unit.hpckit.specs_and_processes import make_spec

Json = dict[str, Any]
Content = tuple[str, dict[str, Any], dict[str, np.ndarray[Any, Any]]]

DAMAGED = (DamagedError, FormatError)
REFUSED = (KeyError, TypeError, ValueError, OverflowError, RecursionError, CheckpointError)
"""What the service answers a trainer's message with a refusal for."""


def readers(work: Path) -> list[Reader]:
    """All of them; `work` is an empty folder for the files of some."""
    return [*_checkpoints(), *_small(), *_data(), *_run(work), *_service(work), *_foreign(work)]


# --- checkpoints


def _checkpoints() -> list[Reader]:
    made = whole()
    manifest_bytes = manifest.build_manifest(made)
    parts = [manifest.build_part(part, rank) for rank, part in enumerate(split(made, 2))]
    tables = [_raw(made.items[name]) for name in ("model", "optimizer", "run")]
    tables.append(_raw(filled({"a": ("float32", (7, 5)), "b": ("bfloat16", ())}, depth=2)))
    pack = _pack()
    return [
        Reader("manifest", [manifest_bytes, manifest.build_abandoned(made.header.save)], _document,
               DAMAGED),
        Reader("part", parts, _document, DAMAGED),
        _sealed_document("manifest-sealed", manifest_bytes),
        _sealed_document("part-sealed", parts[1]),
        Reader("table", [zstandard.compress(raw) for raw in tables], _table, DAMAGED),
        Reader("table-sealed", tables, lambda data: _table(zstandard.compress(data)), DAMAGED),
        Reader("pack", [pack], _read_pack, DAMAGED),
        Reader("pack-sealed", [pack[8 + 8 * 40 :]], lambda data: _read_pack(_sealed_pack(data)),
               DAMAGED),
        Reader("chunk", [_coded(*form) for form in [*WHOLE.values(), *FORGED.values()]], _chunk,
               DAMAGED),
    ]  # fmt: skip


def _document(data: bytes) -> None:
    read = document(data)
    if read.kind == manifest.PART:
        read.rank  # noqa: B018 (is read when asked for)
    if read.kind != manifest.ABANDONED:
        for one in read.content().items.values():
            _use(one)


def _use(read: item_table.ItemTable) -> None:
    for value in read.values.values():
        decode_value(value)
    for found in read.all_chunks():
        assert found.base is not found


def _table(data: bytes) -> None:
    for is_part in (False, True):
        _use(
            item_table.from_bytes(
                data, [bytes([n]) * 16 for n in range(1, 5)], "it", is_part=is_part
            )
        )


def _raw(one: item_table.ItemTable) -> bytes:
    indices = {pack: n for n, pack in enumerate(sorted(one.packs()))}
    return zstandard.decompress(item_table.to_bytes(one, indices))


def _sealed_document(name: str, data: bytes) -> Reader:
    """Of the header of a container, whose sections follow as they were."""
    end = document_container.PREFIX + int.from_bytes(data[8 : document_container.PREFIX], "little")

    def read(head: bytes) -> None:
        sealed = _sealed(head)
        _document(
            document_container.MAGIC + len(sealed).to_bytes(4, "little") + sealed + data[end:]
        )

    return Reader(name, [data[document_container.PREFIX : end]], read, DAMAGED)


def _sealed(data: bytes) -> bytes:
    """JSON with the right hash in it; other bytes as they are."""
    try:
        body = json.loads(data)
        body.pop("blake3", None)
        return canonical_json.dump(body)
    except (ValueError, AttributeError, TypeError, RecursionError):
        return data


def _pack() -> bytes:
    offset = 8
    chunks: list[Chunk] = []
    for n in range(8):
        one = dataclasses.replace(chunk(n + 1), offset=offset, length=40)
        chunks.append(dataclasses.replace(one, base=chunks[-1] if n % 2 else None))
        offset += 40
    return packs.MAGIC + bytes(8 * 40) + packs.footer(chunks)


def _read_pack(data: bytes) -> None:
    trailer = data[-packs.TRAILER.itemsize :]
    start, length = packs.parse_trailer(trailer, len(data))
    found = packs.parse_footer(data[start : start + length], trailer)
    ends = [int(row["offset"]) + int(row["length"]) for row in found]
    assert all(end <= start for end in ends), "a chunk outside its pack"


def _sealed_pack(data: bytes) -> bytes:
    """The end of a pack with the right checksum and size; the number of rows is as it came."""
    rest, trailer = data[: -packs.TRAILER.itemsize], bytearray(data[-packs.TRAILER.itemsize :])
    count = int.from_bytes(trailer[8:16], "little")
    if len(trailer) < packs.TRAILER.itemsize or count * packs.ROW.itemsize > len(rest):
        return data
    footer = rest[len(rest) - count * packs.ROW.itemsize :]
    size = 8 + 8 * 40 + len(data)
    trailer[:8], trailer[16:24] = checksum(footer).to_bytes(8, "little"), size.to_bytes(8, "little")
    return packs.MAGIC + bytes(8 * 40) + rest + bytes(trailer)


def _coded(codec: Codec, stored: bytes) -> bytes:
    return bytes([codec]) + stored


def _chunk(data: bytes) -> None:
    try:
        codec = Codec(data[0])
    except (ValueError, IndexError):
        return  # as the table says it
    for base in (None, BASE):
        try:
            decode(codec, data[1:], memoryview(bytearray(2 * COUNT)), LAYOUT, base)
        except DAMAGED:
            decode(codec, data[1:], memoryview(bytearray(8)), WordLayout(4, True, 4), None)


# --- the store's small records


def _small() -> list[Reader]:
    forms: dict[str, tuple[bytes, Callable[[bytes, str], object]]] = {
        "store": (
            store_records.dump_store(store_records.StoreRecord("ab" * 16, 1.5)),
            store_records.load_store,
        ),
        "lease": (
            store_records.dump_lease(
                store_records.Lease(
                    "0123abcd", "gpt", "me", 60.0, 3, {"runs/a": ("tombs/b",)}, ("c",)
                )
            ),
            store_records.load_lease,
        ),
        "owner": (
            store_records.dump_owner(store_records.RunOwner("nonce", "host", 2.0)),
            store_records.load_owner,
        ),
        "tomb": (
            store_records.dump_deletion_mark(
                store_records.DeletionMark(("packs/aa",), ("runs/b",))
            ),
            store_records.load_deletion_mark,
        ),
        "mark": (
            store_records.dump_mark(
                store_records.CheckpointMark("0000000100-89abcdef", True, "best", 3.0)
            ),
            store_records.load_mark,
        ),
    }

    def reader(name: str, seed: bytes, load: Callable[[bytes, str], object]) -> Reader:
        def read(data: bytes) -> None:
            load(_sealed(data), "it")

        return Reader(f"{name}-sealed", [seed], read, DAMAGED, 0.5)

    return [reader(name, *form) for name, form in forms.items()]


# --- data


def _data() -> list[Reader]:
    files = [(f"{n:03}.{kind}", b"x" * n) for n in range(4) for kind in ("txt", "jpg")]
    files += [("d" * 90 + "/" + "f" * 60 + ".txt", b"long"), ("é/ü.json", b"{}")]
    tars = [tar_bytes(files, format) for format in (1, 2)] + [tar_bytes(files[:2], 0)]
    index = _passed(tars[0])
    listed = [
        manifest_rows.ShardRow("/a/s-0.tar", 3, 10240, "tag", None, "ab" * 32, 7),
        manifest_rows.ShardRow("s3://b/s-1.tar", 4, 10240, None, "cd" * 32, "ef" * 32, 8),
    ]
    urls = ("../../etc/passwd", "s3://b/..%2f..%2fs.tar", "/a/..", "file:///a/%2e%2e/s-\0.tar", "~")
    hostile = [manifest_rows.ShardRow(url, 1, 10240, None, "ab" * 32, "ef" * 32, 8) for url in urls]
    indexes = [sidecar.to_bytes(index)]
    indexes += [manifest_rows.pack_rows(one, "/a/", "npy") for one in (listed, hostile)]
    return [
        Reader("tar", tars, lambda data: _use_index(_passed(data)), (ShardError,)),
        Reader("sidecar", indexes[:1], _sidecar, (IndexFileError,)),
        Reader("sidecar-sealed", [indexes[0][:-32]], lambda d: _sidecar(_hashed(d)),
               (IndexFileError,)),
        Reader("dataset", indexes[1:], _dataset, (IndexFileError,)),
        Reader("dataset-sealed", [indexes[1][:-32]], lambda d: _dataset(_hashed(d)),
               (IndexFileError,)),
        Reader("columns-sealed", [_described(*_unpacked(one)) for one in indexes], _described_read,
               (IndexFileError,)),
    ]  # fmt: skip


def _passed(data: bytes) -> ShardIndex:
    passing = StreamedShardIndexer("s.tar")
    for at in range(0, len(data), 700):
        passing.feed(memoryview(data)[at : at + 700])
    return passing.finish()


def _hashed(data: bytes) -> bytes:
    return data + blake3(data).digest()


def _use_index(index: ShardIndex) -> None:
    """Everything that a reader of samples asks for; no place is outside the shard."""
    index.digest  # noqa: B018 (is made when asked for)
    for i in range(len(index)):
        begin, end = index.span(i)
        assert 0 <= begin <= end <= index.bytes
        index.key(i)
        for member in index.members(i):
            assert begin < member.offset <= member.offset + member.size <= end


def _sidecar(data: bytes) -> None:
    _use_index(sidecar.from_bytes(data, "s.tar.index"))


def _dataset(data: bytes) -> None:
    """A manifest, and its summary, which there is of no other one than can be opened."""
    try:
        summary = summarise(data, Path("/base/d.index"))
    except IndexFileError:
        summary = None
    try:
        content = column_container.unpack(data, manifest_rows.KIND, "d.index")
        found = Manifest(content, "/base/", "d.index")
    except IndexFileError:
        assert summary is None
        raise
    _use_manifest(found)
    if summary is not None:
        assert len(summary) == found.total_samples
        assert list(summary.manifest.urls) == list(found.urls)
        assert list(summary.manifest.sizes) == found.bytes.tolist()


def _use_manifest(found: Manifest) -> None:
    assert found.total_samples >= 0
    assert len(found.fingerprint) == 64
    for i in range(len(found)):
        row = found.row(i)
        assert min(row.samples, row.bytes, row.tokens or 0) >= 0
        assert len(row.digest) == 64
        found.is_version(i, row.bytes, None)
        _use_place(found.urls[i], row.bytes, found.hash(i))


def _use_place(url: str, size: int, hash: str | None) -> None:
    """The files that a cache has for a shard are in its folder, whatever the shard is called."""
    try:
        entry = CacheEntry.of(ShardRef(url, size, hash), size, None)
    except DataError:
        return  # no address
    for kind in KINDS:
        name = f"{entry.stem}.{kind}"
        assert Path(name).name == name, f"{url!r} is cached at {name!r}"
        assert len(name.encode()) < 256
        assert CacheEntry.parse(name) == (entry, kind)


def _unpacked(data: bytes) -> Content:
    kind = shard_index.KIND if b'"shard"' in data[:40] else manifest_rows.KIND
    found = column_container.unpack(data, kind, "it")
    return kind, dict(found.meta), dict(found.columns)


def _described(kind: str, meta: Json, named: dict[str, Any]) -> bytes:
    """A container as JSON, so that its numbers are words to mutate."""
    listed = {name: [column.dtype.str[1:], column.tolist()] for name, column in named.items()}
    return json.dumps([kind, meta, listed]).encode()


def _described_read(data: bytes) -> None:
    """A container of other columns, whose hash and sizes are right."""
    try:
        kind, meta, listed = json.loads(data)
        named = {name: np.array(values, dtype) for name, (dtype, values) in listed.items()}
        content = column_container.pack(kind, meta, named)
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError, SyntaxError):
        return  # cannot be written
    (_sidecar if kind == shard_index.KIND else _dataset)(content)


# --- the run's directory, and what agents and supervisors tell each other


def _run(work: Path) -> list[Reader]:
    lines = [
        {"time": 1.5, "kind": "generation_started", "generation": 1, "nodes": [0, 1]},
        {"time": 2.5, "kind": "step", "node": 0, "loss": 0.25, "text": "é\n"},
    ]
    events = b"".join(json.dumps(line).encode() + b"\n" for line in lines * 3)
    spec = make_spec({"root": str(work)}, cluster="slurm")
    said = [
        {"kind": "start", "start": {"generation": 1, "host": "n0", "port": 29500}},
        {"kind": "ended", "generation": 1, "report": {"node": 0, "exit": "done", "error": None}},
    ]
    talk = b"\n".join(json.dumps(message).encode() for message in said) + b"\n\n"
    return [
        Reader("events", [events, events[:-20]], lambda data: _events(work / "e.jsonl", data)),
        Reader("spec", _yaml_seeds(dump_spec(spec)), lambda data: _spec(work / "spec.yaml", data),
               (SpecError,), 0.5),
        Reader("channel", [talk], _channel),
        Reader("durable-json", [events[:80], talk[:60]], lambda d: _json(work / "v.json", d),
               weight=0.5),
    ]  # fmt: skip


def _yaml_seeds(text: str) -> list[bytes]:
    bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\nd: &d {e: *d}\n"
    return [text.encode(), text.encode()[:600], bomb.encode()]


def _events(path: Path, data: bytes) -> None:
    """In two parts, as they are appended."""
    half = len(data) // 2
    path.write_bytes(data[:half])
    tail = EventTail(path)
    found = list(tail.read())
    with path.open("ab") as file:
        file.write(data[half:])
    found += tail.read()
    assert all(isinstance(event.time, float) and abs(event.time) < 1e18 for event in found)


def _spec(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    read_spec(path)


def _json(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    read_json(path)


def _channel(data: bytes) -> None:
    read, write = os.pipe()
    back = os.open(os.devnull, os.O_WRONLY)
    try:
        os.write(write, data)
        os.close(write)
        assert all(isinstance(m["kind"], str) for m in Channel(read, back).receive())
    finally:
        os.close(read)
        os.close(back)


# --- the checkpoint service


def _service(work: Path) -> list[Reader]:
    seat = messages.dump_rank(1, frozenset({0, 1}), Generation("0123abcd", 4, 7))
    nodes = (RingNode("n0", "10.0.0.1", 4000, (0, 1)), RingNode("n1", "10.0.0.2", 4001, (2, 3)))
    ring = replication_ring.dump_ring(
        ReplicationRing(Generation("0123abcd", 4, 7), nodes, 1, bytes(32))
    )
    layout, snapshot = messages.dump_layout(sample.LAYOUT), messages.dump_snapshot(sample.SNAPSHOT)
    spooled = SpoolHeader(sample.SNAPSHOT, 5, "ab" * 16, 4, 2, 4096)
    path = work / spooled.name
    spool_file.write(path, spooled, np.arange(4096, dtype=np.uint8), 1)
    content = path.read_bytes()
    end = 16 + int.from_bytes(content[12:16], "little")
    frames = b"".join(_frame({"kind": kind, **seat}) for kind in ("join", "staged"))
    return [
        Reader("wire", [frames, _frame({"kind": "layout", **layout})], _wire, (ServiceError,)),
        Reader("seat", [_text(seat)], lambda d: _message(d, messages.load_rank), REFUSED),
        Reader("layout", [_text(layout)], lambda d: _message(d, messages.load_layout), REFUSED),
        Reader("snapshot", [_text(snapshot)], lambda d: _message(d, _load_snapshot), REFUSED),
        Reader("ring", [_text(ring)], lambda d: _message(d, replication_ring.load_ring), REFUSED),
        Reader("spool", [content], lambda data: _spool(path, data), DAMAGED, 0.5),
        Reader("spool-sealed", [content[16:end]],
               lambda data: _spool(path, _spooled(data, content[end + 32 :])), DAMAGED, 0.5),
    ]  # fmt: skip


def _text(plain: Json) -> bytes:
    return json.dumps(plain).encode()


def _frame(message: Json) -> bytes:
    body = _text(message)
    return len(body).to_bytes(4, "little") + body


def _wire(data: bytes) -> None:
    ours, theirs = socket.socketpair()
    wire = FrameSocket(ours)
    try:
        theirs.sendall(data[:MOST])
        theirs.shutdown(socket.SHUT_WR)
        while (received := wire.receive()) is not None:
            assert isinstance(received[0]["kind"], str)
    finally:
        wire.close()
        theirs.close()


def _message(data: bytes, load: Callable[[Json], object]) -> None:
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError):
        return  # no message, as the wire says
    if isinstance(plain, dict):
        load(plain)


def _load_snapshot(plain: Json) -> object:
    return messages.load_snapshot(plain, {sample.LAYOUT.digest: sample.LAYOUT})


def _spool(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with spool_file.opened(path) as (fd, head):
        into = np.zeros(head.spooled.bytes, np.uint8)
        spool_file.read(fd, head, into, 1, path)


def _spooled(header: bytes, rest: bytes) -> bytes:
    head = b"HPKSPL01" + (1).to_bytes(4, "little") + len(header).to_bytes(4, "little") + header
    return head + blake3(head).digest() + rest


# --- formats of others


def _foreign(work: Path) -> list[Reader]:
    tree: Sequence[object] = [{"a": [1, 2.5, (3,)], "b": "é"}, [None, True, b"x", 2**70], ("t",)]
    seeds = [pickle.dumps(one, protocol) for one in tree for protocol in (2, 4, 5)]
    return [
        Reader("pickle", seeds, lambda d: pickle_reader.read(d, ALLOWED, "it"), DAMAGED, 0.5),
        Reader("safetensors", [_safetensors()], _read_safetensors, DAMAGED),
        Reader("torch-pickle", _torch_pickles(), _read_torch_pickle, DAMAGED, 0.5),
        Reader("torch-file", [_torch_file(one) for one in _torch_pickles()],
               lambda data: _read_torch_file(work / "it.pt", data), DAMAGED, 0.5),
    ]  # fmt: skip


def _torch_pickles() -> list[bytes]:
    """Tensors in a storage of 16 bytes and an array, in containers; as torch.save writes them."""

    def text(content: bytes) -> bytes:
        return b"X" + len(content).to_bytes(4, "little") + content

    storage = b"(" + text(b"storage") + b"ctorch\nFloatStorage\n" + text(b"0") + text(b"cpu")
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\x04tQK\x00"
    tensor += b"K\x02K\x02\x86K\x02K\x01\x86\x89ccollections\nOrderedDict\n)RtRq\x02"
    ordered = b"ccollections\nOrderedDict\n)R(" + text(b"w") + b"h\x02u}" + text(b"_metadata")
    kind = b"cnumpy\ndtype\n(" + text(b"u2") + b"\x89\x88tR(K\x03" + text(b"<") + b"NNNtb"
    array = b"cnumpy._core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR"
    array += b"(K\x01K\x02\x85" + kind + b"\x89C\x04abcdtb"
    return [
        b"\x80\x02}(" + text(b"a") + tensor + b"K\x07](K\x01h\x02eu.",
        b"\x80\x02}(" + text(b"a") + tensor + b"0" + ordered + b"}sbu.",
        b"\x80\x04}(" + text(b"a") + array + b"K\x01N" + text(b"n") + b"]u.",
        pickle.dumps({"a": Counter("aab"), "b": [(1, None), {2: 2.5}]}, 2),
    ]


def _read_torch_pickle(data: bytes) -> None:
    from checkpointing.interop.torch_save.file_import import leaves_of
    from checkpointing.interop.torch_save.pickled_tensors import parse

    leaves_of(parse(data, "it"), "item", "it")


def _torch_file(program: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in {
            "data.pkl": program,
            "byteorder": b"little",
            "data/0": bytes(16),
        }.items():
            archive.writestr(f"it/{name}", data)
    return file.getvalue()


def _read_torch_file(path: Path, data: bytes) -> None:
    from checkpointing.interop.torch_save.archive import open_archive
    from checkpointing.interop.torch_save.file_import import check, leaves_of, pieces
    from checkpointing.interop.torch_save.pickled_tensors import parse

    path.write_bytes(data)
    with open_archive(path) as archive:
        tensors, _ = leaves_of(parse(archive.pickle(), "it"), "item", "it")
        check(archive, tensors)
        for piece in pieces(archive, tensors):
            assert piece.data.shape == piece.box.sizes


def _safetensors() -> bytes:
    body = {
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
        "__metadata__": {"format": "pt"},
    }
    text = json.dumps(body).encode()
    return len(text).to_bytes(8, "little") + text + bytes(32)


class _Memory:
    """As `interop.files.InputFile`, of bytes."""

    path = Path("it.safetensors")

    def __init__(self, data: bytes) -> None:
        self._data, self.size = data, len(data)

    def read(self, start: int, length: int) -> bytes:
        if start + length > self.size:
            raise DamagedError("it ends before")
        return self._data[start : start + length]


def _read_safetensors(data: bytes) -> None:
    from checkpointing.interop.safetensors import header as safetensors_header

    entries, start = safetensors_header.read(_Memory(data))  # type: ignore[arg-type]
    assert all(start + one.start + one.size <= len(data) for one in entries.values())
