"""Which stages may ask for random numbers: for the others, no generator is seeded."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import webdataset as wds
from webdataset import autodecode, filters

from data import ShardWriter, StreamingDataset
from data.wds.stages.sample_seeds import Seeder
from data.wds.stages.stage_kinds import may_draw, per_sample
from data.wds.stages.stage_plan import plan_of


def own(source: Iterable[Any]) -> Iterator[Any]:
    yield from source


@pytest.mark.parametrize(
    ("stage", "may"),
    [
        (wds.to_tuple("txt"), False),
        (wds.rename(text="txt"), False),
        (filters.rename_keys(("*.txt", "text")), False),
        (wds.rsample(0.5), False),
        (wds.decode(), False),
        (wds.decode("torchrgb", partial=True, handler=wds.warn_and_continue), False),
        (wds.decode(autodecode.imagehandler("rgb")), True),
        (wds.decode(post=[autodecode.gzfilter]), True),
        (wds.map(len), True),
        (wds.map_tuple(len), True),
        (wds.map_dict(txt=len), True),
        (wds.select(bool), True),
        (wds.associate(dict), True),
        (per_sample(own), True),
        (own, True),
    ],
)
def test_stages(stage: Callable[[Any], Any], may: bool) -> None:
    assert may_draw(stage) is may


def test_what_makes_batches_counts_too() -> None:
    quiet = wds.to_tuple("txt")
    assert not plan_of([quiet]).may_draw
    assert not plan_of([quiet, wds.batched(2)]).may_draw
    assert not plan_of([quiet, wds.batched(2, collation_fn=None)]).may_draw
    assert plan_of([quiet, wds.batched(2, collation_fn=list)]).may_draw
    assert plan_of([quiet, wds.batched(2), wds.map(len)]).may_draw


@pytest.mark.parametrize("draws", [False, True])
def test_generators_are_seeded_where_something_may_draw(tmp_path: Path, draws: bool) -> None:
    with ShardWriter(tmp_path / "s-%02d.tar") as writer:
        for number in range(4):
            writer.write({"__key__": str(number), "txt": b"1"})

    def passed() -> list[Any]:
        dataset = StreamingDataset(str(tmp_path)).to_tuple("__key__")
        return sorted(dataset.map(lambda sample: (*sample, random.random())) if draws else dataset)

    before = random.getstate()
    with mock.patch.object(Seeder, "at", autospec=True, side_effect=Seeder.at) as seeded:
        first = passed()
    assert bool(seeded.call_count) is draws
    assert random.getstate() == before
    assert passed() == first
