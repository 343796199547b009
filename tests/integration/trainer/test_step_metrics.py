"""What records of steps say of where the time goes, on ranks that really wait for one another."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from data import Loader, open_dataset, pack_folder
from hpckit.events.event_log import Event, EventLog, read_events
from hpckit.events.step_phases import NAMES, PARTS, Part
from hpckit.submit.compose import compose_spec
from hpckit.trainer.batches.token_windows import shifted
from hpckit.trainer.errors import TrainingError
from hpckit.trainer.language_model import sample_mean
from hpckit.trainer.metrics.loader_statistics import LoaderStatistics
from hpckit.trainer.metrics.source_metrics import SourceMetrics
from hpckit.trainer.metrics.step_metrics import (
    RESERVED,
    SLOWEST,
    StepMeasurements,
    StepMetrics,
    StepRecordOptions,
)
from hpckit.trainer.parallel.device_mesh import coordinate_in, make_mesh
from hpckit.trainer.parallel.parallel_model import ParallelModel
from hpckit.trainer.timing.communication_cost import NAMES as TRACED
from hpckit.trainer.timing.communication_cost import CommunicationMonitor
from hpckit.trainer.timing.step_phases import StepPhases
from hpckit.trainer.timing.straggler_cost import RankPlace
from tests.integration.rank_worlds import run_world

WORLD, SLOW_RANK = 3, 1
SLEEP_S = 0.2
LONG_SLEEP_S = 0.5  # the other ranks of a busy machine are slowed by less
_EARLIER = (None, None, None)  # steps in which TensorBoard is opened, and waited for
TIMES = 3  # another process on the machine may take as long as a part in one of them
CPU = torch.device("cpu")


class Loop:
    """The run loop's records, of steps that are made up."""

    def __init__(self, tmp: Path, name: str, share: float) -> None:
        self._path = tmp / f"{name}-{dist.get_rank()}.jsonl"
        self._events = EventLog(self._path, rank=dist.get_rank())
        self.parts = StepPhases.on(CPU)
        place = RankPlace(dist.get_rank(), 0)
        self._watch = CommunicationMonitor(CPU, share, place, self.parts, self._events)
        loader = Loader(
            open_dataset(str(tmp / "shards")), global_batch=1, rank=0, world_size=1, seed=0
        )
        board = tmp / name if dist.get_rank() == 0 else None
        sources = SourceMetrics(loader, CPU)
        measured = StepMeasurements(LoaderStatistics(loader), sources, self.parts, self._watch, CPU)
        self.metrics = StepMetrics(self._events, measured, StepRecordOptions(1, board), 0)

    def steps(self, count: int) -> Iterator[int]:
        for step in range(1, count + 1):
            self._watch.begin()
            yield step
            self._watch.end()
            self.metrics.end_step(step, is_last=step == count)
            self.metrics.flush()

    def events(self, kind: str) -> list[Event]:
        return [event for event in read_events(self._path) if event.kind == kind]


def work(rank: int, tmp: Path) -> dict[str, Any]:
    return {
        "parts": each_part_slow_in_turn(rank, tmp),
        "straggler": one_rank_slow(rank, tmp),
        "counts": counts(tmp),
        "refusal": other_names(rank, tmp),
        "passes": {kind: passes(kind) for kind in ("fsdp", "pp")},
        "later": other_names_later(rank, tmp),
    }


def each_part_slow_in_turn(rank: int, tmp: Path) -> list[Event]:
    """In `TIMES` steps each; on one rank it takes longer."""
    loop = Loop(tmp, "parts", share=0.0)
    slow: list[Part | None] = [*_EARLIER, *(part for part in PARTS for _ in range(TIMES))]
    for step in loop.steps(len(slow)):
        if (part := slow[step - 1]) is not None:
            with loop.parts.timed(part):
                time.sleep(SLEEP_S * (1.5 if rank == SLOW_RANK else 1.0))
    return loop.events("step")[len(_EARLIER) :]


def one_rank_slow(rank: int, tmp: Path) -> tuple[list[Event], list[Event]]:
    loop = Loop(tmp, "straggler", share=1.0)
    weights = torch.ones(64, 64)
    for _ in loop.steps(16):
        (weights @ weights).sum()
        if rank == SLOW_RANK:
            time.sleep(LONG_SLEEP_S)
        dist.all_reduce(weights)
    return loop.events("step"), loop.events("straggler")


def counts(tmp: Path) -> list[Event]:
    loop = Loop(tmp, "counts", share=0.0)
    for _ in loop.steps(1):
        tokens = torch.tensor(2**24 + 1)  # on its device, and more than fp32 counts
        loss = float(dist.get_rank())
        loop.metrics.log({"tokens": tokens, "samples": 1, "flops": 1e9, "loss": loss})
    return loop.events("step")


