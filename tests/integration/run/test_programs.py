"""Training scripts under the supervisor: killed, preempted, and as if nothing had been."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from hpckit.events.event_log import read_events
from hpckit.rundir.directory import RunDir
from hpckit.system.atomic_files import read_json
from tests.integration.examples.example_programs import ForkedProgram
from tests.integration.run import plain_script
from tests.integration.run.program_runs import (
    launch_line,
    losses_of,
    losses_without,
    project_with,
)
from tests.integration.run.runs import complete, history, kill, started

ON_ONE_CPU = ("cluster.device=cpu", "launch.threads_per_worker=1")
ON_CPUS = (*ON_ONE_CPU, "launch.nodes=2")
PATTERN = r"command.step_pattern=step (?P<step>\d+) of \d+: loss (?P<loss>\S+)"


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkedProgram]:
    with closing(ForkedProgram(plain_script.__name__, "torch.nn.parallel")) as forks:
        yield forks


def test_a_script_that_knows_nothing_of_hpckit(tmp_path: Path, forks: ForkedProgram) -> None:
    """It is killed, preempted, and ends with the losses that it has without hpckit."""
    expected = losses_without("ddp_script.py", tmp_path / "alone", forks)
    assert list(expected) == list(range(1, 61))
    project = project_with(tmp_path / "project", "ddp_script.py")
    line = launch_line(*ON_CPUS, PATTERN, "--", "torchrun", "train.py", "--step-s=0.2")
    with started(project, line, cwd=project) as it:
        it.wait_for_step(7)
        (victim,) = [e["pid"] for e in it.events() if e.kind == "worker_started" and e["rank"] == 1]
        kill(victim)
        it.wait_for("training_started", 2)
        it.wait_for_step(17)
        psutil.Process(it.wait_for("run_started")["pid"]).send_signal(signal.SIGUSR2)
        status, output = it.finish()
    assert status == 0, output
    assert losses_of(it.run) == expected
    assert [event["verdict"] for event in it.events() if event.kind == "generation_ended"] == [
        "preempted",
        "done",
    ]
    lives = history(it.run).lives
    assert [life.end for life in lives] == ["worker lost", "preempted", "done"]
    assert lives[-1].end_step == 60
    assert all(life.start_step % 5 == 0 for life in lives), "from the script's own checkpoints"
    ineffective = [e["what"] for e in it.events() if e.get("subject") == "environment"]
    assert ineffective, "the script sets a variable too late, as workers are forks"
    assert all("TORCHDYNAMO_VERBOSE=1 has no effect" in what for what in ineffective)
    for rank in range(2):
        steps = [int(line) for line in (project / f"finished-{rank}.txt").read_text().split()]
        assert set(range(lives[1].start_step + 1, 61)) <= set(steps), "and of files left open"


def test_a_script_finds_what_it_finds_below_torchrun(tmp_path: Path) -> None:
    project = project_with(tmp_path / "project", "observing_script.py")
    (project / "tools").mkdir()
    (project / "tools" / "helper.py").write_text("import beside\n")
    (project / "tools" / "beside.py").write_text("print('found')\n")
    (project / "tools" / "__init__.py").touch()
    with started(project, launch_line(*ON_CPUS, "--", "python", "train.py"), cwd=project) as it:
        status, output = it.finish()
    assert status == 0, output
    (written,) = [e["what"] for e in it.events() if e.get("subject") == "written_code"]
    assert written.startswith("the program wrote tools/left.txt into the copy of its code")
    found = [read_json(project / f"found-{rank}.json") for rank in range(2)]
    for one, other in zip(found[0].pop("random"), found[1].pop("random"), strict=True):
        assert one != other, "ranks draw different numbers"
    assert found[0] == found[1]
    assert found[0] == {
        "name": "MainProcess",
        "has_parent": False,
        "start_method": None,
        "children": "Process-1",
        "temporary": str(project / "temporary"),
        "is_default": [True, True, True],
        "is_main_thread_blocked": False,
        "can_end_children": "True",
        "helper": "found",
    }
    for rank in range(2):
        first, *others = (project / f"log-{rank}.txt").read_text().splitlines()
        assert first == f"of rank {rank}"
        assert not any("below the default level" in other for other in others)


def test_a_script_with_the_client_leaves_at_one_step(tmp_path: Path, forks: ForkedProgram) -> None:
    """No step is done twice: all ranks save and leave together."""
    expected = losses_without("client_script.py", tmp_path / "alone", forks)
    assert list(expected) == list(range(1, 61))
    project = project_with(tmp_path / "project", "client_script.py")
    line = launch_line(*ON_CPUS, "--", "python", "train.py", "0.5")
    with started(project, line, cwd=project) as it:
        it.wait_for_step(2)
        psutil.Process(it.wait_for("run_started")["pid"]).send_signal(signal.SIGUSR2)
        status, output = it.finish()
    assert status == 0, output
    assert losses_of(it.run) == expected
    first, second = history(it.run).lives
    assert (first.end, second.end) == ("preempted", "done")
    assert second.start_step == first.end_step > 2
    assert read_json(it.run.verdict)["saved_step"] == first.end_step
    assert history(it.run).reported[0].step == first.end_step
    text = "".join(log.read_text() for log in it.run.logs.glob("g001/n*/rank*.log"))
    assert text.count(f"leaves after step {first.end_step}\n") == 2


RAISES = """
import sys, time

