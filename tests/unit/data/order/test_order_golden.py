"""The published values of data/ORDER.md. If one changes, its order needs a new name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from data.order.keyed_permutation import permute
from data.order.mixture import Mixture, MixtureSegment
from data.order.mixture_blocks import MIX, MIX_1
from data.order.sample_order import ORDER, Order
from data.order.sequence_packing import PACK, SequencePacker

GOLDEN: dict[str, list[dict[str, Any]]] = json.loads(
    Path(__file__).with_name("order_golden.json").read_text()
)


def test_the_names_of_what_is_frozen() -> None:
    assert (ORDER, MIX_1, MIX, PACK) == ("order-1", "mix-1", "mix-2", "pack-1")


@pytest.mark.parametrize("case", GOLDEN["permute"])
def test_permute(case: dict[str, Any]) -> None:
    key = np.array([case["key"]], dtype=np.uint64)
    assert permute(np.array(case["values"]), case["n"], key).tolist() == case["images"]


@pytest.mark.parametrize("case", GOLDEN["order"])
def test_order(case: dict[str, Any]) -> None:
    options = {k: case[k] for k in ("seed", "streams", "window", "remix_every") if k in case}
    counts = case["counts"]
    if isinstance(counts, str):
        assert counts == "900 + 7919 i mod 201 for i < 1000"
        counts = [900 + 7919 * i % 201 for i in range(1000)]
    shards, samples = Order(counts, **options).locate(
        case["first"] + np.arange(len(case["shards"]))
    )
    assert (shards.tolist(), samples.tolist()) == (case["shards"], case["samples"])


@pytest.mark.parametrize("case", GOLDEN["mixture"])
def test_mixture(case: dict[str, Any]) -> None:
    segments = [MixtureSegment(position, tuple(parts)) for position, parts in case["segments"]]
    options = {k: case[k] for k in ("seed", "block", "order")}
    mixture = Mixture(segments, **options)
    datasets, own = mixture.locate(np.arange(len(case["datasets"])))
    assert (datasets.tolist(), own.tolist()) == (case["datasets"], case["own"])


@pytest.mark.parametrize("case", GOLDEN["packs"])
def test_packs(case: dict[str, Any]) -> None:
    assert case["tokens"] == "37 p mod 23 + 3 (p mod 2)"
    order = Order(case["counts"], **{k: case[k] for k in ("seed", "streams", "window")})
    packer = SequencePacker(
        order, lambda p: 37 * p % 23 + 3 * (p % 2), length=case["length"], block=case["block"]
    )
    step = packer.step(0, len(case["packs"]))
    columns = [(pack.positions, pack.starts, pack.lengths) for pack in step.packs]
    assert [np.stack(pack, axis=1).tolist() for pack in columns] == case["packs"]
    assert step.after == case["after"]
