"""What is typed wrong is answered by one screen that leads to what is right: word for word."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import hpckit
from data import pack_folder
from hpckit.cli.main import app
from hpckit.rundir.code_snapshot.snapshot import Project
from hpckit.rundir.directory import run_directory
from hpckit.submit import compose
from hpckit.submit.preflight.checks import with_absolute_paths
from hpckit.submit.submission_files import add_submission
from tests.integration.cli.ckpt_commands import make_store
from tests.services.fault_fs import FaultFs, Rule
from tests.services.s3 import S3Place

LINES = 24
GIVEN = "model=gpt_nano data=shards data.shards=set cluster.device=cpu name=first"
"""Of every launch, before what is wrong."""
MINE = "STEPS = 3\n\n\ndef main(cfg):\n    pass\n\n\ndef alone():\n    pass\n"
TABLE: dict[str, dict[str, Any]] = yaml.safe_load(
    Path(__file__).with_name("usage_errors.yaml").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with shards, a store and a run; some of it broken."""
    folder = tmp_path_factory.mktemp("usage").resolve()
    for name, count in (("set", 40), ("other", 8)):
        texts = folder / f"{name}.texts"
        texts.mkdir()
        for number in range(count):
            (texts / f"{number:02d}.txt").write_text("x" * 50 * number)
        pack_folder(texts, folder / name, suffixes=(".txt",), samples_per_shard=max(2, count // 3))
        shutil.rmtree(texts)
    shutil.copytree(folder / "set", folder / "mixed")
    shutil.copy(folder / "other" / "dataset.index", folder / "mixed")
    (folder / "bad").mkdir()
    (folder / "bad" / "s-000.tar").write_bytes(b"no tar" * 1000)
    (folder / "mine.py").write_text(MINE)
    (folder / "broken.py").write_text("def main(cfg):\n    pas s\n")
    make_store(folder / "store").close()
    spec = with_absolute_paths(compose.compose_spec(GIVEN.split()), folder)
    run = run_directory(spec, folder)
    run.logs.mkdir(parents=True)
    add_submission(run, spec, [], Project(folder, False))
    damage_runs(folder, run.path)
    for rank in range(2):
        log = run.rank_log(1, 0, rank)
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("begun\n")
    return folder


def damage_runs(folder: Path, good: Path) -> None:
    """Add copies of a run with one damage each."""
    spec = Path("submissions", "001", "spec.yaml")
    for name in ("events", "cut", "later", "codeless"):
        shutil.copytree(good, folder / "runs" / f"{name}-00000000", symlinks=True)
    (folder / "runs" / "events-00000000" / "events.jsonl").mkdir()
    (folder / "runs" / "cut-00000000" / spec).write_text("train: {steps: 5\n")
    with (folder / "runs" / "later-00000000" / spec).open("a") as file:
        file.write("quantum: true\n")
    submission = folder / "runs" / "codeless-00000000" / spec.parent
    (submission / "code").rename(submission / "elsewhere")


@pytest.fixture(autouse=True)
def _inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")


def test_a_python_without_the_packages_is_told_apart() -> None:
    root = Path(hpckit.__file__).parents[1]
    for program, advice in (("launch.py", ".venv/bin/python"), ("-m", "HPCKIT_PYTHON")):
        words = [program] if program == "launch.py" else ["-m", "hpckit.supervisor.user_job"]
        command = [sys.executable, "-S", *words, "model=gpt_nano"]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True)
        assert done.returncode == 1
        assert re.fullmatch(r"error: the command needs the package \w+, which .*\n", done.stderr)
        assert advice in done.stderr


def answer(typed: str) -> tuple[int, str]:
    """Exit status, and what is said, of a command line; nothing of it is a result."""
    (run,) = Path("runs").glob("first-*")
    words = shlex.split(typed.replace("first-*", run.name))
    if words[0] == "launch.py":
        words = ["hpckit", "launch", *GIVEN.split(), *words[1:]]
    result = CliRunner().invoke(app, words[1:], prog_name="hpckit")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # a traceback for the user
    assert result.stdout == ""
    said = result.stderr.replace(str(Path.cwd()), "HERE")
    return result.exit_code, re.sub(r"first-[0-9a-f]{8}", "first-HASH", said)


@pytest.mark.parametrize("name", TABLE)
def test_it_is_answered_by_what_to_do(name: str) -> None:
    case = TABLE[name]
    status, said = answer(case["typed"])
    assert said.rstrip() == case["says"].rstrip()
    assert status == case.get("status", 2)
    assert len(said.splitlines()) <= LINES
    assert not list(Path("runs").glob("*/submissions/002"))


def test_a_damaged_run_is_left_out_of_the_list(folder: Path) -> None:
    result = CliRunner().invoke(app, ["status"])
    assert result.exit_code == 0
    assert (
        "events-00000000 is left out: runs/events-00000000/events.jsonl: Is a dir" in result.stderr
    )
    assert "first-" in result.stdout
    assert "events-" not in result.stdout
    found = json.loads(CliRunner().invoke(app, ["status", "--json"]).stdout)
    listed = [run["run"] for run in found["runs"]]
    assert [name for name in listed if name.startswith("first-")]
    assert "events-00000000" not in listed
    left_out = {one["run"]: one["reason"] for one in found["left_out"]}
    assert "Is a directory" in left_out["events-00000000"]


def test_where_all_runs_are_damaged_is_no_table(tmp_path: Path) -> None:
    (tmp_path / "a-12345678" / "submissions" / "001").mkdir(parents=True)
    (tmp_path / "a-12345678" / "events.jsonl").mkdir()
    result = CliRunner().invoke(app, ["status", "--root", str(tmp_path)])
    assert (result.exit_code, result.stdout) == (0, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("a-12345678 is left out: ")


OWN = {
    "latin": (
        "experiment",
        "# @package _global_\nname: caf\xe9\n",
        "config: HERE/conf/experiment/own.yaml is not UTF-8 at byte 30; save it as UTF-8\n",
    ),
    "list": (
        "experiment",
        "# @package _global_\n- train\n",
        "config: HERE/conf/experiment/own.yaml has no keys; write lines such as KEY: VALUE\n",
    ),
    "dot": (
        "experiment",
        "# @package _global_\ntrain.steps: 5\n",
        "train.steps: unknown key; in a file, write train: {steps: VALUE}\n",
    ),
    "no space": (
        "experiment",
        "# @package _global_\ntrain:\n  steps:5\n",
        "train: must be a group of keys, such as train.batch_ramp; got 'steps:5'\n",
    ),
    "variable": (
        "experiment",
        "# @package _global_\nroot: ${oc.env:NO_SUCH}/x\n",
        "config: Environment variable 'NO_SUCH' not found; export it, or write "
        "${oc.env:NO_SUCH,DEFAULT}\n",
    ),
    "override": (
        "experiment",
        "# @package _global_\ndefaults:\n  - override /modle: gpt_nano\n",
        "config: In 'experiment/own': Could not override 'modle'. No match in the defaults list; "
        "did you mean model?\n",
    ),
    "twice": (
        "experiment",
        "# @package _global_\ndefaults:\n  - /model: gpt_nano\n",
        "config: model appears more than once in the final defaults list; in a file of yours, "
        "write `override /model: OPTION`\n",
    ),
    "no defaults": (
        "cluster",
        "slurm:\n  partition: gpu\n",
        "cluster: 22 keys have no value; a file of yours in conf/cluster/ begins with "
        "`defaults: [OPTION, _self_]`, the option that it changes\n",
    ),
}
"""Files own.yaml of a group, in Latin-1, and what is said of them."""


@pytest.mark.parametrize("name", OWN)
def test_a_mistake_in_a_file_of_ones_own(folder: Path, name: str) -> None:
    group, text, says = OWN[name]
    (folder / "conf" / group).mkdir(parents=True)
    (folder / "conf" / group / "own.yaml").write_text(text, encoding="latin-1")
    try:
        assert answer(f"launch.py {group}=own --dry-run") == (2, f"error: {says}")
    finally:
        shutil.rmtree(folder / "conf")


def test_a_config_file_of_ones_own(folder: Path) -> None:
    conf = folder / "conf"
    (conf / "experiment").mkdir(parents=True)
    said = []
    for text in (
        "# @package _global_\ntrain:\n  steps: [5\n",
        "# @package _global_\ndefaults:\n  - override /optim: adam\n",
        "train:\n  steps: 5\n",
    ):
        (conf / "experiment" / "own.yaml").write_text(text)
        said.append(answer("launch.py experiment=own --dry-run"))
    shutil.rmtree(conf)
    assert said == [
        (
            2,
            "error: config: HERE/conf/experiment/own.yaml, line 4, column 1: expected ',' or ']', "
            "but got '<stream end>'; correct that line\n",
        ),
        (
            2,
            "error: config: In 'config': Could not find 'optim/adam'; did you mean adamw? there "
            "are adamw, muon, sgd, wsd\n",
        ),
        (
            2,
            "error: experiment: its file in conf/experiment/ sets keys of its own instead of the "
            "run's; its first line has to be `# @package _global_`\n",
        ),
    ]


def test_a_name_that_another_config_has_is_told(folder: Path) -> None:
    result = CliRunner().invoke(app, ["launch", *GIVEN.split(), "optim.lr=0.5", "--dry-run"])
    (run,) = (folder / "runs").glob("first-*")
    assert result.exit_code == 0
    assert result.stderr == (
        f"note: a new run; {run.name} has the same name, but optim.lr=0.0006 (here 0.5); "
        f"hpckit resume {run} continues that run\n"
    )


def test_slurm_that_is_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert answer("launch.py cluster=slurm root=new") == (
        2,
        "error: cluster: there is no sbatch and no srun on this machine; start on a login node of "
        "the cluster, or look with --dry-run\n",
    )
    assert not Path("new").exists()


@contextmanager
def nobody() -> Iterator[None]:
    """Without the rights of root, which may write anywhere."""
    if os.getuid() != 0:
        yield
        return
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def test_a_folder_that_is_not_ones_own(folder: Path) -> None:
    (folder / "locked").mkdir(mode=0o555)
    above = [parent for parent in folder.parents if parent.stat().st_mode & 0o005 != 0o005]
    modes = {path: path.stat().st_mode for path in [*above, folder]}
    for path in modes:
        path.chmod(0o755)
    try:
        with nobody():
            said = answer("launch.py root=locked/runs --dry-run")
    finally:
        for path, mode in modes.items():
            path.chmod(mode)
    assert said == (
        2,
        "error: root: HERE/locked is not writable; HERE/locked/runs/first-HASH cannot be made "
        "there\n",
    )


def test_a_disk_that_is_full(faulty_folder: FaultFs) -> None:
    faulty_folder.set_rules(Rule(("write",), error="ENOSPC", path="submissions"))
    status, said = answer(f"launch.py root={faulty_folder.path}/runs")
    assert (status, said.replace(str(faulty_folder.path), "FULL")) == (
        2,
        "error: nothing was submitted: FULL/runs/first-HASH: No space left on device; free space "
        "there, or choose another folder\n",
    )


def test_s3_that_does_not_let_one_in(s3_url: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_url.env.items():
        monkeypatch.setenv(name, value)
    no_bucket = "the bucket does not exist at this endpoint; create it first\n"
    assert answer("launch.py checkpoint.url=s3://no-such-bucket/x --dry-run") == (
        2,
        f"error: checkpoint.url: read s3://no-such-bucket/x/hpckit.json: {no_bucket}",
    )
    assert answer("hpckit ckpt ls s3://no-such-bucket/x") == (
        3,
        f"error: read s3://no-such-bucket/x/hpckit.json: {no_bucket}",
    )
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "expired")
    status, said = answer(f"launch.py checkpoint.url={s3_url.url} --dry-run")
    assert (status, re.sub(r"KeyId:.*?; renew", "KeyId; renew", said)) == (
        2,
        f"error: checkpoint.url: read {s3_url.url}/hpckit.json: 403 InvalidAccessKeyId; renew the "
        "credentials\n",
    )
    status, said = answer(f"launch.py data.shards={s3_url.url}/{{0..9}}.tar --dry-run")
    lines = said.splitlines()
    assert (status, len(lines)) == (2, 5)
    assert lines[0].endswith("status 403; check credentials and permissions")
    assert lines[-1] == "error: data.shards: and 6 more shards; `hpckit data index` lists all"
