"""Differences of checkpoints against plain numpy over whole tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from checkpointing.format.object_keys import PACKS
from checkpointing.store.checkpoint import BoxRead, Checkpoint
from checkpointing.store.inspection import checkpoint_diff as diffs
from checkpointing.store.inspection.checkpoint_diff import (
    TensorChange,
    TensorDiff,
    ValueDiff,
    compare,
    measured,
)
from checkpointing.store.inspection.tensor_distance import TensorDistance
from checkpointing.store.store import Store
from tests.unit.checkpointing.store.tensor_checkpoints import Tensors, make, opened

Array = NDArray[Any]
SHAPE = (1200, 700)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Store:
    return Store.open(f"memory://{request.node.name}", create=True)


def _normal(seed: int, shape: tuple[int, ...] = SHAPE, kind: str = "f4") -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(kind)


def _diff(
    store: Store, a: Tensors, b: Tensors, *, ranks: tuple[int, int] = (1, 1)
) -> dict[str, TensorDiff]:
    sides = [
        make(store, i + 1, t, ranks=n) for i, (t, n) in enumerate(zip((a, b), ranks, strict=True))
    ]
    old, new = (opened(store, save) for save in sides)
    return {t.name: t for t in measured(compare(old, new), old, new)}


def _change(found: TensorDiff) -> TensorChange:
    assert found.kind == "changed"
    assert found.change is not None
    return found.change


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int8", "uint16", "int64"])
def test_numbers_are_those_of_whole_tensors(store: Store, kind: str) -> None:
    a = (_normal(0) * 50).astype(kind) if "u" not in kind else (_normal(0) ** 2).astype(kind)
    b = a.copy()
    b[17:40, ::3] += np.array(3).astype(kind)
    change = _change(_diff(store, {"model/w": (kind, a)}, {"model/w": (kind, b)})["model/w"])
    wide_a, wide_b = a.astype("f8"), b.astype("f8")
    assert change.elements == a.size
    assert change.elements_changed == int((a != b).sum())
    assert change.max_abs == np.abs(wide_b - wide_a).max()
    assert change.relative_l2 == pytest.approx(
        np.linalg.norm(wide_b - wide_a) / np.linalg.norm(wide_a), rel=1e-9
    )
    assert 0 < change.chunks_changed < change.chunks


def test_bfloat16_is_compared_as_numbers(store: Store) -> None:
    a = _normal(1)
    b = a + np.float32(0.5)
    bits = [(x.view("u4") >> 16).astype("u2") for x in (a, b)]
    wide = [(x.astype("u4") << 16).view("f4").astype("f8") for x in bits]
    tensors = [{"model/w": ("bfloat16", x)} for x in bits]
    change = _change(_diff(store, *tensors)["model/w"])
    assert change.max_abs == np.abs(wide[1] - wide[0]).max()
    assert change.relative_l2 == pytest.approx(
        np.linalg.norm(wide[1] - wide[0]) / np.linalg.norm(wide[0])
    )


@pytest.mark.parametrize("kind", ["complex64", "complex128"])
def test_complex_numbers_differ_by_their_modulus(store: Store, kind: str) -> None:
    a = np.full(4, 1 + 1j, kind)
    b = a + np.array([0, 3 + 4j, 0, 0], kind)
    change = _change(_diff(store, {"m/w": (kind, a)}, {"m/w": (kind, b)})["m/w"])
    assert (change.elements, change.elements_changed, change.max_abs) == (4, 1, 5.0)
    assert change.relative_l2 == pytest.approx(5 / math.sqrt(8))


@pytest.mark.parametrize("kind", ["float8_e4m3fn", "float4_e2m1fn_x2", "bool"])
def test_without_arithmetic_elements_are_counted(store: Store, kind: str) -> None:
    a = np.zeros(1000, "u1")
    b = a.copy()
    b[:7] = 1
    change = _change(_diff(store, {"m/w": (kind, a)}, {"m/w": (kind, b)})["m/w"])
    assert (change.elements_changed, change.max_abs, change.relative_l2) == (7, None, None)


def test_integers_are_exact_where_differences_overflow() -> None:
    low, high = np.iinfo("i8").min, np.iinfo("i8").max
    distance = TensorDistance("int64")
    distance.add(np.array([low, high, 5]).view("u8"), np.array([high, low, 5]).view("u8"))
    assert distance.max_abs == high - low == 2**64 - 1
    assert distance.changed == 2


def test_what_is_not_finite_is_counted_apart(store: Store) -> None:
    a = np.array([1.0, math.nan, math.inf, math.nan, 0.0, -math.inf], "f4")
    b = np.array([3.0, math.nan, 1.0, 2.0, -0.0, -math.inf], "f4")
    change = _change(_diff(store, {"m/w": ("float32", a)}, {"m/w": ("float32", b)})["m/w"])
    assert change.elements_changed == 4  # the zeros' bits differ
    assert change.not_finite == 2
    assert change.max_abs == 2.0
    assert change.relative_l2 == 2.0  # |3 - 1| / |1|


def test_from_zero_there_is_no_relative_difference(store: Store) -> None:
    zero, one = np.zeros(8, "f4"), np.ones(8, "f4")
    change = _change(_diff(store, {"m/w": ("float32", zero)}, {"m/w": ("float32", one)})["m/w"])
    assert (change.max_abs, change.relative_l2) == (1.0, None)


def test_another_world_size_alone_is_no_change(store: Store) -> None:
    tensors = {"model/w": ("float32", _normal(2)), "model/s": ("float32", np.array(1.0, "f4"))}
    found = _diff(store, tensors, tensors, ranks=(2, 3))
    assert {t.kind for t in found.values()} == {"same"}


def test_a_change_is_found_across_world_sizes(store: Store) -> None:
    a = _normal(3)
    b = a.copy()
    b[599, 299] += 1
    sides = ({"model/w": ("float32", x)} for x in (a, b))
    change = _change(_diff(store, *sides, ranks=(2, 3))["model/w"])
    assert (change.elements_changed, change.chunks_changed) == (1, 1)


def test_kinds_of_difference(store: Store) -> None:
    one = ("float32", _normal(4))
    a = {"m/same": one, "m/old": one, "m/shape": one, "m/type": one}
    b = {
        "m/same": one,
        "m/new": one,
        "m/shape": ("float32", _normal(4, (700, 1200))),
        "m/type": ("int32", one[1]),
        "m/empty": ("float32", np.zeros((0, 3), "f4")),
    }
    kinds = {name: t.kind for name, t in _diff(store, a, b).items()}
    assert kinds == {
        "m/same": "same",
        "m/old": "only_a",
        "m/new": "only_b",
        "m/empty": "only_b",
        "m/shape": "other_shape",
        "m/type": "other_dtype",
    }


def test_values_are_compared_as_what_they_are(store: Store) -> None:
    common = {"m/w": ("float32", np.ones(3, "f4"))}
    a = make(store, 1, common, {"x/same": {"a": [1, 2]}, "x/old": 1, "x/type": 1, "x/true": True})
    b = make(store, 2, common, {"x/same": {"a": [1, 2]}, "x/new": None, "x/type": 1.0, "x/true": 1})
    found = compare(opened(store, a), opened(store, b)).values
    assert found == [
        ValueDiff("x/new", "only_b", b=None),
        ValueDiff("x/old", "only_a", a=1),
        ValueDiff("x/same", "same", {"a": [1, 2]}, {"a": [1, 2]}),
        ValueDiff("x/true", "changed", True, 1),
        ValueDiff("x/type", "changed", 1, 1.0),
    ]


def test_the_order_of_a_dict_is_no_difference(store: Store) -> None:
    """Earlier versions did not keep it."""
    a = make(store, 1, {}, {"m/v": {"a": 1, "b": 2}})
    b = make(store, 2, {}, {"m/v": {"$dict": [["b", 2], ["a", 1]]}})
    (found,) = compare(opened(store, a), opened(store, b)).values
    assert (found.kind, found.a, found.b) == ("same", {"a": 1, "b": 2}, {"b": 2, "a": 1})


def test_only_what_matches_is_looked_at(store: Store) -> None:
    tensors = {f"{item}/{n}": ("float32", np.ones(2, "f4")) for item in "ab" for n in ("w", "b")}
    save = make(store, 1, tensors, {"a/v": 1, "b/v": 2})
    side = opened(store, save)
    found = compare(side, side, ["a/*", "*/b"])
    assert [t.name for t in found.tensors] == ["a/b", "a/w", "b/b"]
    assert [v.name for v in found.values] == ["a/v"]


def test_what_is_equal_by_its_ids_is_not_read(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = _recorded(monkeypatch)
    one = {"m/w": ("float32", _normal(5))}
    assert _diff(store, one, one)["m/w"].kind == "same"
    assert read == []


def test_few_tiles_are_in_memory_at_a_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diffs, "BATCH", 1 << 20)
    read = _recorded(monkeypatch)
    array = _normal(6, (2000, 1000))
    a, b = ({"m/w": ("float32", x)} for x in (array, -array))
    sides = [make(store, i, t) for i, t in enumerate((a, b))]
    old, new = (opened(store, save) for save in sides)
    comparison = compare(old, new)
    told: list[int] = []
    change = _change(measured(comparison, old, new, told.append)[0])
    assert change.elements_changed == 2_000_000
    assert comparison.bytes == sum(told) == sum(read) == 2 * 8_000_000
    assert max(read) <= 1 << 20


def test_damage_is_told_and_the_rest_compared(store: Store) -> None:
    broken, fine = _normal(8), _normal(9, (700, 200))
    a = {"m/broken": ("float32", broken), "m/fine": ("float32", fine)}
    b = {name: (dtype, array + 1) for name, (dtype, array) in a.items()}
    old = opened(store, make(store, 1, a))
    new = opened(store, make(store, 2, b))
    chunk = next(iter(old.table("m").chunks["m/broken"].values()))
    _flip(store, chunk.pack.hex(), chunk.offset)
    found = {t.name: t for t in measured(compare(old, new), old, new)}
    assert found["m/broken"].kind == "damaged"
    assert chunk.pack.hex() in str(found["m/broken"].problem)
    assert _change(found["m/fine"]).elements_changed == fine.size


def _recorded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of every call to `read_into`."""
    sizes: list[int] = []
    original = Checkpoint.read_into

    def read_into(self: Checkpoint, reads: Iterable[BoxRead]) -> object:
        reads = list(reads)
        sizes.append(sum(read.into.nbytes for read in reads))
        return original(self, reads)

    monkeypatch.setattr(Checkpoint, "read_into", read_into)
    return sizes


def _flip(store: Store, pack: str, offset: int) -> None:
    key = next(e.key for e in store.storage.list(PACKS) if pack in e.key)
    data = bytearray(store.storage.get(key))
    data[offset] ^= 1
    store.storage.replace(key, bytes(data))
