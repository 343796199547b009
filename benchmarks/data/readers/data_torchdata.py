"""Torchdata's loader over a data set of the map kind: samples by number, out of indexed tars.

Torchdata reads no tars of its own; this is what its users write. The index is made beforehand.
"""

from __future__ import annotations

import importlib
import json
import os
import tarfile
from pathlib import Path
from typing import Any

from benchmarks.data.readers.data_arms import Batches, Reading, forever


class Tars:
    """Sample i is the content of the i-th file of all tars."""

    def __init__(self, index: Path) -> None:
        self._places: list[tuple[str, int, int]] = json.loads(index.read_text())
        self._open: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, number: int) -> bytes:
        tar, offset, size = self._places[number]
        fd = self._open.get(tar)
        if fd is None:
            fd = self._open[tar] = os.open(tar, os.O_RDONLY)
        return os.pread(fd, size, offset)


def loader(reading: Reading) -> Any:
    """A `StatefulDataLoader`, shuffled."""
    module = importlib.import_module("torchdata.stateful_dataloader")
    return module.StatefulDataLoader(
        Tars(_index(reading)),
        batch_size=reading.batch,
        shuffle=True,
        num_workers=reading.workers,
        collate_fn=list,
    )


def torchdata(reading: Reading) -> Batches:
    """Epoch after epoch of `loader`."""
    found = loader(reading)
    return forever(lambda: found)


def prepare_torchdata(reading: Reading) -> None:
    """Index the tars."""
    place = _index(reading)
    if place.exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    found = []
    for url in reading.urls:
        with tarfile.open(url) as tar:
            found += [(url, member.offset_data, member.size) for member in tar if member.isfile()]
    place.write_text(json.dumps(found))


def _index(reading: Reading) -> Path:
    return reading.converted / "torchdata.json"