def main():
    for step in range(1, 9):
        if step == 4:
            raise KeyError(f"sample {time.time()}")
        print(f"step {step} of 8: loss {1 / step}", flush=True)

main()
"""


def test_an_error_of_the_script_is_shown_where_it_is_and_not_tried_for_ever_at_one_step(
    tmp_path: Path,
) -> None:
    """Its message differs each time, and its line and step do not."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(RAISES)
    line = launch_line(*ON_ONE_CPU, PATTERN, "--", "python", "train.py")
    status, output = complete(project, line, cwd=project)
    assert status == 70, output
    (path,) = project.glob("t-*")
    run = RunDir(path)
    verdict = read_json(run.verdict)
    assert verdict["kind"] == "permanent"
    assert "KeyError" in verdict["reason"]
    assert "3 times in a row at the same line after step 3" in verdict["reason"]
    error = verdict["error"]
    assert error["type"] == "KeyError"
    assert re.fullmatch(r"'sample [\d.]+'", error["message"])
    assert 'train.py", line 7, in main' in error["traceback"]
    started = [e["attempt"] for e in read_events(run.events) if e.kind == "worker_started"]
    assert sorted(started)[:3] == [0, 1, 2]


HANGS = """
import json, os, sys, time
from pathlib import Path

import torch
from torch.utils.tensorboard import SummaryWriter


def wait_for_ever():
    while True:
        time.sleep(1)


mark = Path("hung_once")
writer = SummaryWriter(flush_secs=1) if sys.argv[1:] else None
for step in range(1, 17):
    if step == 9 and not mark.exists():
        mark.touch()
        wait_for_ever()
    time.sleep(0.8)
    if writer is None:
        print(f"step {step} of 16: loss {1 / step}", flush=True)
    else:
        writer.add_scalar("Loss/train", 1 / step, step)
        writer.flush()
print("over", flush=True)
"""


@pytest.mark.parametrize(
    ("keys", "arguments"),
    [((PATTERN,), ()), (("command.tensorboard_dir=runs",), ("--tensorboard",))],
    ids=["printed", "tensorboard"],
)
def test_a_script_that_stops_to_write_steps_is_started_again(
    tmp_path: Path, keys: tuple[str, ...], arguments: tuple[str, ...]
) -> None:
    """Its steps and losses are known, without a line of hpckit in it."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(HANGS)
    more = (*ON_ONE_CPU, "hang.output_s=20", *keys)
    line = launch_line(*more, "--", "python", "train.py", *arguments)
    status, output = complete(project, line, cwd=project)
    assert status == 0, output
    (path,) = project.glob("t-*")
    run = RunDir(path)
    events = read_events(run.events)
    (hang,) = [event for event in events if event.kind == "hang"]
    assert (hang["step"], hang["phase"]) == (8, "running")
    assert "wait_for_ever" in Path(hang["stacks"][0]).read_text()
    assert history(run).lives[-1].end_step == 16
    recorded = {event["step"]: event["loss"] for event in events if event.kind == "step"}
    assert recorded[16] == 1 / 16


OWN_NAMES = {
    "data.py": "def batches():\n    yield from range(1, 6)\n",
    "checkpointing/__init__.py": "from checkpointing.saves import save\n",
    "checkpointing/saves.py": "def save(step):\n    print(f'saved {step}', flush=True)\n",
    "train.py": """
