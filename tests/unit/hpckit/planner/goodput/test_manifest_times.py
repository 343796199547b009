"""The time of a manifest is by the chunks that the code cuts, as docs/scale.md has it."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from benchmarks.store.store_scale import STAGES, TP, chunks_per_rank
from hpckit.cli.main import app
from hpckit.planner.goodput.manifest_times import chunks, read_s, write_s


@pytest.mark.parametrize("fsdp", [32, 64, 128, 256, 512, 781])
def test_there_are_as_many_chunks_as_the_shapes_have(fsdp: int) -> None:
    ranks = TP * fsdp * STAGES
    assert chunks(ranks) == pytest.approx(ranks * chunks_per_rank(fsdp), rel=0.06)


@pytest.mark.parametrize(
    ("ranks", "store_gbps", "write", "read"),
    [(16384, 200.0, 29, 1.14), (16384, 20.0, 29, 7.9), (100_000, 200.0, 137, 23.5)],
)
def test_the_times_are_those_of_the_page(
    ranks: int, store_gbps: float, write: float, read: float
) -> None:
    assert write_s(ranks) == pytest.approx(write, rel=0.02)
    assert read_s(ranks, ranks // 8, store_gbps) == pytest.approx(read, rel=0.04)


def test_the_command_takes_them_unless_it_is_given_others() -> None:
    words = ["plan", "simulate", "--gpus", "16384", "--days", "1", "--courses", "1", "--json"]
    body = json.loads(CliRunner().invoke(app, words).stdout)
    assert body["manifest_s"] == write_s(16384)
    assert body["manifest_read_s"] == read_s(16384, 2048, 1638.4)
    body = json.loads(CliRunner().invoke(app, [*words, "--manifest", "2"]).stdout)
    assert (body["manifest_s"], body["manifest_read_s"]) == (2, read_s(16384, 2048, 1638.4))