def other_names(rank: int, tmp: Path) -> str:
    loop = Loop(tmp, "names", share=0.0)
    loop.metrics.log({"loss": 1.0} if rank else {"error": 1.0})
    with pytest.raises(TrainingError) as error:
        loop.metrics.end_step(1, is_last=True)
    return str(error.value)


def other_names_later(rank: int, tmp: Path) -> str:
    loop = Loop(tmp, "later", share=0.0)
    loop.metrics.log({"loss": 1.0})
    loop.metrics.end_step(1, is_last=True)
    loop.metrics.log({"loss": 1.0, "error": 1.0} if rank == 0 else {"loss": 1.0})
    with pytest.raises(TrainingError) as error:
        loop.metrics.end_step(2, is_last=True)
    return str(error.value)


def passes(parallel: str) -> dict[str, float]:
    """Seconds of each part of the gradients of a step of several micro-batches."""
    sizes = [f"launch.nodes={WORLD}", "model=gpt_nano", f"model.layers={WORLD}", "model.seq_len=8"]
    batches = [f"train.global_batch={2 * WORLD}", "train.micro_batch=1"]
    spec = compose_spec([f"parallel={parallel}", *sizes, *batches])
    mesh, parts = make_mesh("cpu", spec.parallel), StepPhases.on(CPU)
    parallel_model = ParallelModel(spec, mesh, CPU)
    share = 2 * WORLD // coordinate_in(mesh).data_size
    gradients = parallel_model.step_gradients(share, sample_mean, parts.timed)
    parts.take()
    gradients(*shifted(torch.ones(share, 9, dtype=torch.int64)))
    return dict(zip(NAMES, parts.take(), strict=True))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    tmp = tmp_path_factory.mktemp("metrics")
    (tmp / "texts").mkdir()
    (tmp / "texts" / "0.txt").write_text("text")
    pack_folder(tmp / "texts", tmp / "shards")
    return run_world(WORLD, work, tmp)


def test_a_slow_part_is_seen_as_that_part_and_all_add_up(world: list[dict[str, Any]]) -> None:
    records = world[0]["parts"]
    assert len(records) == TIMES * len(PARTS)
    for at, name in enumerate(NAMES):
        same = records[TIMES * at : TIMES * (at + 1)]
        assert name in [max(NAMES, key=lambda other: record[other]) for record in same]
        for record in same:
            assert record[name] >= SLEEP_S * (WORLD + 0.5) / WORLD, "the mean over ranks"
            assert sum(record[part] for part in NAMES) == pytest.approx(record["step_s"])
            assert name not in SLOWEST or record[f"{name}_max"] >= 1.5 * SLEEP_S
            assert {*record.fields} <= RESERVED
    assert not world[1]["parts"], "one rank writes"


def test_the_rank_that_others_wait_for_says_so(world: list[dict[str, Any]]) -> None:
    told = [rank["straggler"][1] for rank in world]
    assert [len(events) for events in told] == [0, 1, 0]
    assert told[SLOW_RANK][0]["excess"] > 0.05
    assert told[SLOW_RANK][0]["host"]
    traced = [event for event in world[0]["straggler"][0] if event.get("traced_step_s")]
    assert 3 <= len(traced) <= 8, "never two in a row"
    for record in traced:
        assert all(record[name] > 0 for name in TRACED)
        assert record["communication_exposed_s"] <= record["communication_s"]
        assert record["communication_exposed_s"] > SLEEP_S / 3, "of three, two wait"


def test_forward_and_backward_are_told_apart_but_in_a_pipeline(
    world: list[dict[str, Any]],
) -> None:
    for rank in world:
        alone, piped = rank["passes"]["fsdp"], rank["passes"]["pp"]
        assert min(alone["forward_s"], alone["backward_s"], piped["compute_s"]) > 0
        assert alone["compute_s"] == piped["forward_s"] == piped["backward_s"] == 0


def test_counts_are_summed_and_there_is_no_mfu_without_a_peak(world: list[dict[str, Any]]) -> None:
    (record,) = world[0]["counts"]
    assert record["loss"] == 1.0
    assert record["tokens_per_s"] / record["samples_per_s"] == pytest.approx(2**24 + 1, rel=1e-12)
    assert record["peak_rss_bytes"] > 1e6
    assert {"mfu", "flops", "tokens"}.isdisjoint(record.fields)


def test_other_names_on_one_rank_are_refused_on_all(world: list[dict[str, Any]]) -> None:
    for rank in world:
        assert "ranks logged different metrics" in rank["refusal"]
        assert "ranks logged different metrics" in rank["later"]
