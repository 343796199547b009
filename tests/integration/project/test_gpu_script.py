"""benchmarks/gpu.sh on CPUs: its first step, and wrong arguments."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

CHECKOUT = Path(__file__).resolve().parents[3]
_PATIENCE_S = 500  # of a busy machine


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(CHECKOUT / "benchmarks" / "gpu.sh"), *words],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
    )


def test_saves_and_restores_are_measured_and_nothing_is_left(tmp_path: Path) -> None:
    words = ("--device", "cpu", "--only", "saves", "--limit", str(_PATIENCE_S))
    done = run(*words, "--folder", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("== CPU, 2 ranks: saves")
    for word in ("bare copy", "hpckit, overlapped", "hpckit, from memory", "compute alone"):
        assert word in done.stdout
    assert list(tmp_path.iterdir()) == []
    record = CHECKOUT / "benchmarks" / "results" / "gpu-CPU.txt"
    assert record.read_text() == done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--device gpu", "--device: gpu is not one of auto, cpu, cuda"),
        ("--device cpu --only saves,bench", "--only: bench is not a step"),
        ("--device cpu --ranks two", "--ranks: two is not a number of ranks"),
        ("--device cpu --folder /nowhere", "--folder: /nowhere is not a folder"),
        ("--device cpu --limit 1m", "--limit: 1m is not a number of seconds"),
        ("--device cpu --limit 0", "--limit: 0 is not a number of seconds"),
        ("--only", "--only: a value is missing, or it is not an option"),
    ],
)
def test_a_wrong_argument_is_named(words: str, told: str) -> None:
    done = run(*words.split())
    assert done.returncode == 2
    assert done.stderr.startswith(f"gpu.sh: {told}\nusage: ")


def test_a_step_that_reaches_its_limit_is_named(tmp_path: Path) -> None:
    words = ("--device", "cpu", "--only", "collectives", "--limit", "1")
    done = run(*words, "--folder", str(tmp_path))
    assert done.returncode == 1
    assert "== collectives: ended after its limit of 1 s: --limit gives it more\n" in done.stdout
    assert done.stdout.endswith("failed: collectives\n")
    assert list(tmp_path.iterdir()) == []


def test_any_number_of_ranks_divides_the_batches(tmp_path: Path) -> None:
    words = ("--device", "cpu", "--ranks", "3", "--only", "precision,profile")
    done = run(*words, "--limit", str(_PATIENCE_S), "--folder", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_limits_are_less_than_ten_minutes() -> None:
    told = next(line for line in run("--help").stdout.splitlines() if line.startswith("limit: "))
    steps = told.partition("by default ")[2].split(", ")
    assert sum(int(step.split()[1]) for step in steps) == 580


def test_help_is_no_error() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert done.stdout.startswith("usage: benchmarks/gpu.sh ")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there_is_an_error() -> None:
    done = run("--device", "cuda")
    assert done.returncode == 2
    assert done.stderr.startswith("gpu.sh: --device cuda: torch finds no GPU on this machine")
