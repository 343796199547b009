"""Stores of this package, read by a reader that knows the page alone: checkpointing/FORMAT.md."""

from __future__ import annotations

import ast
import json
import math
import random
import shutil
import struct
import time
import warnings
from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from checkpointing import Checkpointer, Last, Only, Store
from checkpointing.codec import AdaptiveEncoder, Codec, WordLayout, encode
from checkpointing.format import item_table
from checkpointing.format.canonical_json import dump
from checkpointing.format.manifest import ManifestHeader
from checkpointing.format.tiles import tile_shape
from checkpointing.interop.dcp import StoreWriter
from checkpointing.store.deletion.checkpoint_prune import prune
from checkpointing.store.pins_and_labels import pin
from checkpointing.store.sessions.session import Session
from checkpointing.store.write.chunk_encoding import ChunkEncoder
from checkpointing.store.write.chunk_index import RunChunkIndex
from checkpointing.store.write.manifest_commit import commit, write_part
from checkpointing.store.write.part_writer import TensorPiece, WriteOptions, write
from tests.unit.checkpointing.format import format_reader
from tests.unit.checkpointing.format.format_reader import SIZES, Array, Other, decode, keys
from tests.unit.checkpointing.format.format_reader import Store as Reader
from tests.unit.checkpointing.plain import Point, Progress
from tests.unit.checkpointing.released.writing import Always
from tests.unit.checkpointing.store.tensor_checkpoints import make

VALUES: dict[str, Any] = {
    "none": None,
    "bools": [True, False],
    "integers": [0, -1, 2**63, -(2**64), 10**400],
    "floats": [0.0, -0.0, 1.0, 1e-7, 1e16, 5e-324, 1.7976931348623157e308, 0.1],
    "not finite": [math.nan, math.inf, -math.inf],
    "text": 'a "quoted" \\ \t\x00\x7f ö 😀 \ud800 /~',
    "tuples": ((), (1, (2.0, "3")), [(4,)]),
    "dicts": {"a": {}, "": 0, "b/~": {"c": None}},
    "any keys": {1: "a", "1": "b", None: 2.5, (1, 2): {True: "c"}, "$": math.inf},
    "a tag": {"$tuple": [1]},
    "ordered": OrderedDict([("z", 1), ("a", {2: 3})]),
    "counter": Counter("abracadabra"),
    "order": {"b": 1, "a": {"d": 2, "c": 3}},
    "sets": [{1, "a", (2,)}, frozenset([b"x", None]), set()],
    "bytes": [b"", b"\0\xff", bytearray(b"xyz")],
    "complex": [1 + 2j, complex(math.nan, -0.0), complex(-math.inf, 5e-324)],
    "arrays": [np.arange(6, dtype=">i2").reshape(2, 3).T, np.array(1.5), np.zeros((0, 3), "f4")],
    "more arrays": [np.array(["ab", "c"]), np.array([b"x"]), np.array(["2026", "NaT"], "M8[Y]")],
    "scalars": [np.float64(-0.0), np.bool_(True), np.uint64(2**64 - 1), np.datetime64("2026-11")],
    "more scalars": [np.str_("ä\0"), np.bytes_(b"x\0"), np.complex64(1j), np.float16(math.inf)],
    "of torch": [torch.Size([2, 0]), torch.bfloat16, torch.device("cuda:1")],
    "declared": [Point(1, [Progress(2, (3,))])],
}
BRANCHES: dict[str, Any] = {
    "branches": {
        "nested/list": "list",
        "nested/list/1": "numbers",
        "nested/tuple": "tuple",
        "tree": {"class": "Point"},
        "tree/x": "list",
        "tree/x/1": "tuple",
        "tree/y": "numbers",
    },
    "dicts": [],
    "lists": [],
}
STEPS = 4

Kept = tuple[str, tuple[int, ...], bytes]  # dtype, shape, bits
Saved = dict[int, tuple[dict[str, Kept], dict[str, Any]]]  # tensors and values by step


def bits(tensor: Tensor) -> bytes:
    flat = tensor.detach().resolve_conj().contiguous().view(-1)
    return bytes(flat.view(torch.uint8).tolist())


