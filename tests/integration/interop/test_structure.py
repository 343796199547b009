"""Lists stay lists, and dicts dicts, where torch makes up a state from what a store says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.checkpoint.storage import StorageReader

from checkpointing import Checkpointer, Store
from checkpointing.format.values.branch_kinds import RECORD
from checkpointing.interop.dcp import StoreReader, StoreWriter, export_dcp, import_dcp
from checkpointing.interop.piece_import import save_pieces
from checkpointing.interop.torch_save.file_export import export_torch
from checkpointing.store.catalog import newest_first
from checkpointing.store.checkpoint import Checkpoint
from tests.integration.interop.interop_checkpoints import bits, opened, piece
from tests.integration.rank_worlds import run_world

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is:UserWarning")


def one(value: float) -> Tensor:
    return torch.full((2, 3), value)


def optimizer_state() -> dict[str, Any]:
    parameters = [torch.nn.Parameter(one(0.5)), torch.nn.Parameter(one(1.5))]
    optimizer = torch.optim.AdamW(parameters, lr=torch.tensor(0.1))
    (parameters[0] * parameters[1]).sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return optimizer.state_dict()


PLAIN: dict[str, Any] = {
    "tensors": [one(1), one(2)],
    "many": [one(place) for place in range(12)],
    "mixed": [one(3), 4, "five", None, [6, 7], (8, 9)],
    "deep": {"a": [{"b": [one(1), {"c": [one(2)]}]}, {"b": [one(3)]}]},
    "values": [1, [2, {"x": [3]}]],
    "empty": {"list": [], "tuple": (), "in": [[], one(1), []]},
    "tuple": (1, (2, "x")),
    "groups": [{"params": ["a"], "lr": 0.1}, {"params": ["b"], "lr": torch.tensor(0.2)}],
    "odd": {"1": one(1), "2": one(2)},
    "a/b": {"~": [one(1)]},
}
DICTS: dict[str, Any] = {
    "texts": {"0": one(1), "1": one(2)},
    "numbers": {0: one(1), 1: {"x": one(2)}, 2: 3},
    "one": {"0": [one(1), {"0": one(2)}]},
    "state": {"state": [one(1), one(2)], "param_groups": [{"lr": 0.1}]},
}


def of_torch(state: dict[str, Any], folder: Path) -> Any:
    """What torch makes of what torch itself saved."""
    dcp_save(state, checkpoint_id=folder)
    return rebuilt(FileSystemReader(folder))


def rebuilt(reader: StorageReader) -> Any:
    return _load_state_dict_from_keys(storage_reader=reader)


def converted(folder: Path) -> Any:
    dcp_to_torch_save(folder, folder / "all.pt")
    return torch.load(folder / "all.pt", weights_only=True)


def assert_same(found: Any, wanted: Any, at: str = "state") -> None:
    assert type(found) is type(wanted), at
    if isinstance(wanted, Tensor):
        assert torch.equal(found, wanted), at
    elif isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), at
        for key in wanted:
            assert_same(found[key], wanted[key], f"{at}/{key}")
    elif isinstance(wanted, list | tuple):
        assert len(found) == len(wanted), at
        for place, (mine, theirs) in enumerate(zip(found, wanted, strict=True)):
            assert_same(mine, theirs, f"{at}/{place}")
    else:
        assert found == wanted, at


def save(root: Path, state: dict[str, Any]) -> None:
    """By our own Checkpointer."""
    checkpointer = Checkpointer(root, run="run")
    checkpointer.save(1, state)
    checkpointer.wait()
    checkpointer.close()


def newest(store: Store, run: str) -> Checkpoint:
    return Checkpoint(store, newest_first(store, run)[0].stored)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


def test_what_dcp_saved_to_a_store_is_rebuilt_as_torch_does(store: Store, tmp_path: Path) -> None:
    state = PLAIN | DICTS | {"optim": optimizer_state()}
    wanted = of_torch(state, tmp_path / "torch")
    dcp_save(state, storage_writer=StoreWriter(store, "run", 1))
    assert_same_places(StoreReader(store, "run"), FileSystemReader(tmp_path / "torch"))
    assert_same(rebuilt(StoreReader(store, "run")), wanted)
    keys = {"optim.param_groups", "deep"}
    some = _load_state_dict_from_keys(keys, storage_reader=StoreReader(store, "run"))
    assert_same(some["optim"]["param_groups"], wanted["optim"]["param_groups"])
    assert_same(some["deep"], wanted["deep"])
    export_dcp(newest(store, "run"), tmp_path / "exported")
    assert_same(converted(tmp_path / "exported"), converted(tmp_path / "torch"))
    loaded = {"texts": {"0": one(0), "1": one(0)}, "mixed": [one(0), 0, "", 1, [], ()]}
    dcp_load(loaded, storage_reader=StoreReader(store, "run"))
    assert_same(loaded, {name: state[name] for name in loaded})


def assert_same_places(mine: StorageReader, theirs: StorageReader) -> None:
    found, wanted = mine.read_metadata(), theirs.read_metadata()
    assert found.planner_data == wanted.planner_data
    assert found.state_dict_metadata.keys() == wanted.state_dict_metadata.keys()


def test_a_list_with_nothing_at_a_place(store: Store, tmp_path: Path) -> None:
    """torch itself cannot rebuild it, but says of the other places that they are of a list."""
    state = {"holes": [{}, one(1)]}
    dcp_save(state, checkpoint_id=tmp_path / "torch")
    dcp_save(state, storage_writer=StoreWriter(store, "run", 1))
    assert_same_places(StoreReader(store, "run"), FileSystemReader(tmp_path / "torch"))


def test_a_folder_comes_in_and_goes_out_with_its_lists(store: Store, tmp_path: Path) -> None:
    state = PLAIN | DICTS | {"optim": optimizer_state()}
    wanted = of_torch(state, tmp_path / "torch")
    checkpoint = opened(store, import_dcp(tmp_path / "torch", store, "run", 1))
    assert_same(rebuilt(StoreReader(store, "run")), wanted)
    export_dcp(checkpoint, tmp_path / "exported")
    assert_same(rebuilt(FileSystemReader(tmp_path / "exported")), wanted)
    export_dcp(checkpoint, tmp_path / "some", items=["numbers", "tensors"])
    some = rebuilt(FileSystemReader(tmp_path / "some"))
    assert_same(some, {name: wanted[name] for name in ("numbers", "tensors")})


def test_what_a_checkpointer_saved_has_its_lists(store: Store, tmp_path: Path) -> None:
    state = {name: thing for name, thing in PLAIN.items() if name != "empty"}
    state |= {"empty": {"list": [], "in": [[], one(1), []]}, "held": {"optim": optimizer_state()}}
    save(tmp_path / "store", state)
    wanted = of_torch(state, tmp_path / "torch")
    assert_same(rebuilt(StoreReader(store, "run")), wanted)
    export_dcp(newest(store, "run"), tmp_path / "exported")
    assert_same(rebuilt(FileSystemReader(tmp_path / "exported")), wanted)


class Factors(torch.optim.SGD):
    """An optimizer with containers of tensors in its state."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                factors = {0: one(3), 1: one(4)}
                self.state[parameter] |= {"list": [one(1), one(2)], "dict": factors}


