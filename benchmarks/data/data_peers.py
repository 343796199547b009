"""Readers of other projects, where they are installed: hpckit does not ask for them.

`--peers FOLDER` names a folder that they were installed into, with what they ask for but torch:

    .venv/bin/pip install --no-deps --target FOLDER litdata mosaicml-streaming datasets \\
        megatron-energon ...

All of them but Hugging Face and Energon read a format of their own: the data set is converted
before anything is measured.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.data.data_sets import EXTENSION
from benchmarks.data.readers.data_arms import ARMS, Batches, ReadArm, Reading, forever, grouped
from benchmarks.data.readers.data_energon import loader as energon_loader
from benchmarks.data.readers.data_torchdata import prepare_torchdata, torchdata

_CHUNK_BYTES = 64 << 20


def litdata(reading: Reading) -> Batches:
    """`StreamingDataset`, shuffled; its own loader if there are workers.

    From 0.2.76 on its samples are views of a mapping, of which no byte was read yet: they are made
    bytes as all others are, which in workers they have to be anyway, as no view can be sent.
    """
    module = importlib.import_module("litdata")
    found = module.StreamingDataset(str(_place(reading, "litdata")), shuffle=True, drop_last=False)
    if not reading.workers:
        return grouped(map(bytes, forever(lambda: found)), reading.batch)
    loader = module.StreamingDataLoader(
        found, batch_size=reading.batch, num_workers=reading.workers, collate_fn=_bytes
    )
    return forever(lambda: loader)


def litdata_views(reading: Reading) -> Batches:
    """The same as it comes: on some versions the consumer reads the bytes, if it ever does."""
    module = importlib.import_module("litdata")
    found = module.StreamingDataset(str(_place(reading, "litdata")), shuffle=True, drop_last=False)
    return grouped(forever(lambda: found), reading.batch)


def _bytes(samples: list[Any]) -> list[bytes]:
    return [bytes(sample) for sample in samples]


def _prepare_litdata(reading: Reading) -> None:
    place = _place(reading, "litdata")
    if (place / "index.json").exists():
        return
    place.mkdir(parents=True)
    module = importlib.import_module("litdata.streaming.writer")
    writer = module.BinaryWriter(str(place), chunk_bytes=_CHUNK_BYTES)
    for number in range(reading.samples.total):
        writer[number] = reading.samples.content(number)
    writer.done()
    writer.merge()


def mosaicml(reading: Reading) -> Batches:
    """`StreamingDataset`, shuffled; torch's loader if there are workers."""
    found = importlib.import_module("streaming").StreamingDataset(
        local=str(_place(reading, "mosaicml")), shuffle=True, batch_size=reading.batch
    )
    if not reading.workers:
        each = (sample[EXTENSION] for sample in forever(lambda: found))
        return grouped(each, reading.batch)
    return forever(lambda: _torch_loader(found, reading, _contents))


def _prepare_mosaicml(reading: Reading) -> None:
    place = _place(reading, "mosaicml")
    if (place / "index.json").exists():
        return
    make = importlib.import_module("streaming").MDSWriter
    with make(out=str(place), columns={EXTENSION: "bytes"}, size_limit=_CHUNK_BYTES) as writer:
        for number in range(reading.samples.total):
            writer.write({EXTENSION: reading.samples.content(number)})


def hugging_face(reading: Reading) -> Batches:
    """`load_dataset("webdataset", streaming=True)`, in the order of the shards."""
    found = importlib.import_module("datasets").load_dataset(
        "webdataset", data_files={"train": reading.urls}, split="train", streaming=True
    )
    each = (sample[EXTENSION] for sample in forever(lambda: found))
    return grouped(each, reading.batch)


def energon(reading: Reading) -> Batches:
    """Its savable loader, over shards that it was shown before."""
    found = energon_loader(str(_place(reading, "energon")), reading.batch, reading.workers)
    return (batch.contents for batch in found)


def _prepare_energon(reading: Reading) -> None:
    place = _place(reading, "energon")
    if (place / ".nv-meta" / "dataset.yaml").exists():
        return
    place.mkdir(parents=True, exist_ok=True)
    for url in reading.urls:
        (place / Path(url).name).hardlink_to(url)
    program = (
        f"import sys; sys.path += {sys.path!r}; from megatron.energon.cli.main import main; main()"
    )
    options = ["--non-interactive", "--split-ratio", "1,0,0", "--sample-type", "CrudeWebdataset"]
    subprocess.run([sys.executable, "-c", program, "prepare", str(place), *options], check=True)


def _torch_loader(found: Any, reading: Reading, collate: Any) -> Iterator[list[bytes]]:
    from torch.utils.data import DataLoader

    return iter(
        DataLoader(found, batch_size=reading.batch, num_workers=reading.workers, collate_fn=collate)
    )


def _contents(samples: list[Any]) -> list[bytes]:
    return [sample[EXTENSION] for sample in samples]


def _place(reading: Reading, name: str) -> Path:
    return reading.converted / name


_PEERS = (
    ReadArm("torchdata", torchdata, prepare_torchdata, "torchdata.stateful_dataloader"),
    ReadArm("litdata", litdata, _prepare_litdata, "litdata"),
    ReadArm("litdata, views", litdata_views, _prepare_litdata, "litdata"),
    ReadArm("mosaicml-streaming", mosaicml, _prepare_mosaicml, "streaming"),
    ReadArm("hugging face", hugging_face, module="datasets"),
    ReadArm("energon", energon, _prepare_energon, "megatron.energon"),
)


def arm(name: str) -> ReadArm:
    """By its name."""
    return next(one for one in (*ARMS, *_PEERS) if one.name == name)


def arms(is_there: Any) -> list[str]:
    """Names of those that can be had; says which cannot, and why.

    Args:
        is_there: tells of a module why it cannot be imported, None if it can.
    """
    found = []
    for one in (*ARMS, *_PEERS):
        why = None if one.module is None else is_there(one.module)
        if why is None:
            found.append(one.name)
        else:
            print(f"left out: {one.name} ({why}); see benchmarks/data/data_peers.py")
    return found


def importable(module: str) -> str | None:
    """Why a module cannot be imported; for a process of its own."""
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 (packages fail in any way)
        return f"{type(error).__name__}: {error}"
    return None
