"""Runs `hpckit ckpt` in this process, on a store that was made for it, and damages that store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from checkpointing.errors import StoreAccessError
from checkpointing.format import object_keys
from checkpointing.format.object_keys import SaveId
from checkpointing.format.values.json_values import Json
from checkpointing.storage import Buffer
from checkpointing.storage.posix.posix_storage import PosixStorage
from checkpointing.store import pins_and_labels
from checkpointing.store.store import Store
from hpckit.cli.main import app
from tests.unit.checkpointing.store.tensor_checkpoints import find, make, opened

KEEP = ("--keep", "last=1")


def make_store(folder: Path) -> Store:
    return make_at(Store.open(folder, create=True))


def make_at(made: Store) -> Store:
    """Four steps of a run, of which most of the model stays the same."""
    rng = np.random.default_rng(0)
    weight, frozen = (rng.standard_normal((200, 400)).astype("f4") for _ in range(2))
    for step, loss in ((100, 4.0), (200, 2.0), (300, 3.0), (400, 2.5)):
        weight = weight + np.float32(1)
        tensors = {
            "model/layer.weight": ("float32", weight),
            "model/frozen": ("float32", frozen),
            "optimizer/state/0/exp_avg": ("float32", weight * 2),
        }
        values: Mapping[str, Json] = {"scheduler/epoch": step, "rng/[red]seed\x1b": "x\x1b[2J"}
        make(made, step, tensors, values, metrics={"loss": loss}, ranks=2)
    return made


def ckpt(*arguments: object) -> Result:
    result = CliRunner().invoke(app, ["ckpt", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # a traceback for the user
    return result


def ok(*arguments: object) -> str:
    result = ckpt(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def document(*arguments: object, exit_code: int = 0) -> Any:
    """What --json prints: one JSON document and nothing else."""
    result = ckpt(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout, parse_constant=pytest.fail)


def refused(*arguments: object, exit_code: int = 2) -> str:
    """What is said on standard error; nothing is on standard output."""
    result = ckpt(*arguments)
    assert result.exit_code == exit_code, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def save_of(store: Store, step: int) -> SaveId:
    return next(stored.save for stored in store.manifests() if stored.save.step == step)


def folder(store: Store) -> Path:
    return Path(store.url)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def break_chunk(store: Store, step: int, tensor: str) -> str:
    """Damage a chunk of a tensor; its pack's name."""
    checkpoint = opened(store, save_of(store, step))
    chunk = next(iter(checkpoint.table("model").chunks[tensor].values()))
    name = chunk.pack.hex()
    flip(folder(store) / "packs" / name[:2] / f"{name}.pack", chunk.offset)
    return name


def break_mark(store: Store, step: int) -> None:
    """Damage the pin of a checkpoint."""
    save = save_of(store, step)
    flip(folder(store) / object_keys.mark(save.run, pins_and_labels.PIN + save.id), 5)


def refuse_to_read(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """Let the storage give out all objects but one."""
    read = PosixStorage.get_range

    def refuse(storage: PosixStorage, asked: str, start: int, length: int) -> Buffer:
        if asked == key:
            raise StoreAccessError("not yours")
        return read(storage, asked, start, length)

    monkeypatch.setattr(PosixStorage, "get_range", refuse)


def break_manifest(store: Store, step: int, at: int = 30) -> None:
    flip(folder(store) / find(store, save_of(store, step)).stored.key, at)
