"""A project of one's own: its training function, its keys, its failures."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from hpckit.cli.main import app
from hpckit.events.event_log import read_events
from hpckit.rundir.directory import RunDir
from hpckit.system.atomic_files import read_json
from tests.effort import some
from tests.integration.run.runs import complete, history

TRAINING = """
import torch
from torch import nn

from data import Loader, open_dataset
from hpckit import training_run


def main(cfg):
    with training_run(cfg) as run:
        model = nn.Linear(1, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=cfg.user_config["lr"])
        loader = Loader(
            open_dataset(cfg.data.shards),
            global_batch=cfg.train.global_batch,
            rank=run.rank,
            world_size=run.world_size,
            seed=cfg.train.seed,
        )
        run.track(model=model, optimizer=optimizer, loader=loader)
        for batch in run.steps(loader):
            {trouble}
            loss = model(torch.ones(1, 1)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            run.log(loss=loss.detach())
"""


def project(tmp_path: Path, trouble: str = "pass", head: str = "") -> Path:
    folder = tmp_path / "project"
    (folder / "mine").mkdir(parents=True)
    (folder / "mine" / "train.py").write_text(head + TRAINING.format(trouble=trouble))
    (folder / "launch.py").write_text(
        "import sys\nfrom hpckit.submit.launch_command import main\nsys.exit(main())\n"
    )
    return folder


def launch(folder: Path, root: Path, shards: Path, *overrides: str) -> tuple[int, str]:
    arguments = [
        *("name=t", "entry=mine.train:main", "user_config.lr=0.1", "data=shards"),
        *("train.steps=12", "train.global_batch=4", "train.log_every=1"),
        *("checkpoint.every_steps=5", "cluster.device=cpu", "launch.threads_per_worker=1"),
        *(f"root={root}", f"data.shards={shards}"),
    ]
    return complete(root, [sys.executable, "launch.py", *arguments, *overrides], cwd=folder)


def the_run(root: Path) -> RunDir:
    return RunDir(next(root.glob("t-*")))


def attempts(run: RunDir) -> int:
    return sum(event.kind == "worker_started" for event in read_events(run.events))


SAYS = """
import atexit
import numpy
print(f"drew {numpy.random.random()}", flush=True)
atexit.register(print, "at its end", flush=True)
"""


@pytest.mark.parametrize("preload", some([True], [False]))
def test_a_function_of_ones_own_runs_from_the_snapshot(
    tmp_path: Path, shards: Path, preload: bool
) -> None:
    """And the command line tells what there is."""
    folder = project(tmp_path, "run.step == 3 and run.log(once=7.0)", SAYS)
    root = tmp_path / "runs"
    ranks = ("launch.nproc_per_node=2", f"launch.preload={preload}")
    status, output = launch(folder, root, shards, *ranks)
    assert status == 0, output
    run = the_run(root)
    assert history(run).steps_kept == 12
    code = run.path / "code"
    assert (code / "mine" / "train.py").read_text() == (folder / "mine/train.py").read_text()
    assert {entry.name for entry in code.iterdir()} >= {"hpckit", "checkpointing", "data"}
    logs = [run.rank_log(1, 0, rank).read_text() for rank in (0, 1)]
    assert str(folder) not in logs[0]
    last = [log.rpartition(", attempt ")[2] for log in logs]  # of which there may be several
    assert [log.count("at its end") for log in last] == [1, 1]
    drew = {re.findall(r"^drew (.*)", log, re.MULTILINE)[0] for log in logs}
    assert len(drew) == 2, "ranks draw numbers of their own"
    records = history(run).kept
    assert [step for step, event in records.items() if event.get("once") is not None] == [4]
    require_that_commands_tell_of(run)


def require_that_commands_tell_of(run: RunDir) -> None:
    """Of a run of 12 steps that is done."""
    listed = hpckit("ckpt", "ls", str(run.path))
    assert listed.exit_code == 0
    committed = [event["step"] for event in history(run).committed]
    assert committed[-1] == 12
    for step in committed:  # 5 or 10 may have been overtaken by the next one
        assert re.search(rf"^\s*{step}\s.*committed", listed.stdout, re.MULTILINE), listed.stdout
    told = hpckit("report", str(run.path))
    assert "12 kept, 0 repeated" in told.stdout
    assert (run.report / "report.html").read_text().startswith("<!doctype html>")
    again = hpckit("resume", str(run.path))
    assert again.exit_code == 0
    assert "nothing to resume" in again.stdout
    wrong = hpckit("resume", str(run.path.parent))
    assert wrong.exit_code == 2
    assert wrong.stderr.startswith("error: ")


def test_an_import_error_is_permanent_at_the_first_attempt(tmp_path: Path, shards: Path) -> None:
    root = tmp_path / "runs"
    status, output = launch(project(tmp_path, head="import no_such_module\n"), root, shards)
    assert status == 70, output
    verdict = read_json(the_run(root).verdict)
    assert verdict["kind"] == "permanent"
    assert "no_such_module" in verdict["reason"]
    assert "no_such_module" in output
    assert attempts(the_run(root)) == 1


def test_a_crash_that_comes_back_ends_the_run(
    tmp_path: Path, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = "assert run.step < 7, 'the seventh step is cursed'"
    root, temporary = tmp_path / "runs", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    how = ("retry.max_restarts=1", "retry.crash=1", "launch.nodes=1", "launch.nproc_per_node=2")
    status, output = launch(project(tmp_path, trouble), root, shards, *how)
    assert status == 70, output
    run = the_run(root)
    verdict = read_json(run.verdict)
    assert verdict["kind"] == "permanent"
    assert "the seventh step is cursed" in output
    assert "times in a row at the same line after step 7" in verdict["reason"]
    assert verdict["error"]["type"] == "AssertionError"
    assert re.search(r"train\.py\", line \d+, in main", verdict["error"]["traceback"])
    # the third or fourth attempt that ends there is in the second generation
    assert [life.generation for life in history(run).lives] == [1, 1, 2, 2]
    assert verdict["saved_step"] == 5
    assert list(temporary.glob("*.pickle")) == [], "torch would have left and loaded them"


def test_a_passing_crash_is_survived(tmp_path: Path, shards: Path) -> None:
    flag = tmp_path / "cursed"
    flag.touch()
    trouble = (
        f"if run.step == 7 and __import__('os').path.exists({str(flag)!r}):\n"
        f"                __import__('os').unlink({str(flag)!r})\n"
        "                raise ValueError('only once')"
    )
    root = tmp_path / "runs"
    status, output = launch(project(tmp_path, trouble), root, shards)
    assert status == 0, output
    run = the_run(root)
    assert [(life.generation, life.start_step) for life in history(run).lives] == [(1, 0), (1, 5)]


def test_a_lack_of_gpu_memory_at_one_step_is_not_tried_for_ever(
    tmp_path: Path, shards: Path
) -> None:
    trouble = (
        "if run.step == 3:\n"
        "                lack = torch.OutOfMemoryError('CUDA out of memory. Tried to allocate')\n"
        "                raise RuntimeError('the step failed') from lack"
    )
    root = tmp_path / "runs"
    status, output = launch(project(tmp_path, trouble), root, shards)
    assert status == 70, output
    run = the_run(root)
    verdict = read_json(run.verdict)
    assert verdict["kind"] == "oom"
    for what in ("a lower train.micro_batch", "RuntimeError: the step failed", "retry.oom=1"):
        assert what in verdict["reason"]
    assert "OutOfMemoryError: CUDA out of memory" in verdict["error"]["traceback"]
    # of the three restarts in place only the first, in a generation and in the one of retry.oom
    assert [life.generation for life in history(run).lives] == [1, 1, 2, 2]
    assert "out of memory (gpu) on node 0 after step 3" in output


@pytest.mark.parametrize(
    ("trouble", "kind", "says"),
    [
        (
            "if run.step == 3: __import__('os').kill(__import__('os').getpid(), 9)",
            "crash",
            "workers were killed without reporting an error",
        ),
        (
            "if run.step == 3: __import__('time').sleep(600)",
            "hang",
            "Hang: no step was finished after step 3",
        ),
    ],
    ids=["killed by somebody", "hangs"],
)
def test_the_verdict_says_of_what_a_run_ended(
    tmp_path: Path, shards: Path, trouble: str, kind: str, says: str
) -> None:
    # a machine with much else to do may take seconds to tell of a rank that was killed
    limit = f"hang.step_s={10 if kind == 'hang' else 60}"
    root, retry = tmp_path / "runs", ("retry=none", limit)
    status, output = launch(project(tmp_path, trouble), root, shards, *retry)
    assert status == 70, output
    verdict = read_json(the_run(root).verdict)
    assert verdict["kind"] == kind
    assert says in verdict["reason"]
    assert f"retry.{kind}=0" in verdict["reason"]


TRIED = """
for mistake in (
                lambda: run.log(time=1.0),
                lambda: run.log(text="a"),
                lambda: run.log(vector=torch.ones(3)),
            ):
                try:
                    mistake()
                except Exception as error:
                    print(f"refused: {error}")
            if run.step == 7: return
"""


@pytest.mark.parametrize(
    ("trouble", "says"),
    [
        (TRIED.strip(), "ended in step 8 of 12"),
        ("next(iter(run.steps(loader)))", "run.steps was called twice"),
    ],
)
def test_a_mistake_in_the_loop_is_permanent_and_no_half_step_is_saved(
    tmp_path: Path, shards: Path, trouble: str, says: str
) -> None:
    root = tmp_path / "runs"
    status, output = launch(project(tmp_path, trouble), root, shards)
    assert status == 70, output
    run = the_run(root)
    verdict = read_json(run.verdict)
    assert verdict["kind"] == "permanent"
    assert says in verdict["reason"]
    assert attempts(run) == 1
    assert verdict["saved_step"] in (0, 5)
    if trouble == TRIED.strip():
        said = run.rank_log(1, 0, 0).read_text()
        for reason in (
            "run.log(time=...): hpckit's own records use this name",
            "run.log(text=...): needs a number, got 'a'",
            "run.log(vector=...): needs one real number",
        ):
            assert said.count(f"refused: {reason}") == 8, said


def test_ranks_that_log_different_metrics_are_told_so(tmp_path: Path, shards: Path) -> None:
    root = tmp_path / "runs"
    trouble = "run.log(**{f'rank{run.rank}': 1.0})"
    status, output = launch(project(tmp_path, trouble), root, shards, "launch.nproc_per_node=2")
    assert status == 70, output
    assert "ranks logged different metrics" in read_json(the_run(root).verdict)["reason"]


@pytest.mark.parametrize("verb", [["ckpt", "ls"], ["report"], ["resume"]])
def test_the_command_line_on_a_missing_path(tmp_path: Path, verb: list[str]) -> None:
    done = hpckit(*verb, str(tmp_path / "nothing"))
    assert done.exit_code == 2
    assert str(tmp_path / "nothing") in done.stderr


def test_pack_on_the_command_line(tmp_path: Path) -> None:
    source = tmp_path / "texts"
    source.mkdir()
    for number in range(5):
        (source / f"text{number}.txt").write_text(f"text {number}")
    out = tmp_path / "shards"
    done = hpckit("data", "pack", str(source), str(out), "--samples-per-shard", "2")
    assert done.exit_code == 0, done.stderr
    assert "5 samples" in done.stdout
    assert len(list(out.glob("*.tar"))) == 3
    missing = hpckit("data", "pack", str(tmp_path / "none"), str(tmp_path / "x"))
    assert missing.exit_code == 2
    assert "none" in missing.stderr


def hpckit(*arguments: str) -> Result:
    """A command, in this process."""
    return CliRunner().invoke(app, arguments, env={"COLUMNS": "200"}, catch_exceptions=False)


DIES_BEFORE_THE_FIRST_SAVE = """
import os
import signal

from checkpointing import Checkpointer

save = Checkpointer.save

def save_or_die(self, step, *given, **named):
    is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    if step == 5 and os.environ["RANK"] == "1" and is_first:
        os.kill(os.getpid(), signal.SIGKILL)
    save(self, step, *given, **named)

Checkpointer.save = save_or_die
"""


def test_what_one_rank_has_saved_alone_is_not_waited_for(tmp_path: Path, shards: Path) -> None:
    """On a node that has not failed torchrun counts no restart, so that it looks like a start."""
    root = tmp_path / "runs"
    folder = project(tmp_path, head=DIES_BEFORE_THE_FIRST_SAVE)
    status, output = launch(folder, root, shards, "launch.nodes=2")
    assert status == 0, output
    run = the_run(root)
    lives = history(run).lives
    assert [(life.start_step, life.end) for life in lives] == [(0, "worker lost"), (0, "done")]
    logs = "".join(path.read_text(errors="replace") for path in run.logs.rglob("*.log"))
    assert "training from step 0" in logs
    assert "given up" not in logs