def same(one: object, other: object) -> bool:
    """Equal, of the same types, and the same bits: not a number, and signs of zeros."""
    if isinstance(one, Other) and (known := as_other(other)) is not None:
        return one.tag == known.tag and same(one.content, known.content)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict) and isinstance(other, dict):
        return same([*one.items()], [*other.items()])
    if isinstance(one, np.ndarray | np.generic) and isinstance(other, np.ndarray | np.generic):
        alike = (one.dtype.str, one.shape) == (other.dtype.str, other.shape)
        return alike and one.tobytes() == other.tobytes()
    if isinstance(one, set | frozenset):
        return one == other
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other)


def as_other(value: object) -> Other | None:
    """What the reader gives in place of a value of torch's classes, or of a declared one."""
    match value:
        case torch.Size():
            return Other("size", tuple(value))
        case torch.dtype():
            return Other("dtype", str(value).removeprefix("torch."))
        case torch.device():
            return Other("device", str(value))
        case Tensor():
            name = str(value.dtype).removeprefix("torch.")
            return Other("tensor", (name, *value.shape, bits(value)))
        case Point():
            return Other("Point", value._asdict())
        case Progress():
            return Other("Progress", vars(value))
    return None


def kept(tensors: dict[str, Tensor]) -> dict[str, Kept]:
    return {n: (str(one.dtype), tuple(one.shape), bits(one)) for n, one in tensors.items()}


def check(reader: Reader, expected: Saved) -> None:
    """All of a run "r" is what was saved, by step."""
    assert reader.verify() == []
    checkpoints = reader.checkpoints("r")
    assert [one.header["step"] for one in checkpoints] == sorted(expected, reverse=True)
    for one in checkpoints:
        tensors, values = expected[one.header["step"]]
        assert one.tensors.keys() == tensors.keys()
        for name, spec in one.tensors.items():
            found = (f"torch.{spec.dtype}", spec.shape, one.load(name).tobytes())
            assert found == tensors[name], name
        assert one.values.keys() == values.keys()
        wrong = [name for name, value in values.items() if not same(one.values[name], value)]
        assert wrong == []


def every_dtype() -> dict[str, Tensor]:
    every_byte = torch.arange(256).to(torch.uint8)
    return {name: every_byte.clone().view(getattr(torch, name)) for name in SIZES}


@dataclass
class Program:
    """What trains for a few steps, of the kinds of state that there are."""

    module: nn.Module = field(
        default_factory=lambda: nn.ModuleDict(
            {"lin": nn.Linear(300, 700, dtype=torch.bfloat16), "emb": nn.Embedding(3000, 48)}
        )
    )
    frozen: Tensor = field(default_factory=lambda: torch.randn(200, 300))
    counts: Tensor = field(default_factory=lambda: torch.arange(60_000))

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=1e-3)

    def step(self, number: int) -> None:
        generator = torch.Generator().manual_seed(number)
        for parameter in self.module.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
            parameter.grad = noise
        self.optimizer.step()
        self.counts[:: 999 + number] += number

    def state(self, number: int) -> dict[str, Any]:
        odd = {"/": torch.ones(2), "~1": torch.zeros(3), "": torch.ones(1), "q/x": ["y"]}
        nested = [torch.tensor(number), {"deep": torch.ones(2), 7: torch.ones(1)}, "beside"]
        return {
            "model": self.module,
            "optimizer": self.optimizer,
            "frozen": self.frozen,
            "counts": self.counts,
            "dtypes": every_dtype(),
            "größe~/": odd,
            "nested": {"list": nested, "tuple": (torch.empty(0, 4), 1.5), "plain": [number, {}]},
            "zero": torch.zeros(500, 500),
            "cut": torch.arange(400.0).view(4, 100).t()[::3],
            "conjugate": torch.tensor([1 + 2j, -3j]).conj(),
            "values": VALUES | {"step": number},
            "tree": Point([torch.ones(1), (torch.ones(2), {"b": 1, "a": 2})], {3: torch.ones(3)}),
        }

    def leaves(self, number: int) -> tuple[dict[str, Kept], dict[str, Any]]:
        """What the page says that there is of it."""
        state = self.state(number)
        tensors = {name: state[name] for name in ("frozen", "counts", "zero", "cut", "conjugate")}
        tensors |= {f"model/{name}": one for name, one in self.module.state_dict().items()}
        tensors |= {f"dtypes/{name}": one for name, one in state["dtypes"].items()}
        odd, nested = state["größe~/"], state["nested"]
        tensors |= {"größe~0~1/~1": odd["/"], "größe~0~1/~01": odd["~1"], "größe~0~1/": odd[""]}
        tensors |= {"nested/list/0": nested["list"][0], "nested/tuple/0": nested["tuple"][0]}
        tensors |= {f"nested/list/1/{k}": one for k, one in nested["list"][1].items()}
        values = {"values": state["values"], "größe~0~1/q~1x": ["y"], "nested/list/2": "beside"}
        values |= {"nested/tuple/1": 1.5, "nested/plain": [number, {}], "optimizer/class": "AdamW"}
        tree = state["tree"]
        tensors |= {"tree/x/0": tree.x[0], "tree/x/1/0": tree.x[1][0], "tree/y/3": tree.y[3]}
        values |= {"tree/x/1/1": tree.x[1][1], "dcp.containers": BRANCHES}
        for place, (name, parameter) in enumerate(self.module.named_parameters()):
            start = f"optimizer/state.{name}"
            own = self.optimizer.state.get(parameter, {})
            tensors |= {f"{start}.{key}": one for key, one in own.items()}
            options = {k: v for k, v in self.optimizer.param_groups[0].items() if k != "params"}
            values |= {f"optimizer/param_groups.{name}.{k}": v for k, v in options.items()}
            values |= {f"optimizer/group_of.{name}": 0, f"optimizer/place_of.{name}": place}
        return kept(tensors), values


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Saved]:
    """A store with steps of a program, and what was saved."""
    root = tmp_path_factory.mktemp("trained") / "store"
    saved: Saved = {}
    with warnings.catch_warnings(), torch.random.fork_rng():
        torch.manual_seed(0)
        program = Program()
        warnings.simplefilter("ignore")  # of a complex dtype that torch calls experimental
        checkpointer = Checkpointer(root, run="r")
        for number in range(STEPS):
            if number:  # before the first step, the optimizer has no state
                program.step(number)
            saved[number] = program.leaves(number)
            metrics = {"loss": 1e-7 * number, "bad": math.nan}
            checkpointer.save(number, program.state(number), metrics=metrics)
            checkpointer.wait()
        checkpointer.close()
    return root, saved


