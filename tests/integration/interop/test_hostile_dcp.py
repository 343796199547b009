"""DCP folders that are damaged, or an attack: said clearly, and nothing of them is run."""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from checkpointing import CheckpointError, DamagedError, FormatError, Store
from checkpointing.interop.dcp import import_dcp
from checkpointing.store.catalog import committed
from tests.integration.interop.interop_checkpoints import nested

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


class Exploit:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


class Evil:
    """Would end the process when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("__import__('os').abort()",)


@pytest.mark.parametrize(
    "where", ["state_dict_metadata", "planner_data", "storage_data", "storage_meta", "itself"]
)
def test_hostile_dcp_metadata_run_nothing(store: Store, tmp_path: Path, where: str) -> None:
    dcp_save(nested(), checkpoint_id=tmp_path / "dcp")
    path, canary = tmp_path / "dcp" / ".metadata", tmp_path / "canary"
    metadata = pickle.loads(path.read_bytes())
    if where == "itself":
        metadata = [Exploit(canary), metadata]
    else:
        setattr(metadata, where, {"w": Exploit(canary), "v": Evil()})
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps(metadata, protocol))
        with pytest.raises(
            FormatError, match=r"refers to (posix|nt)\.mkdir.*nothing in it was run"
        ):
            import_dcp(tmp_path / "dcp", store, "run", 1)
    assert not canary.exists()
    pickle.loads(pickle.dumps(Exploit(canary)))
    assert canary.exists()  # it would have worked
    assert committed(store)[0] == []


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        (b"", "not a complete pickle"),
        (b"\x80\x04", "not a complete pickle"),
        (b"\x80\x04.", "not a complete pickle"),
        (b"\x80\x04(.", "not a complete pickle"),
        (b"\x80\x04h\x05.", "not a complete pickle"),
        (b"\x80\x04]K\x01K\x02s.", "not a complete pickle"),
        (b"\x80\x04}]K\x01s.", "not a complete pickle"),
        (b"\x80\x04K\x01)R.", "not a complete pickle"),
        (b"\x80\x04K\x01}b.", "not a complete pickle"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", "not a complete pickle"),
        (b"cos\nsystem\n(S'true'\ntR.", "refers to os.system"),
        (b"ctorch.distributed.checkpoint.metadata\nMetadata.mro\n.", "refers to torch"),
        (b"ctorch\nload\n.", "refers to torch.load"),
        (b"(S'true'\nios\nsystem\n.", "instruction (STRING|INST) is not allowed"),
        (b"\x80\x02\x82\x01.", "instruction EXT1 is not allowed"),
        (b"Ppersistent\n.", "instruction PERSID is not allowed"),
        (b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.", "not a complete pickle|not allowed"),
        (b"\x80\x04K\x01r\xff\xff\xff\xff.", "Metadata is not valid"),
        (b"\x80\x04}.", "Metadata is not valid"),
    ],
)
def test_pickle_programs_are_data(
    store: Store, tmp_path: Path, program: bytes, problem: str
) -> None:
    (tmp_path / ".metadata").write_bytes(program)
    with pytest.raises((DamagedError, FormatError), match=problem):
        import_dcp(tmp_path, store, "run", 1)


def changed_metadata(folder: Path, change: Callable[[Any], None]) -> None:
    path = folder / ".metadata"
    metadata = pickle.loads(path.read_bytes())
    change(metadata)
    path.write_bytes(pickle.dumps(metadata))


def first_place(metadata: Any, name: str) -> Any:
    return next(info for index, info in metadata.storage_data.items() if index.fqn == name)


def _elsewhere(metadata: Any) -> None:
    first_place(metadata, "model.b").relative_path = "../outside"


def _transformed(metadata: Any) -> None:
    first_place(metadata, "model.b").transform_descriptors = ["zstd"]


def _another(metadata: Any) -> None:
    place, other = first_place(metadata, "model.b"), first_place(metadata, "e")
    place.offset, place.length = other.offset, other.length


def _no_place(metadata: Any) -> None:
    metadata.storage_data = {k: v for k, v in metadata.storage_data.items() if k.fqn != "model.b"}


def _no_chunks(metadata: Any) -> None:
    metadata.state_dict_metadata["model.b"].chunks.clear()


def _too_long(metadata: Any) -> None:
    first_place(metadata, "model.b").length = 1 << 50


def _bigger(metadata: Any) -> None:
    metadata.state_dict_metadata["model.b"].size = torch.Size([8])


def _twice(metadata: Any) -> None:
    metadata.planner_data["model.b"] = metadata.planner_data["model.w.0"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_elsewhere, "a file's name is not valid: '../outside'"),
        (_transformed, "stored with the transforms"),
        (_another, "refuses it|instead of bfloat16"),
        (_no_place, "does not say where 'model.b' at"),
        (_no_chunks, "tensor 'model.b' has no chunks"),
        (_too_long, "is cut off"),
        (_bigger, "cover 7 of its 8 elements"),
        (_twice, "would have the same name"),
    ],
)
def test_dcp_metadata_are_not_trusted(
    store: Store, tmp_path: Path, change: Callable[[Any], None], problem: str
) -> None:
    dcp_save(nested(), checkpoint_id=tmp_path / "dcp")
    changed_metadata(tmp_path / "dcp", change)
    with pytest.raises(CheckpointError, match=problem):
        import_dcp(tmp_path / "dcp", store, "run", 1)
    assert committed(store)[0] == []


@pytest.mark.parametrize("name", ["model.b", "step"])
def test_hostile_dcp_data_run_nothing(store: Store, tmp_path: Path, name: str) -> None:
    dcp_save(nested(), checkpoint_id=tmp_path / "dcp")
    canary, buffer = tmp_path / "canary", io.BytesIO()
    torch.save(Exploit(canary), buffer)
    (tmp_path / "dcp" / "evil.distcp").write_bytes(buffer.getvalue())

    def change(metadata: Any) -> None:
        place = first_place(metadata, name)
        place.relative_path, place.offset = "evil.distcp", 0
        place.length = len(buffer.getvalue())

    changed_metadata(tmp_path / "dcp", change)
    with pytest.raises(DamagedError, match=rf"{name}.*weights_only=True\) refuses it"):
        import_dcp(tmp_path / "dcp", store, "run", 1)
    assert not canary.exists()


def test_dcp_folders_that_are_none(store: Store, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"not a checkpoint of torch\.distributed"):
        import_dcp(tmp_path, store, "run", 1)
    dcp_save(
        {"a": {"w": torch.ones(2), "data": np.zeros(2, object)}}, checkpoint_id=tmp_path / "dcp"
    )
    with pytest.raises(FormatError, match=r"'a\.data'.*cannot save the numpy array of dtype obj"):
        import_dcp(tmp_path / "dcp", store, "run", 1)
