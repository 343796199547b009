"""What released versions wrote is read by this one, bit for bit, and by the page of the format."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load

from checkpointing import Checkpointer, Store
from checkpointing.format.values.json_values import decode
from checkpointing.interop.dcp import StoreReader
from checkpointing.state.item_adapters import to_save
from checkpointing.store.catalog import committed, newest_first
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.inspection.integrity_check import verify
from checkpointing.store.pins_and_labels import pins
from tests.unit.checkpointing.format.format_reader import Store as Reader
from tests.unit.checkpointing.released.writing import described, model_and_optimizer

FOLDER = Path(__file__).parent
STORES = sorted(FOLDER.glob("store-*.json"))


@pytest.fixture(params=STORES, ids=lambda path: path.stem)
def released(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """The store of a release in a folder, and what was saved there."""
    held = json.loads(request.param.read_text("utf-8"))
    for name, content in held["files"].items():
        path = tmp_path / "store" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(content))
    return tmp_path / "store", held["saved"]


def test_there_is_a_store_of_each_release() -> None:
    assert [path.name for path in STORES] == ["store-0.1.0.json"]


def test_every_checkpoint_is_read_with_its_bits(released: tuple[Path, dict[str, Any]]) -> None:
    root, saved = released
    store = Store.open(root)
    seen = {}
    for found in committed(store, None)[0]:
        assert verify(store, found) == []
        checkpoint, save = Checkpoint(store, found.stored), found.stored.save
        specs = checkpoint.tensors()
        tensors = {name: as_tensor(checkpoint.read(name), spec) for name, spec in specs.items()}
        values = {name: decode(value) for name, value in checkpoint.values().items()}
        seen[f"{save.run} {save.step}"] = described(tensors, values)
    assert_same(seen, saved)
    assert [*pins(store, "plain").values()] == ["pinned: für später"]
    store.close()


def as_tensor(raw: Any, spec: Any) -> torch.Tensor:
    data = torch.frombuffer(bytearray(raw.tobytes()) or bytearray(16), dtype=torch.uint8)
    return data[: raw.nbytes].view(getattr(torch, spec.dtype)).reshape(spec.shape)


def assert_same(seen: dict[str, Any], saved: dict[str, Any]) -> None:
    assert seen.keys() == saved.keys()
    for name, its in saved.items():
        assert seen[name]["tensors"] == its["tensors"], name
        assert seen[name]["values"].keys() == its["values"].keys(), name
        for key, value in its["values"].items():
            assert same_text(seen[name]["values"][key], value), (name, key)


def same_text(one: str, other: str) -> bool:
    """Of plain dicts, the order is not stored."""
    return sorted(one) == sorted(other)


def test_the_page_says_what_they_are(released: tuple[Path, dict[str, Any]]) -> None:
    root, saved = released
    reader = Reader(root)
    assert reader.verify() == []
    seen = {}
    for run in reader.runs():
        for one in reader.checkpoints(run):
            tensors = {name: as_tensor(one.load(name), its) for name, its in one.tensors.items()}
            seen[f"{run} {one.header['step']}"] = described(tensors, one.values)
    assert_same(seen, saved)
    codecs = {
        chunk.codec
        for one in (c for run in reader.runs() for c in reader.checkpoints(run))
        for tensor in one.tensors.values()
        for chunk in tensor.all_chunks()
    }
    assert codecs == {*range(7)}


@pytest.mark.parametrize("run", ["optimizer", "before"])
def test_programs_go_on_from_them(released: tuple[Path, dict[str, Any]], run: str) -> None:
    root, saved = released
    state = model_and_optimizer()
    checkpointer = Checkpointer(root, run=run)
    assert checkpointer.restore(state) == 2
    wanted = saved["optimizer 2"]["tensors"]
    leaves = to_save(state)
    assert described(leaves.tensors, {})["tensors"] == wanted
    values = {name: repr(decode(one)) for name, one in leaves.values.items()}
    for name, value in saved[f"{run} 2"]["values"].items():
        assert values[name] == value, name
    checkpointer.save(3, state)  # on top of what is there
    checkpointer.wait()
    checkpointer.close()
    other = model_and_optimizer()
    for parameter in other["model"].parameters():
        torch.nn.init.zeros_(parameter)
    checkpointer = Checkpointer(root, run=run)
    assert checkpointer.restore(other) == 3
    checkpointer.close()
    assert described(to_save(other).tensors, {})["tensors"] == wanted


@pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")
def test_dcp_loads_them(released: tuple[Path, dict[str, Any]]) -> None:
    store = Store.open(released[0])
    state: dict[str, Any] = {"model": {"w": torch.zeros(3, 4), "list": [torch.zeros(2), {"u": 0}]}}
    dcp_load(state, storage_reader=StoreReader(store, "dcp"), no_dist=True)
    assert torch.equal(state["model"]["w"], torch.arange(12.0).view(3, 4))
    assert state["model"]["list"][1]["u"] == 2
    metadata = StoreReader(store, "dcp").read_metadata()
    assert metadata.planner_data["numbers.0"] == ("numbers", "0")
    assert newest_first(store, "dcp")
    store.close()
