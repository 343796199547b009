"""Hostile names and paths: refused before anything is submitted, or carried through exactly.

Scripts are run by a real shell, with programs on PATH that write down how they were called."""

from __future__ import annotations

import json
import os
import shlex
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpckit.config.spec import ContainerSpec
from hpckit.config.spec_parser import SpecError
from hpckit.rundir.code_snapshot.snapshot import Project
from hpckit.rundir.directory import RunDir
from hpckit.slurm.allocation import srun
from hpckit.slurm.container import RunContainer
from hpckit.slurm.container_mounts import mount_problems
from hpckit.submit import batch_script
from hpckit.submit.preflight.checks import preflight, with_absolute_paths
from hpckit.system.private_folders import folder_problem
from tests.unit.hpckit.specs_and_processes import CHECKOUT, make_spec

TRAP = "touch $TRAP"
# what a shell would run, split, expand or take for an option
HOSTILE = [
    *("two words", "it's", 'a "quoted" one', f"$({TRAP})", f"`{TRAP}`", f"; {TRAP} #"),
    *(f"'; {TRAP}; '", "$HOME", "${HOME}", "*", "~", "-rf", "--help", "a\\b", "a&b|c>d<e"),
    *("ünï—cødé 漢字", "!x", "{a,b}", "#no comment", "=x", "trailing ", "%%"),
]
BROKEN = ["line\nbreak", f"x\n{TRAP}\n", "bell\a", "del\x7f", "cr\r"]
RECORD = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["RECORD"], "a") as file:
    json.dump([sys.argv[1:], os.environ.get("PYTHONPATH")], file)
    file.write("\\n")
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs that record their arguments: srun, salloc, apptainer and a Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("srun", "salloc", "apptainer", "python"):
        (folder / name).write_text(RECORD)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("RECORD", str(tmp_path / "record"))
    monkeypatch.setenv("TRAP", str(tmp_path / "trap"))
    return folder


def calls(tmp_path: Path) -> list[Any]:
    """What was called, each with its arguments and PYTHONPATH; nothing was run by accident."""
    assert not (tmp_path / "trap").exists()
    record = tmp_path / "record"
    return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


