"""The process that composes a config while its command imports."""

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from hpckit.config.config_trees import conf_dir
from hpckit.config.spec_error import SpecError
from hpckit.config.spec_parser import dump_spec
from hpckit.submit.compose import compose_spec
from hpckit.submit.composition.composed_values import ComposedValues
from hpckit.submit.composition.composition_process import (
    CompositionProcess,
    _compose,
    begin_composition,
)
from hpckit.submit.composition.hydra_values import compose_values
from hpckit.submit.preflight.checks import with_absolute_paths
from tests.unit.hpckit.specs_and_processes import CHECKOUT

COMMAND = """
import sys
from hpckit.submit.composition.composition_process import begin_composition
composition = begin_composition(sys.argv[1:])
from hpckit.submit.launch_command import main
status = main(composition=composition)
print(composition is not None, "hydra" in sys.modules, file=sys.stderr)
sys.exit(status)
"""


def test_what_is_composed_comes_back() -> None:
    found = ComposedValues({"name": "é\n", "train": {"steps": 3, "share": 0.1, "x": None}}, ["y"])
    assert CompositionProcess(lambda: found).result() == found


def test_more_than_a_pipe_holds_comes_back() -> None:
    found = ComposedValues({"name": "x" * (1 << 20)}, [])
    assert CompositionProcess(lambda: found).result() == found


def refused() -> ComposedValues:
    raise SpecError(["model: no option"])


def warned() -> ComposedValues:
    warnings.warn("data.old is data.new now", FutureWarning, stacklevel=1)
    return ComposedValues({}, [])


def killed() -> ComposedValues:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def no_plain_data() -> ComposedValues:
    return ComposedValues({"root": Path("/x")}, [])


def no_text_as_key() -> ComposedValues:
    """2024 is refused as the name of a dataset, and "2024" is not."""
    return ComposedValues({"weights": {2024: 1.0}}, [])


def ended() -> ComposedValues:
    sys.exit(0)


FAILURES = [refused, warned, killed, no_plain_data, no_text_as_key, ended]


@pytest.mark.parametrize("compose", FAILURES)
def test_only_what_went_well_is_answered(compose: Callable[[], ComposedValues]) -> None:
    assert CompositionProcess(compose).result() is None


def test_a_process_composes_as_the_command_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It leaves the options of Hydra's own groups out."""
    monkeypatch.chdir(tmp_path)
    words = ["model=gpt_nano", "train.seed=7", "hydra.verbose=true"]
    assert CompositionProcess(lambda: _compose(words)).result() == compose_values(words, conf_dir())


@pytest.mark.parametrize(
    "lines",
    [
        "hydra:\n  job_logging: {version: 1}\n",
        "hydra:\n  launcher: {jobs: 1}\n",
        "defaults: [override /hydra/job_logging: none]\n",
    ],
    ids=["values", "unknown", "option"],
)
def test_a_config_with_options_of_hydra_is_left_to_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str
) -> None:
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{lines}")
    monkeypatch.chdir(tmp_path)
    words = ["model=gpt_nano", "experiment=mine"]
    assert CompositionProcess(lambda: _compose(words)).result() is None


def test_a_command_whose_children_are_reaped_by_the_kernel_composes_itself() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert CompositionProcess(lambda: ComposedValues({}, [])).result() is None
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("words", [["-m", "train.seed=1,2"], ["--help"], ["-h", "keys"]])
def test_a_command_that_composes_nothing_has_no_process(words: list[str]) -> None:
    assert begin_composition(words) is None


def launched(folder: Path, *words: str) -> tuple[int, str, list[str]]:
    """Returns exit status, output and lines of errors of the command in `folder`."""
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *words],
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr.splitlines()


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="it needs two processors")
def test_a_command_has_the_spec_of_the_process_and_does_not_import_hydra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "conf" / "optim").mkdir(parents=True)
    (tmp_path / "conf" / "optim" / "mine.yaml").write_text("defaults: [adamw, _self_]\nlr: 0.5\n")
    words = ["model=gpt_nano", "optim=mine", "train.seed=7", f"root={tmp_path}/runs"]
    status, output, errors = launched(tmp_path, "--cfg", *words)
    assert (status, errors) == (0, ["True False"])
    assert "lr: 0.5" in output
    monkeypatch.chdir(tmp_path)
    assert output == dump_spec(with_absolute_paths(compose_spec(words), tmp_path))


def test_a_wrong_command_says_so_once(tmp_path: Path) -> None:
    status, output, errors = launched(tmp_path, "--cfg", "model=gpt_nan", "launch.gpus_per_node=2")
    assert (status, output) == (2, "")
    assert [line for line in errors if line.startswith("error:")] == [
        line for line in errors if "no option" in line
    ]
    assert sum("launch.nproc_per_node now" in line for line in errors) == 1
