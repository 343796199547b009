"""What the page says may be saved comes back as it was, from memory and from a store, by
Checkpointer and by torch's own DCP."""

from __future__ import annotations

import copy
import math
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from checkpointing import Checkpointer, DamagedError, Last, Only, Store, StructureError
from checkpointing.format.values.branch_kinds import RECORD
from checkpointing.interop.dcp import StoreReader, StoreWriter, export_dcp, import_dcp
from checkpointing.store.catalog import newest_first
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.deletion.checkpoint_prune import prune
from tests.effort import times
from tests.integration.checkpoint.single_process_saves import die, restore_one, save_one
from tests.unit.checkpointing.plain import TREES, Frozen, Point, Progress, same
from tests.unit.checkpointing.state.test_state_round_trip import Held, other

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")

T = torch.tensor([1.5, -0.0, math.nan])
ROWS: dict[str, Any] = {
    "None, bool, int, str": [None, True, 0, -(2**200), "", "ä\0\ud800"],
    "float": [0.0, -0.0, math.inf, -math.inf, math.nan, 5e-324],
    "complex": [1j, complex(-0.0, math.nan)],
    "bytes, bytearray": [b"", b"\0\xff", bytearray(b"x")],
    "list, tuple": [[], (), [1, (2, [3])]],
    "dict": [{}, {"b": 1, "a": 2}, {1: "a", "1": "b", None: 0, (1, 2): {True: 3}}],
    "OrderedDict, Counter": [OrderedDict(b=1, a=2), Counter("abca")],
    "set, frozenset": [set(), {1, "a", (2,)}, frozenset([b"x"])],
    "numpy arrays": [
        np.arange(6, dtype=">i2").reshape(2, 3).T,
        np.array(2.5),
        np.array(["ab", ""]),
    ],
    "numpy scalars": [np.float64(math.nan), np.bool_(True), np.str_("x"), np.datetime64("2026-11")],
    "torch.Size, dtype, device": [torch.Size([2]), torch.bfloat16, torch.device("cuda:1")],
    "declared": [Point(1, (2,)), Progress(1, Frozen(np.zeros(2)))],
    "tensor in a tuple": (T, [T, {"n": 1}]),
    "tensor in a declared class": Progress(1, Point(T, Frozen({"x": T})), [1]),
}
"""Each is a row of the table in checkpointing/README.md."""


@pytest.mark.parametrize("row", list(ROWS))
@pytest.mark.parametrize("memory", [False, True], ids=["store", "memory"])
def test_what_may_be_saved_comes_back(tmp_path: Path, row: str, memory: bool) -> None:
    saved = {"plain": copy.deepcopy(ROWS[row]), "held": Held(ROWS[row])}
    ckpt = Checkpointer(tmp_path, run="r")
    ckpt.save(1, saved)
    ckpt.wait()
    if memory:
        die(ckpt)
    else:
        ckpt.close()
    live = {"plain": other(ROWS[row]), "held": Held(other(ROWS[row]))}
    tiers: list[str] = []
    again = Checkpointer(
        tmp_path, run="r", on_event=lambda kind, **its: tiers.append(its.get("tier", ""))
    )
    assert again.restore(live) == 1
    again.close()
    assert same(live["plain"], ROWS[row])
    assert same(live["held"].state, ROWS[row])
    if memory:
        assert "memory" in tiers


