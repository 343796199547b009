"""The programs of examples/ under `hpckit launch` on this machine: what was added changes nothing
in training. A rank is killed, the run is preempted, and each step is the one of the program before.

`tests/cluster/test_examples.py` does the same with those of DDP and Hugging Face on Slurm.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.examples.launched_programs import (
    EXAMPLES,
    disturbed,
    shrunk,
    undisturbed,
)
from tests.startup.fork_request import WITH


@pytest.mark.parametrize(
    ("name", "needed"),
    [("fsdp2", "torchdata.stateful_dataloader"), ("torchtitan", "torchtitan.components.optimizer")],
)
def test_killed_and_preempted_it_trains_as_if_nothing_had_been(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, needed: str
) -> None:
    pytest.importorskip(needed, reason="the dev extra, and make setup, have it")
    monkeypatch.setenv(WITH, needed.partition(".")[0])
    before, after = EXAMPLES / name / "before.py", EXAMPLES / name / "after.py"
    whole = undisturbed(tmp_path / "before", before, "--steps", "60", imports=[needed])
    found = disturbed(tmp_path / "after", after, "--steps", "60")
    assert list(whole[0]) == list(range(1, 61))
    assert found.steps == whole


def test_lightning_killed_preempted_and_continued_on_fewer_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On as many ranks, each step is the one of the program before. On fewer, training goes on from
    the same parameters to the end of the same epoch."""
    pytest.importorskip("lightning", reason="the dev extra has Lightning")
    monkeypatch.setenv(WITH, "lightning")
    before, after = EXAMPLES / "lightning/before.py", EXAMPLES / "lightning/after.py"
    epochs = ("--epochs", "2")
    whole = undisturbed(tmp_path / "before", before, *epochs, imports=["lightning"])
    found, stopped_at = shrunk(tmp_path / "after", after, *epochs, is_disturbed=True)
    assert list(whole[0]) == list(range(1, 81))
    for rank in (0, 1):
        of_two = {n: seen for n, seen in found.steps[rank].items() if n <= stopped_at}
        assert of_two == {n: seen for n, seen in whole[rank].items() if n <= stopped_at}
    of_two_ranks = stopped_at // 40  # epochs, of 40 steps; those of one rank have 80
    assert list(found.steps[0]) == list(range(1, 161 - 40 * of_two_ranks))


def test_huggingface_continues_on_fewer_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on from the same parameters to the end of the same epoch."""
    pytest.importorskip("transformers", reason="the dev extra has transformers")
    monkeypatch.setenv(WITH, "transformers")
    program = EXAMPLES / "huggingface/after.py"
    found, _ = shrunk(tmp_path, program, "--epochs", "1", is_disturbed=False)
    assert list(found.steps[0]) == list(range(1, 81)), "an epoch of one rank"