def test_the_reader_has_nothing_of_what_it_reads_for() -> None:
    tree = ast.parse(Path(format_reader.__file__).read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = {one.name for node in found for one in node.names if isinstance(node, ast.Import)}
    names |= {node.module or "." for node in found if isinstance(node, ast.ImportFrom)}
    roots = {name.partition(".")[0] for name in names}
    assert roots.isdisjoint({"checkpointing", "tests", "torch", "hpckit", "data", ""})


def test_it_reads_what_a_checkpointer_saves(trained: tuple[Path, Saved]) -> None:
    root, saved = trained
    reader = Reader(root)
    assert reader.runs() == ["r"]
    check(reader, saved)
    newest = reader.checkpoints("r")[0]
    assert same(newest.metrics, {"bad": math.nan, "loss": 1e-7 * (STEPS - 1)})
    assert keys("größe~0~1/~01") == ("größe~/", "~1")


def test_tiles_are_on_the_grid_of_the_page(trained: tuple[Path, Saved]) -> None:
    for one in Reader(trained[0]).checkpoints("r"):
        for tensor in one.tensors.values():
            assert tensor.tile == grid(tensor.shape, SIZES[tensor.dtype])
    chance = random.Random(3)
    for _ in range(500):
        shape = tuple(int(10 ** chance.uniform(0, 4)) for _ in range(chance.randrange(5)))
        size = chance.choice([1, 2, 4, 8, 16])
        assert grid(shape, size) == tile_shape(shape, size)


def grid(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """As the page has it, of elements of `size` bytes."""
    wanted = min(max(math.prod(shape) * size // 64, 256 << 10), 8 << 20)
    cuts, last = [0] * len(shape), len(shape) - 1
    while True:
        tile = [-(-extent // 2**cut) for extent, cut in zip(shape, cuts, strict=True)]
        ended = {d for d, extent in enumerate(tile) if extent <= 1}
        if last > 0 and tile[last] * size < 512:
            ended.add(last)
        if math.prod(tile) * size <= wanted or len(ended) == len(shape):
            return tuple(tile)
        cuts[min({*range(len(shape))} - ended, key=lambda d: (cuts[d], d))] += 1


def test_it_reads_what_a_prune_leaves(trained: tuple[Path, Saved], tmp_path: Path) -> None:
    root, saved = tmp_path / "store", dict(trained[1])
    shutil.copytree(trained[0], root)
    store = Store.open(root)
    ids = {one.header["step"]: one.id for one in Reader(root).checkpoints("r")}
    found = {one.save.id: one for one in store.manifests("r")}
    pin(store, found[ids[0]].save, "für später")
    assert Reader(root).pins("r") == {ids[0]: "für später"}
    assert (root / "runs/r/marks" / f"pin-{ids[0]}").is_file()
    some = ("model", "values", "dcp.containers")
    prune(store, "r", [Last(1), Only(some[:2], Last(2))], grace_s=0)
    store.close()
    saved.pop(1)
    saved[2] = (
        {name: one for name, one in saved[2][0].items() if keys(name)[0] in some},
        {name: one for name, one in saved[2][1].items() if keys(name)[0] in some},
    )
    check(Reader(root), saved)
    middle = Reader(root).checkpoints("r")[1]
    assert middle.header["revision"] == 1
    assert set(middle.header["dropped"]) >= {"optimizer", "dtypes"}
    assert (root / "runs/r/steps" / f"{ids[2]}.1.manifest").is_file()


def test_a_changed_byte_is_noticed(trained: tuple[Path, Saved], tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(trained[0], root)
    store = Store.open(root)
    pin(store, store.manifests("r")[0].save, "why")
    store.close()
    chance = random.Random(5)
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
    assert {path.suffix for path in files} >= {".pack", ".manifest", ".json"}
    for path in files:
        whole = path.read_bytes()
        places = [0, len(whole) // 2, len(whole) - 1, chance.randrange(len(whole))]
        for at in places if path.suffix != ".pack" else places[chance.randrange(4) :][:1]:
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
            assert is_noticed(root, path), (path, at)
        path.write_bytes(whole[:-1])
        assert is_noticed(root, path), path
        path.write_bytes(whole)
    assert Reader(root).verify() == []


def is_noticed(root: Path, path: Path) -> bool:
    try:
        return list(Reader(root)._problems(path)) != []
    except format_reader.BROKEN:
        return True  # by whoever opens the store


def test_damage_reaches_no_tensor(trained: tuple[Path, Saved], tmp_path: Path) -> None:
    root = tmp_path / "store"
    shutil.copytree(trained[0], root)
    _, chunk = Reader(root).checkpoints("r")[0].tensors["frozen"].chunks[0]
    path = root / "packs" / chunk.pack[:2] / f"{chunk.pack}.pack"
    whole = bytearray(path.read_bytes())
    whole[chunk.offset + chunk.length // 2] ^= 4
    path.write_bytes(whole)
    with pytest.raises(format_reader.DamagedError, match="checksum"):
        Reader(root).checkpoints("r")[0].load("frozen")
    assert any(chunk.pack in problem for problem in Reader(root).verify())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("item", [None, "item"])
def test_it_reads_what_dcp_saves(tmp_path: Path, item: str | None) -> None:
    w, deep, first = torch.randn(90, 30), torch.ones(2, dtype=torch.bfloat16), torch.ones(1)
    model = {"w": w, "a/b": {"x~y": deep, "q": {1: 2, "f": math.nan}}, "list": [first, {"u": 2}]}
    values = VALUES | {"any keys": {1: "a", None: 2.5, (1, 2): {True: "c"}, "$": math.inf}}
    state = {"model": model, "top": torch.ones(3), "none": {}, "values": values, "t": ({}, 1)}
    pair = (torch.tensor([1.5, -0.0]), Progress(1, torch.zeros(0, 2, dtype=torch.bfloat16)))
    state["pair"] = pair
    store = Store.open(tmp_path, create=True)
    writer = StoreWriter(store, "r", 7, item=item)
    dcp_save(state | every_dtype(), storage_writer=writer, no_dist=True)
    store.close()
    before = "" if item is None else f"{item}/"
    tensors = {f"{before}{name}": one for name, one in every_dtype().items()}
    tensors |= {"model/w": w, "model/a~1b/x~0y": deep, "model/list/0": first}
    tensors |= {f"{before}top": torch.ones(3)}
    found: dict[str, Any] = {"model/a~1b/q/1": 2, "model/a~1b/q/f": math.nan}
    found |= {"model/list/1/u": 2, "t": ({}, 1)}
    found |= {f"values/{key}": one for key, one in VALUES.items() if not isinstance(one, dict)}
    found |= {"values/dicts/": 0, "values/dicts/b~1~0/c": None, "values/a tag/$tuple": [1]}
    found |= {f"values/any keys/{key}": one for key, one in values["any keys"].items()}
    found |= {"values/order/b": 1, "values/order/a/d": 2, "values/order/a/c": 3, "pair": pair}
    del found["values/any keys/(1, 2)"]
    found |= {"values/any keys/(1, 2)/True": "c", "values/ordered/z": 1, "values/ordered/a/2": 3}
    found |= {f"values/counter/{key}": count for key, count in VALUES["counter"].items()}
    check(Reader(tmp_path), {7: (kept(tensors), found)})


def test_it_reads_what_several_ranks_save(tmp_path: Path) -> None:
    generator = np.random.default_rng(1)
    arrays = {
        "model/w": ("float32", generator.integers(0, 2**32, (301, 700), np.uint32)),
        "model/long": ("bool", generator.integers(0, 2, 1_000_003, np.uint8)),
        "scalar": ("int64", np.array(5)),
    }
    store = Store.open(tmp_path, create=True)
    make(store, 5, arrays, {"value": {"$tuple": [1]}}, ranks=3)
    store.close()
    reader = Reader(tmp_path)
    (one,) = reader.checkpoints("demo")
    assert reader.verify() == []
    assert one.values == {"value": (1,)}
    assert len(one.tensors["model/w"].chunks) > 3
    for name, (_, array) in arrays.items():
        assert one.load(name).tobytes() == array.tobytes()


def test_it_reads_tables_that_are_cut_into_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(item_table, "GROUPED", 10)
    monkeypatch.setattr(item_table, "_GROUP", 4)
    generator = np.random.default_rng(1)
    arrays = {
        f"model/{n}": ("float32", generator.integers(0, 2**32, (40, 30), np.uint32))
        for n in range(9)
    }
    store = Store.open(tmp_path, create=True)
    make(store, 5, arrays, {"model/value": 7}, ranks=2)
    store.close()
    reader = Reader(tmp_path)
    (one,) = reader.checkpoints("demo")
    assert one.header["features"] == ["tensor-groups"]
    assert reader.verify() == []
    assert one.values == {"model/value": 7}
    for name, (_, array) in arrays.items():
        assert one.load(name).tobytes() == array.tobytes()


def test_it_reads_chunks_of_every_codec_and_bases_of_bases(tmp_path: Path) -> None:
    store, used, saved = Store.open(tmp_path, create=True), Counter[int](), dict[str, Any]()
    generator = np.random.default_rng(2)
    for codec in (c for c in Codec if c is not Codec.CONSTANT):
        array = np.cumsum(generator.integers(-3, 4, (900, 64)), axis=0).astype(np.uint16)
        encoder = ChunkEncoder(AdaptiveEncoder(Always(codec)), depth=3)
        for step in range(4):
            array = array.copy()
            array[generator.integers(0, 900, 9)] += np.uint16(step)
            array[-1:], run = 0, codec.name.lower()
            saved[f"{run} {step}"] = array
            save(store, run, step, {"model/w": array, "same": np.full(900, 3, np.uint16)}, encoder)
    store.close()
    reader = Reader(tmp_path)
    assert reader.verify() == []
    depths = set()
    for one in (one for run in reader.runs() for one in reader.checkpoints(run)):
        key = f"{one.header['run']} {one.header['step']}"
        assert one.load("model/w").tobytes() == saved[key].tobytes()
        used.update(chunk.codec for tensor in one.tensors.values() for chunk in tensor.all_chunks())
        depths |= {len(list(tensor.all_chunks())) for tensor in one.tensors.values()}
    assert set(used) == {*range(7)}
    assert depths == {1, 2, 3, 4}


def save(store: Store, run: str, step: int, arrays: dict[str, Array], how: ChunkEncoder) -> None:
    with Session(store, run) as session:
        begun = session.begin(step)
        pieces = [TensorPiece(n, "bfloat16", a.shape, (0,) * a.ndim, a) for n, a in arrays.items()]
        index, options = RunChunkIndex(store, run).index(), WriteOptions(encoder=how)
        written = write(store, begun, pieces, {}, index, options)
        write_part(store, ManifestHeader(begun, time.time(), 1), 0, written)
        commit(store, begun, 1)
        session.end(begun.manifest())


@pytest.mark.parametrize("word", [1, 2, 4, 8])
@pytest.mark.parametrize("is_float", [True, False])
def test_it_decodes_what_every_codec_makes_of_any_words(word: int, is_float: bool) -> None:
    generator = np.random.default_rng(word)
    for count in (0, 1, 6, 600, 6000):
        layout = WordLayout(word, is_float, row=word * (3 if count % 3 == 0 else 1))
        noise = generator.integers(0, 256, count * word, np.uint8)
        few = np.where(generator.random(count * word) < 0.1, noise, 0).astype(np.uint8)
        mixed = (np.arange(count, dtype=f"<u{word}") >> 3).view(np.uint8) ^ (few & 3)
        for raw in (noise, few, mixed, np.zeros_like(noise)):
            for base in (raw, raw ^ few, noise, None):
                for codec in Codec:
                    is_constant = not count or len(set(raw.reshape(count, word).tobytes())) == 1
                    if codec is Codec.CONSTANT and not is_constant:
                        continue
                    if base is None and codec in (Codec.DELTA, Codec.GROUPS):
                        continue
                    before = None if base is None else base.tobytes()
                    stored = bytes(encode(codec, raw.tobytes(), layout, before))
                    assert decode(codec, stored, len(raw), word, before) == raw.tobytes()


def test_rows_of_which_none_or_all_are_stored_have_no_flags() -> None:
    base = np.arange(60, dtype="<u2").tobytes()
    layout = WordLayout(2, False, row=12)
    none = bytes(encode(Codec.ROWS, base, layout, base))
    assert none == struct.pack("<B3xII", 1, 12, 0)
    assert decode(5, none, len(base), 2, base) == base
    every = bytes(encode(Codec.ROWS, base, layout))
    assert every[:12] == struct.pack("<B3xII", 0, 12, 10)
    assert decode(5, every, len(base), 2, None) == base


def test_json_is_spelled_as_the_page_says() -> None:
    chance = random.Random(1)
    floats = [struct.unpack("<d", chance.randbytes(8))[0] for _ in range(3000)]
    floats += [chance.choice([1, -1]) * 10 ** chance.uniform(-9, 20) for _ in range(3000)]
    floats += [float(10**n) for n in range(30)] + [10.0**-n for n in range(12)]
    floats += [0.0, -0.0, 0.0001, 123.0, 1e-7, 1.5e16, 5e-324, 9999999999999998.0]
    body = {
        "floats": [one for one in floats if math.isfinite(one)],
        "integers": [0, -1, 2**64, 10**1000],
        "text": "".join(map(chr, [*range(0x300), 0xD800, 0xFFFF, 0x10000, 0x10FFFF])),
        "\U0001f600": None,
        "\uffff": {"b": True, "a": False},
    }
    data = dump(body)
    assert data == spelled({"blake3": json.loads(data)["blake3"], **body}).encode("ascii")
    assert format_reader.record(dump(body | RECORD), "test")["text"] == body["text"]
    names = ["0.0001", "123.0", "-0.0", "1e-07", "1.5e+16", "5e-324"]
    page = (Path(format_reader.__file__).parents[4] / "checkpointing/FORMAT.md").read_text("utf-8")
    assert all(f"`{one}`" in page and spelled(float(one)) == one for one in names)


RECORD = {"format": "test", "version": 1, "features": []}


def spelled(value: Any) -> str:
    """JSON as the page has it."""
    if isinstance(value, dict):
        pairs = sorted(value.items())  # by code points, as Python compares text
        return "{" + ",".join(f"{spelled(key)}:{spelled(one)}" for key, one in pairs) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(spelled, value)) + "]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, float):
        return spelled_float(value)
    return str(value) if isinstance(value, int) else f'"{"".join(map(spelled_character, value))}"'


def spelled_float(value: float) -> str:
    sign, found, exponent = Decimal(repr(value)).as_tuple()  # the fewest digits
    assert isinstance(exponent, int)
    digits = "".join(map(str, found)).rstrip("0") or "0"
    before = len(found) + exponent  # digits before the point
    if value == 0 or 1e-4 <= abs(value) < 1e16:
        padded = "0" * max(1 - before, 0) + digits.ljust(before, "0")
        at = max(before, 1)
        text = f"{padded[:at]}.{padded[at:] or '0'}" if value else "0.0"
    else:
        rest = f".{digits[1:]}" if digits[1:] else ""
        power = before - 1
        text = f"{digits[0]}{rest}e{'-' if power < 0 else '+'}{abs(power):02d}"
    return "-" * sign + text


def spelled_character(one: str) -> str:
    if one in '"\\\b\f\n\r\t':
        return "\\" + {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}.get(one, one)
    if " " <= one <= "~":
        return one
    units = one.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