def run_script(text: str, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "script"
    path.write_text(text)
    return subprocess.run(
        ["bash", str(path), *arguments], capture_output=True, text=True, check=False, cwd=tmp_path
    )


@pytest.mark.parametrize("name", [*HOSTILE, *BROKEN])
def test_a_run_has_a_plain_name(name: str) -> None:
    with pytest.raises(SpecError, match=r"^name: "):
        make_spec({"name": name})


def test_a_run_lies_where_a_script_can_say(programs: Path, tmp_path: Path) -> None:
    """In the batch script as a shell runs it, and as sbatch reads its options."""
    for name in HOSTILE:
        (tmp_path / "record").unlink(missing_ok=True)
        run = RunDir(Path("/scratch") / name / "run")
        if folder_problem(run.path, is_job=True) is not None:
            assert "%" in name
            continue
        spec = make_spec({"cluster.slurm.python": str(programs / "python")}, cluster="slurm")
        text = batch_script.script(spec, batch_script.of_run(run, 1))
        done = run_script(text, tmp_path)
        assert done.returncode == 0, done.stderr
        ((arguments, path),) = calls(tmp_path)
        assert arguments[-4:] == ["-u", "-m", "submitit.core._submit", str(run.submitit)]
        assert path.split(":")[0] == str(run.code(1))
        (line,) = (line for line in text.splitlines() if line.startswith("#SBATCH --output="))
        assert shlex.split(line[8:]) == [f"--output={run.logs}/batch-%j.log"]


@pytest.mark.parametrize("name", [*BROKEN, "a:b", "100%"])
def test_a_folder_that_no_script_can_say_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    values = {"root": str(tmp_path / name), "data.shards": str(tmp_path)}
    spec = with_absolute_paths(make_spec(values, cluster="slurm"), tmp_path)
    run = RunDir(Path(spec.root) / "run")
    found = preflight(spec, run, Project(tmp_path / "project", False), None).problems
    (line,) = (line for line in found if line.startswith("root: "))
    assert "in its name" in line
    assert "\n" not in line


def test_a_percent_sign_is_a_matter_of_slurm_alone(tmp_path: Path) -> None:
    assert folder_problem(tmp_path / "100%", is_job=False) is None


@pytest.mark.parametrize("value", HOSTILE)
def test_values_are_words(value: str, programs: Path, tmp_path: Path) -> None:
    keys = ("partition", "account", "qos", "constraint", "reservation", "gpu_type")
    changes: dict[str, Any] = {f"cluster.slurm.{key}": value for key in keys}
    changes |= {"cluster.slurm.options": {"comment": value}, "cluster.device": "cuda"}
    changes |= {"cluster.slurm.python": str(programs / "python")}
    text = batch_script.script(
        make_spec(changes, cluster="slurm"), batch_script.of_run(RunDir(Path("/runs/a")), 1)
    )
    assert run_script(text, tmp_path).returncode == 0
    assert len(calls(tmp_path)) == 1
    said = [shlex.split(line[8:]) for line in text.splitlines() if line.startswith("#SBATCH ")]
    assert all(len(words) == 1 for words in said)
    assert [f"--comment={value}"] in said


@pytest.mark.parametrize("python", ["with space", "it's", "$(x)", "`x`", "-x"])
def test_an_interpreter_of_any_name_is_run(python: str, programs: Path, tmp_path: Path) -> None:
    (programs / "python").rename(programs / python)
    spec = make_spec({"cluster.slurm.python": str(programs / python)}, cluster="slurm")
    text = batch_script.script(spec, batch_script.of_run(RunDir(Path("/runs/a")), 1))
    assert run_script(text, tmp_path).returncode == 0
    assert len(calls(tmp_path)) == 1


@pytest.mark.parametrize("word", HOSTILE)
@pytest.mark.parametrize("script", ["train.sbatch", "elastic.sbatch", "interactive.sh"])
def test_wrappers_pass_arguments_on(
    script: str, word: str, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = programs / "a python; $(x)"
    (programs / "python").rename(python)
    monkeypatch.setenv("HPCKIT_PYTHON", str(python))
    given = [word, f"data.shards={word}"]
    before = ["--", *given] if script == "interactive.sh" else given
    done = run_script((CHECKOUT / "slurm" / script).read_text(), tmp_path, *before)
    assert done.returncode == 0, done.stderr
    ((arguments, _),) = calls(tmp_path)
    assert arguments[-2:] == given


@pytest.mark.parametrize("word", HOSTILE)
def test_salloc_gets_its_options(
    word: str, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPCKIT_PYTHON", str(programs / "python"))
    done = run_script(
        (CHECKOUT / "slurm/interactive.sh").read_text(), tmp_path, f"--comment={word}", "--", "a=b"
    )
    assert done.returncode == 0, done.stderr
    ((arguments, _),) = calls(tmp_path)
    assert arguments[:2] == ["--job-name=hpckit", f"--comment={word}"]


@pytest.mark.parametrize("word", HOSTILE)
@pytest.mark.parametrize("kind", ["pyxis", "apptainer"])
def test_containers_are_started_without_a_shell(
    kind: Any, word: str, programs: Path, tmp_path: Path
) -> None:
    image = "x" if word.startswith("-") else word
    spec = ContainerSpec(kind=kind, image=image, mounts=(), python=None, options=())
    mount = f"/data/{word}:/data/{word}"
    container = RunContainer(spec, (mount,), Path("/runs") / word, gpus=False)
    subprocess.run(srun("n1", {"A": word}, ["python", word], container), check=True)
    ((arguments, _),) = calls(tmp_path)
    assert arguments[-1] == word
    assert f"A={word}" in arguments
    if kind == "pyxis":
        assert f"--container-image={image}" in arguments
        assert f"--container-mounts={mount}" in arguments
        assert f"--container-workdir=/runs/{word}" in arguments
    else:
        at = arguments.index("--bind")
        assert arguments[at + 1 : at + 4] == [mount, "--pwd", f"/runs/{word}"]
        assert image in arguments


def test_what_a_mount_cannot_say_is_refused() -> None:
    spec = make_spec(
        {
            "cluster.slurm.container": {
                **{"kind": "pyxis", "image": "x", "mounts": [], "options": []},
                "python": "/usr/bin/python",
            }
        },
        cluster="slurm",
    )
    for path in ("/runs/a,b", "/runs/a:b"):
        assert any("colon or a comma" in line for line in mount_problems(spec, RunDir(Path(path))))


@pytest.mark.parametrize(("mode", "is_open"), [(0o777, True), (0o770, True), (0o755, False)])
def test_a_run_that_others_can_change_is_refused(mode: int, is_open: bool, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    run.chmod(mode)
    problem = folder_problem(run, is_job=False)
    assert (problem is not None) is is_open
    assert problem is None or "chmod go-w" in problem


def test_a_run_of_another_user_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can play another user; run the tests as root")
    run = tmp_path / "run"
    run.mkdir()
    os.chown(run, 65534, 65534)
    problem = folder_problem(run, is_job=False)
    assert problem is not None
    assert "belongs to user 65534" in problem


def test_the_folders_of_runs_and_sweeps_are_private_under_any_umask(tmp_path: Path) -> None:
    from hpckit.rundir.lock import hold_all
    from hpckit.submit.arrays.sweep import write_folder

    before = os.umask(0)
    try:
        with hold_all([tmp_path / "runs/a/lock", tmp_path / "store/runs/a/lock"], "a test"):
            pass
        write_folder(tmp_path / "runs/sweep", [])
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / p).stat().st_mode) for p in ("runs/a", "runs/sweep")]
    assert modes == [0o700, 0o700]
    assert stat.S_IMODE((tmp_path / "store/runs/a").stat().st_mode) == 0o777, "obeys the umask"