import sys

from checkpointing import save
from data import batches
from hpckit import client

if has_torch := not sys.argv[1:]:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
for step in batches():
    total = 1.0
    if has_torch:
        total = torch.ones(1)
        dist.all_reduce(total)
    client.step(step, loss=total)
    save(step)
    client.checkpointed(step)
    if client.should_stop():
        break
import checkpointing
print("mine:", checkpointing.__file__, flush=True)
if has_torch:
    try:
        import hpckit.integrations.lightning
    except ImportError as error:
        print("refused:", error, flush=True)
    import checkpointing
    print("still mine:", checkpointing.__file__, flush=True)
    dist.destroy_process_group()
""",
}


@pytest.mark.parametrize(
    "words",
    [("python", "train.py"), ("python", "-m", "train"), ("bash", "train.sh")],
    ids=["script", "module", "child"],
)
def test_a_script_whose_modules_have_the_names_of_hpckits_packages(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    project = tmp_path / "project"
    for name, text in OWN_NAMES.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    # a child has nothing from a fork server: to import torch would take it seconds of a processor
    (project / "train.sh").write_text(f"exec {sys.executable} train.py without-torch\n")
    line = launch_line(*ON_ONE_CPU, "--", *words)
    status, output = complete(project, line, cwd=project)
    assert status == 0, output
    (path,) = project.glob("t-*")
    run = RunDir(path)
    events = read_events(run.events)
    assert [e["step"] for e in events if e.kind == "checkpoint_reported"] == [1, 2, 3, 4, 5]
    assert max(e["step"] for e in events if e.kind == "step") == 5
    text = run.rank_log(1, 0, 0).read_text()
    assert "saved 5" in text
    home = project if words[0] == "bash" else run.code(1) / "project-code"
    assert f"\nmine: {home}/checkpointing/__init__.py" in text
    if words[0] != "bash":
        assert f"still mine: {home}/checkpointing/__init__.py" in text
        assert "refused: hpckit.integrations.lightning needs hpckit's package checkpointing" in text
    assert run.code(1).joinpath("data/__init__.py").is_file(), "hpckit's own"


LOSES_A_RANK = """
import os
from pathlib import Path

import torch
import torch.distributed as dist

from checkpointing import Checkpointer

dist.init_process_group("gloo")
state = {"weights": torch.zeros(3), "step": 0}
with Checkpointer("checkpoints", run="r") as ckpt:
    if dist.get_rank() == 1 and not (mark := Path("ended_once")).exists():
        mark.touch()
        os._exit(3)
    ckpt.restore(state)
    ckpt.save(1, state)
    ckpt.wait()
print("restored by rank", dist.get_rank(), flush=True)
dist.destroy_process_group()
"""


def test_a_rank_that_ends_while_others_restore_is_started_again(tmp_path: Path) -> None:
    """The error of those others is not one that another attempt meets too."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(LOSES_A_RANK)
    line = launch_line(*ON_ONE_CPU, "--", "torchrun", "--nproc-per-node=2", "train.py")
    status, output = complete(project, line, cwd=project)
    assert status == 0, output
    (path,) = project.glob("t-*")
    run = RunDir(path)
    text = "".join(log.read_text() for log in run.path.rglob("*") if log.suffix in (".log", ".out"))
    assert {f"restored by rank {rank}" in text for rank in range(2)} == {True}
    assert "another rank has ended" in text
