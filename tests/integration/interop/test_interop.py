"""Checkpoints to and from torch's own formats, by torch: bit for bit."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from checkpointing import DamagedError, FormatError, Store
from checkpointing.format.element_types import element
from checkpointing.interop.dcp import StoreReader, StoreWriter, export_dcp, import_dcp
from checkpointing.interop.piece_import import save_pieces
from checkpointing.interop.safetensors.model_files import export_safetensors
from checkpointing.interop.torch_save.file_export import export_torch
from checkpointing.store.catalog import committed
from checkpointing.store.checkpoint import Checkpoint
from tests.integration.interop.interop_checkpoints import (
    VALUES,
    bits,
    contents,
    described,
    everything,
    everything_saved,
    flat,
    nested,
    opened,
    piece,
    tensor_of,
)

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return everything_saved(tmp_path_factory.mktemp("full"))


Exporter = Callable[[Checkpoint, Path], object]


@pytest.mark.parametrize(
    "export",
    [
        lambda checkpoint, folder: export_safetensors(checkpoint, folder),
        lambda checkpoint, folder: export_dcp(checkpoint, folder),
        lambda checkpoint, folder: export_torch(checkpoint, folder / "all.pt"),
    ],
)
def test_a_damaged_checkpoint_leaves_no_files(
    store: Store, tmp_path: Path, export: Exporter
) -> None:
    pieces = [piece("model/w", "float32", bits("float32", (800, 300), 1))]
    checkpoint = opened(store, save_pieces(store, "run", 1, pieces, {}))
    pack = tmp_path / "store" / store.storage.list("packs/")[0].key
    data = bytearray(pack.read_bytes())
    data[1000] ^= 1
    pack.write_bytes(data)
    with pytest.raises(DamagedError, match=r"cannot be exported: 'model/w': packs/.*repair it"):
        export(checkpoint, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("mmap", [False, True])
def test_a_torch_file_loads(full: Checkpoint, tmp_path: Path, mmap: bool) -> None:
    path, told = tmp_path / "all.pt", list[int]()
    export_torch(full, path, on_bytes=told.append)
    loaded = flat(torch.load(path, weights_only=True, mmap=mmap))
    tensors = {name: described(t) for name, t in loaded.items() if isinstance(t, Tensor)}
    assert tensors == contents(full)
    assert repr({n: loaded[f"extra/{n}"] for n in VALUES}) == repr(VALUES)
    assert sum(told) == sum(len(raw) for _, _, raw in tensors.values())
    assert [p.name for p in tmp_path.iterdir()] == ["all.pt"]
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None  # all checksums


def test_torch_files_nest_as_the_state_was(store: Store, tmp_path: Path) -> None:
    names = ["a/x/1", "b/w", "a/y", "a/x/2", "a/x~1z", "c"]  # not in the order of the tree
    pieces = [piece(n, "float32", bits("float32", (3, i), i)) for i, n in enumerate(names)]
    checkpoint = opened(store, save_pieces(store, "run", 1, pieces, {"b/lr": 0.5}))
    export_torch(checkpoint, tmp_path / "all.pt")
    loaded = torch.load(tmp_path / "all.pt", weights_only=True)
    assert loaded["b"]["lr"] == 0.5
    found = [loaded["a"]["x"]["1"], loaded["b"]["w"], loaded["a"]["y"], loaded["a"]["x"]["2"]]
    found += [loaded["a"]["x/z"], loaded["c"]]
    assert [described(t) for t in found] == [contents(checkpoint)[n] for n in names]
    with pytest.raises(FileExistsError, match="already exists"):
        export_torch(checkpoint, tmp_path / "all.pt")


def test_a_torch_file_of_clashing_names_is_refused(store: Store, tmp_path: Path) -> None:
    pieces = [piece(n, "float32", bits("float32", (2,), 1)) for n in ("a/x", "a/x/y")]
    checkpoint = opened(store, save_pieces(store, "run", 1, pieces, {}))
    with pytest.raises(FormatError, match="part of its name is already used"):
        export_torch(checkpoint, tmp_path / "out" / "all.pt")
    assert not (tmp_path / "out").exists()


def empty_like(found: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> dict[str, Any]:
    """A state to load into: nested dicts, by item."""
    state: dict[str, Any] = {}
    for name, (dtype, shape, _) in found.items():
        item, _, key = name.partition("/")
        raw = torch.full((int(np.prod(shape)) * element(dtype).itemsize,), 1, dtype=torch.uint8)
        state.setdefault(item, {})[key] = raw.view(getattr(torch, dtype)).reshape(shape)
    return state


def test_a_dcp_folder_loads(full: Checkpoint, tmp_path: Path) -> None:
    told: list[int] = []
    export_dcp(full, tmp_path / "dcp", on_bytes=told.append)
    wanted = contents(full)
    state = empty_like(wanted) | {"extra": dict.fromkeys(VALUES)}
    dcp_load(state, checkpoint_id=tmp_path / "dcp")
    assert {n: described(t) for n, t in flat(state).items() if isinstance(t, Tensor)} == wanted
    assert repr({n: state["extra"][n] for n in VALUES}) == repr(VALUES)
    assert sum(told) == sum(len(raw) for _, _, raw in contents(full).values())
    with pytest.raises(FileExistsError):
        export_dcp(full, tmp_path / "dcp")


def test_a_dcp_folder_becomes_a_torch_file(store: Store, tmp_path: Path) -> None:
    pieces = [p for p in everything() if p.dtype in ("float32", "bfloat16", "int64")]
    checkpoint = opened(store, save_pieces(store, "run", 1, pieces, {"extra/step": 5}))
    export_dcp(checkpoint, tmp_path / "dcp")
    dcp_to_torch_save(tmp_path / "dcp", tmp_path / "all.pt")
    loaded = flat(torch.load(tmp_path / "all.pt", weights_only=True))
    assert loaded.pop("extra/step") == 5
    assert {n: described(t) for n, t in loaded.items()} == contents(checkpoint)


def test_dcp_there_and_back(full: Checkpoint, store: Store, tmp_path: Path) -> None:
    export_dcp(full, tmp_path / "dcp")
    told: list[int] = []
    again = opened(store, import_dcp(tmp_path / "dcp", store, "other", 1, on_bytes=told.append))
    assert contents(again) == contents(full)
    assert again.values() == full.values()
    assert sum(told) == sum(len(raw) for _, _, raw in contents(full).values())


def test_what_dcp_saved_comes_in(store: Store, tmp_path: Path) -> None:
    state = nested()
    dcp_save(state, checkpoint_id=tmp_path / "dcp")
    checkpoint = opened(store, import_dcp(tmp_path / "dcp", store, "run", 12))
    assert contents(checkpoint) == {
        "model/w.0": described(state["model"]["w.0"]),
        "model/b": described(state["model"]["b"]),
        "optim/state/0": described(state["optim"]["state"][0]),
        "optim/state/1/step": described(state["optim"]["state"][1]["step"]),
        "e": described(state["e"]),
    }
    assert checkpoint.values() == {"optim/lr": 1e-3, "step": 12}


def test_a_flat_dcp_state_becomes_one_item(store: Store, tmp_path: Path) -> None:
    state = {"layers.0.w": torch.randn(3, 4), "norm": torch.randn(5), "step": 3}
    dcp_save(state, checkpoint_id=tmp_path / "dcp")
    checkpoint = opened(store, import_dcp(tmp_path / "dcp", store, "run", 3, item="model"))
    assert checkpoint.items == ["model", "step"]
    assert set(checkpoint.tensors()) == {"model/layers.0.w", "model/norm"}


def test_dcp_on_a_store_by_one_process(store: Store, tmp_path: Path) -> None:
    flat_state: dict[str, Any] = {"layers.0.w": torch.randn(70, 30), "b": torch.randn(3), "step": 4}
    dcp_save(flat_state, storage_writer=StoreWriter(store, "flat", 4, item="model"))
    (found,) = committed(store, "flat")[0]
    assert list(found.document.items) == ["model", "step"]
    state: dict[str, Any] = {n: torch.zeros_like(t) for n, t in flat_state.items() if n != "step"}
    state["step"] = 0
    dcp_load(state, storage_reader=StoreReader(store, "flat", item="model"))
    assert state.pop("step") == 4
    assert {n: described(t) for n, t in state.items()} == {
        n: described(t) for n, t in flat_state.items() if n != "step"
    }
    double = {"b": torch.zeros(3, dtype=torch.float64)}
    dcp_load(double, storage_reader=StoreReader(store, "flat", 4, item="model"))
    assert torch.equal(double["b"], flat_state["b"].double())


def test_dcp_on_a_store_of_every_dtype(full: Checkpoint, store: Store) -> None:
    wanted = contents(full)
    state: dict[str, Any] = {}
    for name, (dtype, shape, raw) in wanted.items():
        item, _, key = name.partition("/")
        data = np.frombuffer(raw, element(dtype).bits).reshape(shape)
        state.setdefault(item, {})[key] = tensor_of(data, dtype)
    dcp_save(state, storage_writer=StoreWriter(store, "all", 1))
    assert contents(opened(store, committed(store, "all")[0][0].stored.save)) == wanted
    empty = empty_like(wanted)
    dcp_load(empty, storage_reader=StoreReader(store, "all"))
    assert {n: described(t) for n, t in flat(empty).items()} == wanted


def test_dcp_on_a_store_says_what_is_wrong(store: Store) -> None:
    writer = StoreWriter(store, "run", 4)
    with pytest.raises(CheckpointException, match=r"cannot save builtins\.slice"):
        dcp_save({"a": {"x": slice(1), "w": torch.ones(2)}}, storage_writer=writer)
    writer.close()
    with pytest.raises(ValueError, match="leave it out"):
        dcp_save({"w": torch.ones(2)}, storage_writer=writer, checkpoint_id="here")
    with pytest.raises(
        FileNotFoundError, match=r"no readable checkpoint of step 9; it has .* none"
    ):
        StoreReader(store, "run", 9)
    assert store.storage.list("leases/") == []
