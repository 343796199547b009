"""The command line of `launch.py`: flags, exit codes, and where things are said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hpckit.config.spec_parser import SpecError, parse_spec
from hpckit.rundir.lock import RunLock
from hpckit.submit.launch_command import LaunchCommand, main, parse_arguments
from tests.unit.hpckit.specs_and_processes import CHECKOUT


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def test_flags_are_told_from_overrides_in_any_order() -> None:
    words = ["a=1", "--detach", "+b=2", "--dry-run", "~c", "d=-1", "--fresh", "--cfg"]
    assert parse_arguments(words) == LaunchCommand(
        ["a=1", "+b=2", "~c", "d=-1"], True, True, True, True
    )
    assert parse_arguments([]) == LaunchCommand([])


@pytest.mark.parametrize("flag", ["--dryrun", "--dry", "--multirun", "-M", "-x=1"])
def test_an_unknown_flag_is_named(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SpecError, match=f"{flag}: unknown option"):
        parse_arguments(["a=1", flag])
    assert main([flag]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert f"error: {flag}: unknown option; " in err
    assert "see hpckit launch --help" in err


INTERRUPTED = """
import runpy, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "hpckit.submit.launch_command":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupt())
sys.argv = ["launch.py", "--help"]
runpy.run_path("launch.py", run_name="__main__")
"""


def test_ctrl_c_during_the_imports_is_no_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], cwd=CHECKOUT, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_is_printed_whatever_else_is_typed(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([flag, "nonsense"]) == 0
    assert capsys.readouterr().out.startswith("hpckit launch - ")


def test_several_runs_on_this_machine_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["-m", "train.seed=1,2", "cluster.device=cpu"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith("error: -m: is for a cluster of kind slurm")
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_of_several_leaves_out_what_is_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["-m", "--dry-run", "cluster=slurm", "train.seed=1,2,3"]
    assert main(words) == 0
    paths = [Path(line.split()[2]) for line in capsys.readouterr().out.splitlines()[:3]]
    for done, submits in ((1, "--array=0-1%2"), (2, f"--job-name={paths[2].name}"), (3, None)):
        paths[done - 1].mkdir(parents=True)
        (paths[done - 1] / "verdict.json").write_text('{"kind": "done"}')
        assert main(words) == 0
        out = capsys.readouterr().out
        assert out.count("# done ") == done
        assert out.count("# run ") == 3 - done
        assert submits in out if submits else "#SBATCH" not in out


def test_help_on_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help", "keys", "optim.lr"]) == 0
    assert capsys.readouterr().out.startswith("optim.lr ")
    assert main(["--help", "keys"]) == 0
    assert "checkpoint.keep.last" in capsys.readouterr().out


def test_cfg_prints_the_whole_spec_and_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--cfg", "train.steps=77", "optim.warmup_steps=5"]) == 0
    spec = parse_spec(yaml.safe_load(capsys.readouterr().out))
    assert spec.train.steps == 77
    assert spec.root == str(tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


def test_every_violation_goes_to_standard_error_on_a_line_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--cfg", "model.layrs=1", "train.steps=0", "model=none"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(":")[:2] for line in err.splitlines()] == [
        ["error", " model"],
        ["error", " train.steps"],
        ["error", " model.layrs"],
    ]
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_makes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--dry-run", "cluster.device=cpu"]) == 0
    assert "to be packed" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_says_what_the_code_snapshot_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "x.txt").write_text("12345")
    (tmp_path / "a.py").write_text("pass\n")
    assert main(["--dry-run", "cluster.device=cpu"]) == 0
    code = "# code        1 file, 5 B; leaves out runs/ (run directories, 5 B)"
    assert code in capsys.readouterr().out.splitlines()


def test_what_the_preflight_finds_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "runs").write_text("in the way")
    assert main(["--dry-run", "cluster.device=cpu", "entry=none.such:main"]) == 2
    err = capsys.readouterr().err
    assert "error: entry: there is no module none.such" in err
    assert "error: root: " in err


def test_a_run_in_use_is_refused_and_its_user_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    for n in range(20):
        (texts / f"{n}.txt").write_text("text")
    words = ["cluster.device=cpu", f"data.pack.source={texts}", "data.pack.suffixes=[]"]
    assert main(["--dry-run", *words]) == 0
    directory = next(
        Path(line.split(maxsplit=2)[2])
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("# directory")
    )
    directory.mkdir(parents=True)
    with RunLock(directory / "lock", "somebody's supervisor"):
        assert main(words) == 2
    assert "in use by somebody's supervisor" in capsys.readouterr().err
    assert not (directory / "submissions").exists()


def test_a_project_too_large_to_copy_is_refused_and_nothing_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpckit.rundir.code_snapshot.snapshot.MAX_FILES", 3)
    code = tmp_path / "code"
    code.mkdir()
    for n in range(20):
        (code / f"{n}.py").write_text("pass\n")
    assert main(["cluster.device=cpu", f"data.pack.source={code}", "--detach"]) == 2
    assert "files: start from your project's own folder" in capsys.readouterr().err


def test_a_drill_on_more_gpus_than_there_are_is_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    assert main(["--dry-run", "cluster.device=cuda", "debug.drill.nodes=[2]"]) == 2
    assert "cuda needs a GPU for every worker" in capsys.readouterr().err
