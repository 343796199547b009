"""The batch script: what is asked of Slurm, and that nothing of it reaches a shell by accident."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from submitit.slurm.slurm import _make_sbatch_string

from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import SpecError
from hpckit.rundir.directory import RunDir
from hpckit.submit import batch_script
from hpckit.submit.compose import compose_spec
from tests.unit.hpckit.specs_and_processes import make_spec

GOLDEN = Path(__file__).parent / "golden"
BASE = ("model=gpt_nano", "data.shards=/data/shards", "train.global_batch=16")
PYTHON = "cluster.slurm.python=/opt/env/bin/python"
CASES = {
    "plain": [],
    "full": [
        "launch.nodes=4",
        "launch.nproc_per_node=4",
        *(f"cluster.slurm.{key}" for key in ("partition=gpu", "account=p200", "qos=long")),
        *("cluster.slurm.constraint=a100&nvlink", "cluster.slurm.reservation=maintenance"),
        *("cluster.slurm.exclude=[n07,n12]", "cluster.slurm.time_limit=1-00:00:00"),
        *("cluster.slurm.gpus=gres", "cluster.slurm.gpu_type=a100", "cluster.slurm.memory=400G"),
        *("cluster.slurm.cpus_per_node=64", "cluster.slurm.exclusive=true"),
        "cluster.slurm.options={nice: 100, hold: true, comment: 'two words; $HOME'}",
        "cluster.slurm.setup=['module load cuda/12','ulimit -n 65536']",
    ],
}


SITES = ("site_gres", "site_pyxis", "site_apptainer")
CASES |= {site: [f"cluster={site}", "launch.nodes=2"] for site in SITES}


def spec_of(*overrides: str) -> RunSpec:
    cluster = [] if any(word.startswith("cluster=") for word in overrides) else ["cluster=slurm"]
    return compose_spec([*BASE, *cluster, *overrides])


def script(*overrides: str, at: str = "/scratch/runs/gpt-0a1b2c3d", submission: int = 3) -> str:
    return batch_script.script(
        spec_of(*overrides), batch_script.of_run(RunDir(Path(at)), submission)
    )


def options(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH ")]
    words = [shlex.split(line.removeprefix("#SBATCH --"))[0] for line in lines]
    return {key: value for key, _, value in (word.partition("=") for word in words)}


@pytest.mark.parametrize("case", CASES)
def test_the_script_is_the_one_that_was_agreed_on(case: str) -> None:
    assert script(PYTHON, *CASES[case]) == (GOLDEN / f"{case}.sbatch").read_text()


@pytest.mark.parametrize("tasks", [None, 3])
@pytest.mark.parametrize("case", CASES)
def test_submitit_writes_the_same(case: str, tasks: int | None) -> None:
    spec = spec_of(PYTHON, "launch.max_parallel=2", *CASES[case])
    place = batch_script.of_run(RunDir(Path("/scratch/it's/run")), 3, after=("7_1", "9"))
    assert spec.cluster.slurm is not None
    python = batch_script.interpreter(spec.cluster.slurm, place)
    command = f"{python} -u -m submitit.core._submit {shlex.quote(str(place.folder))}"
    expected = _make_sbatch_string(
        command=command,
        folder=place.folder,
        map_count=tasks,
        **batch_script.parameters(spec, place),
    )
    assert batch_script.script(spec, place, tasks) == expected
    assert ("--array=0-2%2" in expected) is (tasks == 3)
    assert "--dependency=afterany:7_1:9" in expected


def test_the_batch_process_is_the_supervisor_and_gets_the_signals() -> None:
    text = script(PYTHON)
    code = "/scratch/runs/gpt-0a1b2c3d/submissions/003/code"
    hold = f"exec /opt/env/bin/python -IS {code}/hpckit/submit/signal_hold.py -u -m submitit"
    assert text.splitlines()[-1].startswith(hold)
    assert "srun" not in text
    assert options(text)["signal"] == "B:USR2@120"


@pytest.mark.parametrize(
    ("overrides", "nodes"),
    [
        (("elastic=off",), "4"),
        (("elastic=spares",), "4-5"),
        (("elastic=shrink",), "1-4"),
        (("elastic=shrink", "elastic.spares=2", "elastic.min_nodes=2"), "2-6"),
    ],
)
def test_an_elastic_job_takes_what_it_gets_and_outlives_a_node(
    overrides: tuple[str, ...], nodes: str
) -> None:
    found = options(script("launch.nodes=4", *overrides))
    assert found["nodes"] == nodes
    assert ("no-kill" in found) == (nodes != "4")


def test_no_value_reaches_the_shell() -> None:
    evil = "x'; touch /tmp/evil; '$(id)`id`"
    text = script(at=f"/scratch/{evil}/run")
    inside = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert inside.returncode == 0, inside.stderr
    exports = "\n".join(line for line in text.splitlines() if line.startswith("export "))
    shown = subprocess.run(
        ["bash", "-c", f'{exports}\nprintf %s "$PYTHONPATH"'],
        env={"PYTHONPATH": "/before"},
        text=True,
        capture_output=True,
        check=True,
    )
    assert shown.stdout == f"/scratch/{evil}/run/submissions/003/code:/before"


@pytest.mark.parametrize(
    "key", ["partition", "account", "qos", "constraint", "reservation", "python", "gpu_type"]
)
def test_a_value_is_one_line(key: str) -> None:
    values = {f"cluster.slurm.{key}": "a\n#SBATCH --uid=0"}
    with pytest.raises(SpecError, match=f"cluster.slurm.{key}: "):
        changed(values)


@pytest.mark.parametrize(
    ("option", "says"),
    [
        ("partition", "use cluster.slurm.partition instead"),
        ("time", "use cluster.slurm.time_limit instead"),
        ("nodes", "hpckit sets this option itself"),
        ("Bad Name", "the long name"),
        ("--nice", "the long name"),
    ],
)
def test_an_option_that_cannot_be_is_refused(option: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        changed({"cluster.slurm.options": {option: "1"}})


@pytest.mark.parametrize("limit", ["90", "1:00", "1-0:0:0", "1-00:00", "forever"])
def test_a_time_limit_that_could_be_misread_is_refused(limit: str) -> None:
    with pytest.raises(SpecError, match=r"cluster\.slurm\.time_limit"):
        changed({"cluster.slurm.time_limit": limit})


@pytest.mark.parametrize(
    ("limit", "expected"), [("00:10:00", 10), ("1-00:00:00", 1440), ("2-01:02:03", 2943)]
)
def test_minutes_of_a_time_limit(limit: str, expected: int) -> None:
    assert batch_script.minutes(limit) == expected


@pytest.mark.parametrize(
    ("gpus", "kind", "expected"),
    [
        ("gpus-per-node", None, {"gpus-per-node": "2"}),
        ("gpus-per-node", "h100", {"gpus-per-node": "h100:2"}),
        ("gres", None, {"gres": "gpu:2"}),
        ("gres", "h100", {"gres": "gpu:h100:2"}),
        ("none", None, {}),
    ],
)
def test_gpus_are_asked_for_as_the_site_wants(
    gpus: str, kind: str | None, expected: dict[str, str]
) -> None:
    spec = changed(
        {
            "cluster.device": "auto",
            "cluster.slurm.gpus": gpus,
            "cluster.slurm.gpu_type": kind,
            "launch.nproc_per_node": 2,
        }
    )
    found = options(of_a_run(spec))
    assert {k: v for k, v in found.items() if k in ("gpus-per-node", "gres")} == expected


def test_a_job_on_cpus_asks_for_no_gpus() -> None:
    found = options(of_a_run(changed({"cluster.device": "cpu"})))
    assert "gpus-per-node" not in found


@pytest.mark.parametrize(("kind", "says"), [("local", "must be null"), ("slurm", "is required")])
def test_the_kind_and_what_it_needs_go_together(kind: str, says: str) -> None:
    changes: dict[str, Any] = {"cluster.kind": kind}
    if kind == "slurm":
        changes["cluster.slurm"] = None
    with pytest.raises(SpecError, match=f"cluster.slurm: {says}"):
        changed(changes)


def of_a_run(spec: RunSpec) -> str:
    return batch_script.script(spec, batch_script.of_run(RunDir(Path("/runs/a")), 1))


def changed(changes: dict[str, Any]) -> RunSpec:
    return make_spec(changes, cluster="slurm")


def test_bad_nodes_are_excluded_beside_those_of_the_config() -> None:
    place = batch_script.of_run(RunDir(Path("/runs/a")), 1, exclude=("n7", "n9"))
    plain = batch_script.script(spec_of(), place)
    assert options(plain)["exclude"] == "n7,n9"
    both = batch_script.script(spec_of("cluster.slurm.exclude=[n1]"), place)
    assert options(both)["exclude"] == "n1,n7,n9"
