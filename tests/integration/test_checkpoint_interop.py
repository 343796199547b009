"""Checkpoints to and from others' formats, by others' own libraries: bit for bit, nothing run."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import safetensors
import safetensors.torch
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from checkpointing import CheckpointError, DamagedError, FormatError, SaveError, Store
from checkpointing.format.elements import element
from checkpointing.format.names import Save
from checkpointing.interop.dcp import StoreReader, StoreWriter, export_dcp, import_dcp
from checkpointing.interop.importing import save_pieces
from checkpointing.interop.safetensors import export_safetensors, import_safetensors
from checkpointing.interop.torch_file import export_torch
from checkpointing.store.catalog import committed
from checkpointing.store.checkpoint import Checkpoint
from checkpointing.store.verify import verify
from checkpointing.store.writer import Piece
from checkpointing.values import encode
from tests.integration.test_checkpoint_ranks import run_world

COMMON = ["float16", "bfloat16", "float32", "float64", "int8", "uint8", "bool", "int16", "uint16"]
COMMON += ["int32", "uint32", "int64", "uint64", "complex64", "float8_e4m3fn", "float8_e5m2"]
COMMON += ["float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"]
TORCH_ONLY = ["complex32", "complex128"]
SHAPES = {"scalar": (), "none": (0, 4), "odd": (3, 5), "tiled": (300, 301), "cube": (3, 130, 260)}
VALUES = {"step": 7, "loss": float("nan"), "betas": (0.9, 0.95), "names": ["a", {"b": None}]}


def bits(dtype: str, shape: tuple[int, ...], seed: int) -> NDArray[Any]:
    """Any bits there are: NaNs of all kinds, -0.0, denormals; but bools that are bools."""
    kind = element(dtype)
    count = int(np.prod(shape)) * kind.itemsize
    raw = np.random.default_rng(seed).integers(0, 2 if dtype == "bool" else 256, count, np.uint8)
    return np.frombuffer(raw.tobytes(), kind.bits).reshape(shape)


def piece(name: str, dtype: str, data: NDArray[Any]) -> Piece:
    return Piece(name, dtype, data.shape, (0,) * data.ndim, data)


def everything() -> list[Piece]:
    found = []
    for i, dtype in enumerate([*COMMON, *TORCH_ONLY]):
        item = "odd" if dtype in TORCH_ONLY else "model"
        for j, (kind, shape) in enumerate(SHAPES.items()):
            if (dtype == "float4_e2m1fn_x2" and not shape) or (j > 2 and i % 3):
                continue
            name = f"{item}/layers.{i}.{kind}.{dtype}"
            found.append(piece(name, dtype, bits(dtype, shape, 10 * i + j)))
    return found


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """A checkpoint with tensors of every dtype and many shapes, and values."""
    store = Store.open(tmp_path_factory.mktemp("full") / "store", create=True)
    values = {f"extra/{name}": encode(value, name) for name, value in VALUES.items()}
    return opened(store, save_pieces(store, "run", 7, everything(), values))


def opened(store: Store, save: Save) -> Checkpoint:
    found = next(f for f in committed(store, save.run)[0] if f.stored.save == save)
    assert verify(store, found) == []
    return Checkpoint(store, found.stored)


def contents(checkpoint: Checkpoint) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {
        name: (spec.dtype, spec.shape, checkpoint.read(name).tobytes())
        for name, spec in checkpoint.tensors().items()
    }


def described(tensor: Tensor) -> tuple[str, tuple[int, ...], bytes]:
    raw = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), raw


def tensor_of(data: NDArray[Any], dtype: str) -> Tensor:
    raw = torch.from_numpy(np.frombuffer(bytearray(data.tobytes()), np.uint8))
    return raw.view(getattr(torch, dtype)).reshape(data.shape)


# --- safetensors


def of_item(checkpoint: Checkpoint, item: str) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """By the names without the item."""
    prefix = f"{item}/"
    return {n.removeprefix(prefix): c for n, c in contents(checkpoint).items() if prefix in n}


def raw_of(path: Path) -> dict[str, bytes]:
    """The tensors' bytes by the library's own parser."""
    return {
        name: bytes(entry["data"]) for name, entry in safetensors.deserialize(path.read_bytes())
    }


def test_safetensors_are_what_the_library_reads(full: Checkpoint, tmp_path: Path) -> None:
    told: list[int] = []
    paths = export_safetensors(full, tmp_path / "hf", items=["model"], on_bytes=told.append)
    assert [path.name for path in paths] == ["model.safetensors"]
    wanted = of_item(full, "model")
    assert raw_of(paths[0]) == {name: raw for name, (_, _, raw) in wanted.items()}
    assert sum(told) == sum(len(raw) for _, _, raw in wanted.values())
    with safetensors.safe_open(paths[0], "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == set(wanted)
        assert {name: described(file.get_tensor(name)) for name in file.keys()} == wanted  # noqa: SIM118


def test_safetensors_in_shards(full: Checkpoint, tmp_path: Path) -> None:
    size = 300_000
    paths = export_safetensors(full, tmp_path / "hf", items=["model"], max_shard_bytes=size)
    *files, index = paths
    assert len(files) > 2
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    wanted = of_item(full, "model")
    body = json.loads(index.read_text())
    assert body["metadata"] == {"total_size": sum(len(raw) for _, _, raw in wanted.values())}
    found: dict[str, bytes] = {}
    for file in files:
        tensors = raw_of(file)
        assert {body["weight_map"][name] for name in tensors} == {file.name}
        assert len(tensors) == 1 or sum(map(len, tensors.values())) <= size
        found |= tensors
    assert found == {name: raw for name, (_, _, raw) in wanted.items()}
    assert sorted(path.name for path in (tmp_path / "hf").iterdir()) == sorted(
        p.name for p in paths
    )


@pytest.mark.parametrize("shard", [1 << 30, 200_000])
def test_safetensors_there_and_back(
    full: Checkpoint, store: Store, tmp_path: Path, shard: int
) -> None:
    export_safetensors(full, tmp_path / "hf", items=["model"], max_shard_bytes=shard)
    told: list[int] = []
    save = import_safetensors(tmp_path / "hf", store, "other", 3, on_bytes=told.append)
    assert of_item(opened(store, save), "model") == of_item(full, "model")
    assert sum(told) == sum(len(raw) for _, _, raw in of_item(full, "model").values())
    assert store.storage.list("leases/") == []


def test_safetensors_of_the_library_come_in(store: Store, tmp_path: Path) -> None:
    state = {"wte.weight": torch.randn(400, 300).bfloat16(), "a/b~c": torch.arange(7)}
    safetensors.torch.save_file(state, tmp_path / "any.safetensors")
    save = import_safetensors(tmp_path / "any.safetensors", store, "run", 1, item="policy")
    checkpoint = opened(store, save)
    assert set(checkpoint.tensors()) == {"policy/wte.weight", "policy/a~1b~0c"}
    assert contents(checkpoint)["policy/wte.weight"] == described(state["wte.weight"])
    export_safetensors(checkpoint, tmp_path / "hf")
    loaded = safetensors.torch.load_file(tmp_path / "hf" / "model.safetensors")
    assert {n: described(t) for n, t in loaded.items()} == {
        n: described(t) for n, t in state.items()
    }


def test_safetensors_of_several_items_keep_their_names(store: Store, tmp_path: Path) -> None:
    data = bits("float32", (4,), 1)
    pieces = [piece(name, "float32", data) for name in ("model/w", "optimizer/state.w", "alone")]
    checkpoint = opened(store, save_pieces(store, "run", 1, pieces, {}))
    (path,) = export_safetensors(checkpoint, tmp_path / "hf")
    assert set(raw_of(path)) == {"model.w", "optimizer.state.w", "alone"}


def test_safetensors_says_what_it_cannot_hold(
    full: Checkpoint, store: Store, tmp_path: Path
) -> None:
    with pytest.raises(FormatError, match=r"no dtype for 'layers.21.*complex128"):
        export_safetensors(full, tmp_path / "hf", items=["odd"])
    with pytest.raises(FormatError, match="has no tensors in"):
        export_safetensors(full, tmp_path / "hf", items=["extra"])
    with pytest.raises(KeyError, match="has no item 'nothing'"):
        export_safetensors(full, tmp_path / "hf", items=["nothing"])
    data = bits("float32", (4,), 1)
    both = [piece("model/a.b", "float32", data), piece("model/a/b", "float32", data)]
    checkpoint = opened(store, save_pieces(store, "run", 1, both, {}))
    with pytest.raises(FormatError, match=r"would both be named 'a\.b'"):
        export_safetensors(checkpoint, tmp_path / "hf")
    assert not list(tmp_path.glob("hf/*"))


def test_an_export_never_mixes_with_another(full: Checkpoint, tmp_path: Path) -> None:
    export_safetensors(full, tmp_path / "hf", items=["model"])
    with pytest.raises(FileExistsError, match="would mix with the export"):
        export_safetensors(full, tmp_path / "hf", items=["model"], max_shard_bytes=300_000)


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


def file_of(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def one(dtype: object, shape: object, offsets: object) -> dict[str, object]:
    return {"w": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "ends at byte 0"),
    "a header longer than the file": (file_of({}, length=1 << 40), "states a header"),
    "no JSON": (file_of(b"{]"), "not JSON"),
    "no object": (file_of([]), "not a JSON object"),
    "deep": (file_of(b"[" * 100_000), "not JSON"),
    "a name twice": (file_of(b'{"w":{},"w":{}}'), "a name is there twice"),
    "a lone surrogate": (file_of(b'{"\\ud800":{}}'), "not JSON"),
    "metadata of numbers": (file_of({"__metadata__": {"a": 1}}), "not texts by name"),
    "unknown dtype": (file_of(one("F6_E2M3", [4], [0, 3])), "has dtype 'F6_E2M3'"),
    "half a byte": (file_of(one("F4", [3], [0, 2]), bytes(2)), "no whole bytes"),
    "negative shape": (file_of(one("U8", [-4], [0, 4]), bytes(4)), "'shape'"),
    "fractional shape": (file_of(one("U8", [4.0], [0, 4]), bytes(4)), "'shape'"),
    "huge shape": (file_of(one("U8", [1 << 40, 1 << 40], [0, 4]), bytes(4)), "impossible shape"),
    "huge empty shape": (file_of(one("U8", [0, 1 << 62], [0, 0])), "impossible shape"),
    "many dimensions": (file_of(one("U8", [1] * 65, [0, 1]), bytes(1)), "impossible shape"),
    "wrong size": (file_of(one("F32", [4], [0, 4]), bytes(4)), "lies at bytes"),
    "one offset": (file_of(one("U8", [0], [0])), "lies at bytes"),
    "backwards": (file_of(one("U8", [4], [4, 0]), bytes(4)), "lies at bytes"),
    "a gap": (file_of(one("U8", [4], [4, 8]), bytes(8)), "begins at byte 4 instead of 0"),
    "outside": (file_of(one("U8", [4], [0, 4])), "0 bytes of tensors instead of 4"),
    "more behind": (file_of(one("U8", [4], [0, 4]), bytes(5)), "5 bytes of tensors instead of 4"),
    "overlap": (
        file_of({**one("U8", [4], [0, 4]), "v": one("U8", [4], [2, 6])["w"]}, bytes(6)),
        "begins at byte 2 instead of 4",
    ),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_safetensors_are_refused(store: Store, tmp_path: Path, case: str) -> None:
    data, problem = HOSTILE[case]
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises((DamagedError, FormatError), match=problem) as caught:
        import_safetensors(path, store, "run", 1)
    assert str(path) in str(caught.value)
    assert committed(store)[0] == []
    assert store.storage.list("packs/") == []


@pytest.mark.parametrize(
    ("places", "problem"),
    [
        ({"w": "../x.safetensors"}, "no .safetensors file of this folder"),
        ({"w": "/etc/passwd"}, "no .safetensors file of this folder"),
        ({"w": 7}, "no .safetensors file of this folder"),
        ({"w": "x.safetensors", "v": "x.safetensors"}, "do not agree on 1 tensors, such as 'v'"),
        ({"v": "x.safetensors"}, "do not agree on 2 tensors"),
    ],
)
def test_an_index_is_not_trusted(
    store: Store, tmp_path: Path, places: Mapping[str, object], problem: str
) -> None:
    (tmp_path / "x.safetensors").write_bytes(file_of(one("U8", [4], [0, 4]), bytes(4)))
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    for path in (tmp_path, index):
        with pytest.raises(DamagedError, match=problem):
            import_safetensors(path, store, "run", 1)


def test_several_files_without_an_index_are_not_guessed(store: Store, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"has no \.safetensors file"):
        import_safetensors(tmp_path, store, "run", 1)
    for name in ("a", "b"):
        (tmp_path / f"{name}.safetensors").write_bytes(file_of({}))
    with pytest.raises(FormatError, match="no index that says which belong together"):
        import_safetensors(tmp_path, store, "run", 1)


# --- torch.save files


def flat(tree: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, thing in tree.items():
        name = f"{path}/{key}" if path else key
        found |= flat(thing, name) if isinstance(thing, dict) else {name: thing}
    return found


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
    with pytest.raises(FileExistsError, match="is there already"):
        export_torch(checkpoint, tmp_path / "all.pt")


def test_a_torch_file_of_clashing_names_is_refused(store: Store, tmp_path: Path) -> None:
    pieces = [piece(n, "float32", bits("float32", (2,), 1)) for n in ("a/x", "a/x/y")]
    checkpoint = opened(store, save_pieces(store, "run", 1, pieces, {}))
    with pytest.raises(FormatError, match="part of its name is taken"):
        export_torch(checkpoint, tmp_path / "out" / "all.pt")
    assert list((tmp_path / "out").iterdir()) == []


# --- torch.distributed.checkpoint

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


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


def nested() -> dict[str, Any]:
    torch.manual_seed(3)
    return {
        "model": {"w.0": torch.randn(300, 400), "b": torch.randn(7).bfloat16()},
        "optim": {"state": [torch.randn(4), {"step": torch.tensor(3.0)}], "lr": 1e-3},
        "step": 12,
        "e": torch.empty(0, 3),
    }


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


class Exploit:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


class Evil:
    """Sets a state on whatever class it is told."""

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
        setattr(metadata, where, {"w": Exploit(canary), **{"v": Evil()}})
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps(metadata, protocol))
        with pytest.raises(FormatError, match=r"mentions (posix|nt)\.mkdir.*nothing of it was run"):
            import_dcp(tmp_path / "dcp", store, "run", 1)
    assert not canary.exists()
    pickle.loads(pickle.dumps(Exploit(canary)))
    assert canary.exists()  # it would have worked
    assert committed(store)[0] == []


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        (b"", "no whole pickle"),
        (b"\x80\x04", "no whole pickle"),
        (b"\x80\x04.", "no whole pickle"),
        (b"\x80\x04(.", "no whole pickle"),
        (b"\x80\x04h\x05.", "no whole pickle"),
        (b"\x80\x04]K\x01K\x02s.", "no whole pickle"),
        (b"\x80\x04}]K\x01s.", "no whole pickle"),
        (b"\x80\x04K\x01)R.", "no whole pickle"),
        (b"\x80\x04K\x01}b.", "no whole pickle"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", "no whole pickle"),
        (b"cos\nsystem\n(S'true'\ntR.", "mentions os.system"),
        (b"ctorch.distributed.checkpoint.metadata\nMetadata.mro\n.", "mentions torch"),
        (b"ctorch\nload\n.", "mentions torch.load"),
        (b"(S'true'\nios\nsystem\n.", "instruction (STRING|INST) is not allowed"),
        (b"\x80\x02\x82\x01.", "instruction EXT1 is not allowed"),
        (b"Ppersistent\n.", "instruction PERSID is not allowed"),
        (b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.", "no whole pickle|not allowed"),
        (b"\x80\x04K\x01r\xff\xff\xff\xff.", "Metadata is not what it should be"),
        (b"\x80\x04}.", "Metadata is not what it should be"),
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
        (_elsewhere, "a file's name is not what it should be: '../outside'"),
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
    with pytest.raises(FileNotFoundError, match=r"no checkpoint of torch\.distributed"):
        import_dcp(tmp_path, store, "run", 1)
    dcp_save({"a": {"w": torch.ones(2), "data": b"pickled"}}, checkpoint_id=tmp_path / "dcp")
    with pytest.raises(FormatError, match=r"'a\.data'.*cannot save builtins\.bytes"):
        import_dcp(tmp_path / "dcp", store, "run", 1)


WHOLE = {"w": (64, 48), "v": (13,), "cube": (5, 9, 6), "one": (1, 4)}


def whole_state() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(11)
    return {name: torch.randn(shape, generator=generator) for name, shape in WHOLE.items()}


def sharded(placements: Mapping[str, Any], fill: bool) -> dict[str, Any]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    state: dict[str, Any] = {}
    for name, tensor in whole_state().items():
        start = tensor if fill else torch.zeros_like(tensor)
        state[name] = distribute_tensor(start, mesh, [placements[name]])
    return {"model": state, "step": 5 if fill else 0}


ROWS = {"w": Shard(0), "v": Shard(0), "cube": Shard(0), "one": Shard(0)}
COLUMNS = {"w": Shard(1), "v": Replicate(), "cube": Shard(2), "one": Replicate()}


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model under FSDP, one step old; its sides divide by no number of ranks."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(31, 17), nn.Linear(17, 1))
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(3, 31)).sum().backward()
    optimizer.step()
    return model, optimizer


def fsdp_state() -> dict[str, Any]:
    model, optimizer = trained()
    flat_names = StateDictOptions(flatten_optimizer_state_dict=True)
    optim = get_optimizer_state_dict(model, optimizer, options=flat_names)
    return {"model": get_model_state_dict(model), "optim": optim, "step": 5}


def save_by_dcp(rank: int, tmp: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    state = fsdp_state()
    dcp_save(state, checkpoint_id=tmp / "dcp")
    return gathered(state)


def load_by_dcp(rank: int, tmp: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    state = fsdp_state()
    for thing in flat(state).values():
        if isinstance(thing, Tensor):
            with torch.no_grad():
                thing.zero_()
    dcp_load(state, checkpoint_id=tmp / "exported")
    return gathered(state)


def gathered(state: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """All tensors, whole, by full name."""
    tensors = {n: t for n, t in flat(state).items() if isinstance(t, Tensor)}
    full = {n: t.full_tensor() if isinstance(t, DTensor) else t for n, t in tensors.items()}
    return {name: described(tensor) for name, tensor in full.items()}


def save_to_store(rank: int, tmp: Path) -> None:
    store = Store.open(tmp / "store")
    dcp_save(sharded(ROWS, fill=True), storage_writer=StoreWriter(store, "dcp", 5))


def load_from_store(rank: int, tmp: Path) -> Any:
    state = sharded(COLUMNS, fill=False)
    dcp_load(state, storage_reader=StoreReader(Store.open(tmp / "store"), "dcp", 5))
    assert state.pop("step") == 5
    return gathered(state)


def fail_on_rank_1(rank: int, tmp: Path) -> str:
    store = Store.open(tmp / "store")
    writer = StoreWriter(store, "dcp", 6)
    state = sharded(ROWS, fill=True)
    if rank == 1:
        mock.patch.object(writer, "write_data", broken).start()
    try:
        dcp_save(state, storage_writer=writer)
    except CheckpointException as error:
        writer.close()
        return str(error)
    return "saved"


def broken(*_: object) -> Any:
    raise SaveError("the disk of rank 1 is gone")


def wanted_state() -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {f"model/{name}": described(tensor) for name, tensor in whole_state().items()}


def test_two_ranks_of_fsdp_come_in_and_go_out(store: Store, tmp_path: Path) -> None:
    wanted = run_world(2, save_by_dcp, tmp_path)[0]
    assert "optim/state.0.weight.exp_avg" in wanted
    checkpoint = opened(store, import_dcp(tmp_path / "dcp", store, "run", 5))
    assert contents(checkpoint) == wanted
    assert checkpoint.values()["step"] == 5
    export_dcp(checkpoint, tmp_path / "exported")
    for loaded in run_world(2, load_by_dcp, tmp_path):
        assert loaded == wanted


def test_two_ranks_of_dcp_save_to_and_load_from_a_store(store: Store, tmp_path: Path) -> None:
    run_world(2, save_to_store, tmp_path)
    (found,) = committed(store, "dcp")[0]
    assert found.document.header.world_size == 2
    checkpoint = opened(store, found.stored.save)
    assert contents(checkpoint) == wanted_state()
    assert checkpoint.values() == {"step": 5}
    assert store.storage.list("leases/") == []
    assert [e.key for e in store.storage.list("runs/") if "/parts/" in e.key] == []
    for loaded in run_world(2, load_from_store, tmp_path):
        assert loaded == wanted_state()
    answers = run_world(2, fail_on_rank_1, tmp_path)
    assert all("the disk of rank 1 is gone" in answer for answer in answers)
    assert [f.stored.save.step for f in committed(store, "dcp")[0]] == [5]
    assert store.storage.list("leases/") == []


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
    with pytest.raises(CheckpointException, match=r"cannot save builtins\.bytes"):
        dcp_save({"a": {"x": b"raw", "w": torch.ones(2)}}, storage_writer=writer)
    writer.close()
    with pytest.raises(ValueError, match="leave it out"):
        dcp_save({"w": torch.ones(2)}, storage_writer=writer, checkpoint_id="here")
    with pytest.raises(
        FileNotFoundError, match=r"no readable checkpoint of step 9; it has .* none"
    ):
        StoreReader(store, "run", 9)
    assert store.storage.list("leases/") == []
