"""Checkpoints to and from safetensors, by Hugging Face's own library: bit for bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

from checkpointing import DamagedError, FormatError, Store
from checkpointing.interop.piece_import import save_pieces
from checkpointing.interop.safetensors.model_files import export_safetensors, import_safetensors
from checkpointing.store.catalog import committed
from checkpointing.store.checkpoint import Checkpoint
from tests.integration.interop.interop_checkpoints import (
    bits,
    contents,
    described,
    everything_saved,
    opened,
    piece,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store", create=True)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return everything_saved(tmp_path_factory.mktemp("full"))


def of_item(checkpoint: Checkpoint, item: str) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """By the names without the item."""
    prefix = f"{item}/"
    return {n.removeprefix(prefix): c for n, c in contents(checkpoint).items() if prefix in n}


def raw_of(path: Path) -> dict[str, bytes]:
    """The tensors' bytes by the library's own parser."""
    parsed = safetensors.deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    return {name: bytes(entry["data"]) for name, entry in parsed}


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
    "a name twice": (file_of(b'{"w":{},"w":{}}'), "a name occurs twice"),
    "a lone surrogate": (file_of(b'{"\\ud800":{}}'), "not JSON"),
    "metadata of numbers": (file_of({"__metadata__": {"a": 1}}), "not an object of texts"),
    "unknown dtype": (file_of(one("F6_E2M3", [4], [0, 3])), "has dtype 'F6_E2M3'"),
    "half a byte": (file_of(one("F4", [3], [0, 2]), bytes(2)), "not a whole number of bytes"),
    "negative shape": (file_of(one("U8", [-4], [0, 4]), bytes(4)), "'shape'"),
    "fractional shape": (file_of(one("U8", [4.0], [0, 4]), bytes(4)), "'shape'"),
    "huge shape": (file_of(one("U8", [1 << 40, 1 << 40], [0, 4]), bytes(4)), "impossible shape"),
    "huge empty shape": (file_of(one("U8", [0, 1 << 62], [0, 0])), "impossible shape"),
    "many dimensions": (file_of(one("U8", [1] * 65, [0, 1]), bytes(1)), "impossible shape"),
    "wrong size": (file_of(one("F32", [4], [0, 4]), bytes(4)), "is stored at bytes"),
    "one offset": (file_of(one("U8", [0], [0])), "is stored at bytes"),
    "backwards": (file_of(one("U8", [4], [4, 0]), bytes(4)), "is stored at bytes"),
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
        ({"w": "../x.safetensors"}, "not a .safetensors file of this folder"),
        ({"w": "/etc/passwd"}, "not a .safetensors file of this folder"),
        ({"w": 7}, "not a .safetensors file of this folder"),
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
