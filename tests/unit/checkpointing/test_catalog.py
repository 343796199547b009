"""The catalog needs no torch: it is tested on checkpoints made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from blake3 import blake3

from checkpointing import CheckpointError, list_checkpoints, verify
from checkpointing.manifest import Chunk, Header, assemble, to_json

BYTES = bytes(range(8))


def make(steps: Path, step: int, session: str = "0123abcd", created: float = 1.0) -> Path:
    id_ = f"{step:010d}-{session}"
    header = Header(id_, "r", step, created, 1, {"loss": 0.5}, {})
    digest = blake3(BYTES).hexdigest()
    chunk = Chunk("w", "uint8", (8,), (0,), (8,), "rank-00000.bin", 0, 8, digest)
    directory = steps / id_
    directory.mkdir(parents=True)
    (directory / "rank-00000.bin").write_bytes(BYTES)
    (directory / "manifest.json").write_bytes(to_json(assemble(header, [chunk])))
    return directory


def test_every_door_leads_to_the_same_checkpoints(tmp_path: Path) -> None:
    store = tmp_path / "run-dir" / "checkpoints"
    steps = store / "runs" / "r" / "steps"
    make(steps, 10)
    make(steps, 9)
    make(steps, 10, "ffffffff", created=0.5)
    (steps / "notes.txt").touch()
    (steps / ".probe-1").touch()
    infos = list_checkpoints(store)
    assert [(i.step, i.created) for i in infos] == [(9, 1.0), (10, 0.5), (10, 1.0)]
    for door in (tmp_path / "run-dir", store / "runs" / "r", steps):
        assert list_checkpoints(door) == infos
    assert list_checkpoints(store.as_uri()) == infos
    info = infos[0]
    assert (info.id, info.run, info.path) == ("0000000009-0123abcd", "r", info.path)
    assert (info.bytes, info.world_size, info.tensors, info.metrics) == (8, 1, 1, {"loss": 0.5})
    assert (info.state, info.problem) == ("committed", None)
    assert verify(info) == []


def test_what_is_broken_is_named(tmp_path: Path) -> None:
    steps = tmp_path / "runs" / "r" / "steps"
    (make(steps, 1) / "manifest.json").unlink()
    (make(steps, 2) / "rank-00000.bin").write_bytes(BYTES[:-1])
    (make(steps, 3) / "rank-00000.bin").unlink()
    (make(steps, 4)).rename(steps / "0000000005-0123abcd")
    (make(steps, 6) / "rank-00000.bin").write_bytes(BYTES[::-1])
    infos = list_checkpoints(steps)
    assert [(i.step, i.state) for i in infos] == [
        (1, "incomplete"),
        (2, "damaged"),
        (3, "damaged"),
        (5, "damaged"),
        (6, "committed"),
    ]
    problems = ["no manifest.json", "7 bytes instead of 8", "cannot be read", "is of checkpoint"]
    for info, problem in zip(infos, problems, strict=False):
        assert problem in str(info.problem)
        assert problem in verify(info)[0]
    assert verify(infos[-1]) == [
        "'w' in rank-00000.bin at byte 0: the bytes do not match their hash"
    ]


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no checkpoint store at"):
        list_checkpoints(tmp_path)
    (tmp_path / "runs" / "r" / "steps").mkdir(parents=True)
    assert list_checkpoints(tmp_path) == []