def test_containers_of_an_optimizer_are_what_they_were(store: Store, tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    optimizer = Factors(model.parameters(), lr=0.1)
    optimizer.step()
    save(tmp_path / "store", {"model": model, "optimizer": optimizer})
    found = rebuilt(StoreReader(store, "run"))["optimizer"]
    assert_same(found["state.weight.list"], [one(1), one(2)])
    assert_same(found["state.weight.dict"], {"0": one(3), "1": one(4)})


def test_the_record_is_there_only_where_it_is_needed(store: Store, tmp_path: Path) -> None:
    state = PLAIN | {"optim": optimizer_state()}
    dcp_save(state, storage_writer=StoreWriter(store, "plain", 1))
    assert RECORD not in newest(store, "plain").values()
    dcp_save(DICTS, storage_writer=StoreWriter(store, "dicts", 1))
    checkpoint = newest(store, "dicts")
    assert RECORD in checkpoint.values()
    export_torch(checkpoint, tmp_path / "all.pt")
    assert torch.load(tmp_path / "all.pt", weights_only=True).keys() == DICTS.keys()
    with pytest.raises(CheckpointException, match="hpckit reserves the name; rename it"):
        dcp_save({RECORD: 1}, storage_writer=StoreWriter(store, "taken", 1))


def test_a_flat_state_with_numbers_for_names(store: Store, tmp_path: Path) -> None:
    state = {"0": one(1), "1": one(2), "2": [one(3)]}
    wanted = of_torch(state, tmp_path / "torch")
    dcp_save(state, storage_writer=StoreWriter(store, "run", 1, item="model"))
    assert_same(rebuilt(StoreReader(store, "run", item="model")), wanted)
    whole = rebuilt(StoreReader(store, "run"))
    assert_same(whole["model"], {name: wanted[name] for name in ("0", "1")})


def test_a_store_from_before_goes_by_the_names(store: Store) -> None:
    names = ["l/0", "l/1/x", "d/1", "o/state/0/m", "o/param_groups/0/lr", "m/00"]
    pieces = [piece(n, "float32", bits("float32", (2,), 1)) for n in names]
    save_pieces(store, "run", 1, pieces, {"l/2": 5})
    data = StoreReader(store, "run").read_metadata().planner_data
    paths = {("l", 0), ("l", 1, "x"), ("l", 2), ("d", "1"), ("o", "state", "0", "m"), ("m", "00")}
    assert set(data.values()) == paths | {("o", "param_groups", 0, "lr")}


def sharded_optimizers(rank: int, tmp: Path) -> list[Any]:
    """What torch makes of the optimizer in a folder of its own, and in a store."""
    store = Store.open(tmp / "store")
    model = {"a": one(1), "b": one(2)}
    state = {
        "model": model,
        "optim": {
            "state": {name: {"exp": one(3), "step": torch.tensor(1.0)} for name in model},
            "param_groups": [{"params": [*model], "lr": 0.1}],
            "numbers": {0: one(4), 1: one(5)},
        },
    }
    dcp_save(state, checkpoint_id=tmp / "torch")
    dcp_save(state, storage_writer=StoreWriter(store, "run", 1))
    dist.barrier()
    readers = [FileSystemReader(tmp / "torch"), StoreReader(store, "run")]
    return [described(load_sharded_optimizer_state_dict(model, "optim", r)) for r in readers]


def described(thing: Any) -> Any:
    """The same with shards as lists of numbers: plain data."""
    if isinstance(thing, dict):
        return {key: described(inner) for key, inner in thing.items()}
    if isinstance(thing, list):
        return [described(inner) for inner in thing]
    if hasattr(thing, "local_shards"):
        return [(s.metadata.shard_offsets, s.tensor.tolist()) for s in thing.local_shards()]
    return thing.tolist() if isinstance(thing, Tensor) else thing


def test_the_optimizer_of_fsdp_is_rebuilt_on_two_ranks(store: Store, tmp_path: Path) -> None:
    for theirs, mine in run_world(2, sharded_optimizers, tmp_path):
        assert mine == theirs
        assert mine["optim"]["param_groups"] == [{"params": ["a", "b"], "lr": 0.1}]
        assert mine["optim"]["numbers"].keys() == {"0", "1"}