def test_the_page_has_the_rows() -> None:
    page = Path("checkpointing/README.md").read_text(encoding="utf-8")
    table = page.partition("### What may be saved")[2].partition("###")[0]
    cells = [line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ")]
    assert set(ROWS) <= {cell.replace("`", "") for cell in cells}


@settings(max_examples=times(3), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(TREES, min_size=30, max_size=30))
def test_any_values_by_chance(tmp_path_factory: pytest.TempPathFactory, trees: list[Any]) -> None:
    root = tmp_path_factory.mktemp("store")
    save_one(root, 1, {str(at): tree for at, tree in enumerate(trees)})
    live = {str(at): other(tree) for at, tree in enumerate(trees)}
    assert restore_one(root, live) == 1
    assert all(same(live[str(at)], tree) for at, tree in enumerate(trees))


def test_state_that_a_program_makes_later(tmp_path: Path) -> None:
    """What is None or empty when it begins."""
    saved: dict[str, Any] = {
        "ema": T,
        "past": [T, T],
        "held": Held({"average": {"w": T}, "n": 3}),
        "gone": None,
    }
    save_one(tmp_path, 1, saved)
    live: dict[str, Any] = {
        "ema": None,
        "past": [],
        "held": Held({"average": None, "n": 0}),
        "gone": T.clone(),
    }
    assert restore_one(tmp_path, live) == 1
    assert same(live["held"].state, saved["held"].state)
    assert same([live[k] for k in ("ema", "past", "gone")], [T, [T, T], None])


def test_a_list_is_no_dict(tmp_path: Path) -> None:
    save_one(tmp_path, 1, {"l": [T, T], "n": 1})
    live = {"l": {0: torch.zeros(3), 1: torch.zeros(3)}, "n": 0}
    with pytest.raises(
        StructureError, match="'l' is a list in the checkpoint but a dict whose keys are num"
    ):
        restore_one(tmp_path, live)
    assert same(live, {"l": {0: torch.zeros(3), 1: torch.zeros(3)}, "n": 0})


class Statistics(torch.optim.SGD):
    """An optimizer with state under a text."""

    def step(self, closure: Any = None) -> Any:
        state: dict[Any, Any] = self.state
        found = state.setdefault("factors", {"n": 0, "L": []})
        found["n"] += 1
        found["L"] = [torch.full((2,), float(found["n"])), {0: T, 1: (T, "x")}]
        return super().step(closure)


def program(steps: int) -> dict[str, Any]:
    torch.manual_seed(steps)
    model = nn.Linear(3, 2)
    optimizer = Statistics(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(steps):
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


@pytest.mark.parametrize("before", [0, 2])
def test_an_optimizer_with_state_under_a_text(tmp_path: Path, before: int) -> None:
    saved, live = program(3), program(before)
    save_one(tmp_path, 1, saved)
    assert restore_one(tmp_path, live) == 1
    mine, theirs = (one["optimizer"].state_dict()["state"] for one in (live, saved))
    assert same(mine, theirs, ordered=False)
    assert mine["factors"]["n"] == 3
    reader = StoreReader(Store.open(tmp_path), "r")
    rebuilt = _load_state_dict_from_keys(storage_reader=reader)
    found = rebuilt["optimizer"]["own_state.factors"]
    assert same(found["L"][1], {"0": T, "1": [T, "x"]})


def test_kinds_of_branches_stay_when_items_are_taken_out(tmp_path: Path) -> None:
    state = {"a": (T, T), "b": T}
    for step in (1, 2):
        save_one(tmp_path, step, state)
    store = Store.open(tmp_path)
    for _ in range(2):  # the second one finds nothing to do
        prune(store, "r", [Last(1), Only(("a",), Last(2))], grace_s=0)
    reduced = newest_first(store, "r")[1]
    assert (reduced.stored.revision, [*reduced.document.items]) == (1, ["a", RECORD])


# --- by DCP -------------------------------------------------------------------------------------

BY_DCP = {name: value for name, value in ROWS.items() if name != "dict" and "Counter" not in name}
"""Its dicts are taken apart, and come back as the program's."""
# torch itself gives arrays back in the byte order of the machine
BY_DCP["numpy arrays"] = [np.arange(6).reshape(2, 3).T, *ROWS["numpy arrays"][1:]]


def empty(values: dict[str, Any]) -> dict[str, Any]:
    """A state for DCP to load them into: it wants the tensors' places."""
    return {
        name: [None] * len(value) if isinstance(value, list) else None
        for name, value in values.items()
    }


def test_dcp_saves_and_loads_them(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", create=True)
    dcp_save({"s": BY_DCP}, storage_writer=StoreWriter(store, "run", 1))
    live = {"s": empty(BY_DCP)}
    dcp_load(live, storage_reader=StoreReader(store, "run"))
    assert [name for name in BY_DCP if not same(live["s"][name], BY_DCP[name])] == []


def test_a_checkpointers_branches_are_told_to_dcp(tmp_path: Path) -> None:
    tree: dict[str, Any] = {"l": [T, T], "t": (T, T), "n": {0: T, 1: T}, "d": {"0": T, "1": T}}
    tree["one"] = {1: T}
    save_one(tmp_path / "store", 1, {"a": tree})
    store = Store.open(tmp_path / "store")

    def read(reader: Any) -> Any:
        return _load_state_dict_from_keys(storage_reader=reader)["a"]

    wanted = {"l": [T, T], "t": [T, T], "n": {"0": T, "1": T}, "d": {"0": T, "1": T}}
    assert same(read(StoreReader(store, "r")), wanted | {"one": {"1": T}}, ordered=False)
    found = Checkpoint(store, newest_first(store, "r")[0].stored)
    export_dcp(found, tmp_path / "folder")
    assert same(
        read(FileSystemReader(tmp_path / "folder")), wanted | {"one": {"1": T}}, ordered=False
    )


def test_values_of_a_folder_come_in_and_nothing_of_it_runs(tmp_path: Path) -> None:
    store = Store.open(tmp_path / "store", create=True)
    values = {name: value for name, value in BY_DCP.items() if "declared" not in name}
    dcp_save({"s": values}, checkpoint_id=tmp_path / "folder")
    import_dcp(tmp_path / "folder", store, "run", 1)
    live = {"s": empty(values)}
    dcp_load(live, storage_reader=StoreReader(store, "run"))
    assert [name for name in values if not same(live["s"][name], values[name])] == []
    dcp_save({"s": BY_DCP["declared"]}, checkpoint_id=tmp_path / "objects")
    with pytest.raises(DamagedError, match="refuses it, so nothing in it was run"):
        import_dcp(tmp_path / "objects", store, "run", 2)
