"""A campaign, and an oracle that is shown to see what it is there for."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from checkpointing.service.protocol.socket_address import address
from hpckit.cli.main import app
from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import read_spec
from hpckit.events.event_log import read_events
from hpckit.faults.campaign.campaign_runner import judge
from hpckit.faults.campaign.fault_log import CampaignLog
from hpckit.faults.campaign.fault_schedule import (
    STEP_S,
    ScheduledFault,
    load_schedule,
    make_schedule,
    save_schedule,
)
from hpckit.faults.campaign.oracle import leftovers, violations
from hpckit.faults.fault_plan import DrillKind
from hpckit.rundir.directory import RunDir, store_and_name
from tests.integration.cli.run_commands import HPCKIT
from tests.integration.run.runs import end_leftovers

STEPS = 75
DISK = DrillKind.ENOSPC if shutil.which("strace") else DrillKind.FULL
SCHEDULE = (
    ScheduledFault(12, DrillKind.WORKER, 0.9),
    ScheduledFault(16, DrillKind.MANIFEST, 0.9),
    ScheduledFault(22, DrillKind.DAMAGE, 0.9),
    ScheduledFault(24, DrillKind.CACHE, 0.9),
    ScheduledFault(26, DrillKind.SERVICE_TERM, 0.9),
    ScheduledFault(30, DrillKind.SERVICE, 0.0),
    ScheduledFault(34, DrillKind.WORKER_TERM, 0.0),
    ScheduledFault(40, DrillKind.NAN, 0.0),
    ScheduledFault(45, DrillKind.AGENT_TERM, 0.9),
    ScheduledFault(48, DrillKind.REQUEUE, 0.0),  # there is no queue: it is left out
    ScheduledFault(50, DrillKind.SUPERVISOR, 0.0),
    ScheduledFault(60, DISK, 0.0),
)
DONE = len(SCHEDULE) - 1
EVERY_S = 5
"""On average, between the faults of a schedule that a seed makes."""


def hpckit(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HPCKIT, *words], capture_output=True, text=True, timeout=500)


def drill(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return hpckit("drill", "campaign", f"--folder={folder}", *words)


def refused(*words: str) -> str:
    """What a command says that begins nothing, in this process."""
    found = CliRunner().invoke(app, ["drill", *words], env={"COLUMNS": "300"})
    assert (found.exit_code, found.stdout) == (2, "")
    return found.stderr


def overrides(shards: Path, cache: Path) -> list[str]:
    words = [f"data.shards={shards}", f"data.cache={cache}", "data.cache_local=true"]
    return ["data=shards", *words, "checkpoint.every_steps=5"]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory, shards: Path) -> Iterator[Path]:
    """The folder of a campaign that went well."""
    root = tmp_path_factory.mktemp("campaign")
    save_schedule(root / "faults.jsonl", SCHEDULE)
    try:
        done = drill(
            root / "c",
            *(f"--replay={root / 'faults.jsonl'}", f"--minutes={STEPS * 0.2 / 60}", "--json"),
            *overrides(shards, root / "cache"),
        )
        assert done.returncode == 0, done.stdout + done.stderr
        result = json.loads(done.stdout)
        assert result["problems"] == []
        assert (result["faults"], result["steps"]) == (DONE, STEPS)
        assert {row["kind"] for row in result["rows"]} >= {*("worker", "supervisor", "nan")}
        assert all(
            line in done.stderr
            for line in (
                *(f"{len(SCHEDULE)} faults in {STEPS} steps", "SIGKILL of the super"),
                "left out at step 48: requeue: a run on this machine is not in a queue",
            )
        )
        assert (root / "cache/quarantine").exists(), "it was found, and fetched again"
        yield root / "c"
    finally:
        for runs in root.glob("c/**/campaign-*"):
            end_leftovers(runs.parent, "campaign-*")


def runs_of(folder: Path) -> tuple[RunDir, RunDir]:
    """That which was broken, and the one that was not."""
    (run,), (reference,) = (folder.glob(f"{name}/campaign-*") for name in ("1/runs", "reference"))
    return RunDir(run), RunDir(reference)


def test_a_campaign_leaves_its_faults_and_its_result(broken: Path) -> None:
    assert len((broken / "1/faults.jsonl").read_text().splitlines()) == len(SCHEDULE)
    page = (broken / "1/result.md").read_text()
    assert f"{DONE} faults in" in page
    assert "0 violations" in page
    (broken / "1/result.md").unlink()
    done = hpckit("drill", "judge", str(broken), "--json")
    assert (done.returncode, json.loads(done.stdout)) == (
        0,
        json.loads((broken / "1/result.json").read_text()),
    )
    assert (broken / "1/result.md").read_text() == page


def test_a_seed_and_a_known_reference_are_enough(
    broken: Path, tmp_path: Path, shards: Path
) -> None:
    _, reference = runs_of(broken)
    words = overrides(shards, broken.parent / "cache")
    minutes = f"--minutes={STEPS * 0.2 / 60}"
    other = drill(tmp_path / "o", f"--reference={reference.path}", "--minutes=0.2", *words)
    assert (other.returncode, "it has another config" in other.stderr) == (2, True)
    assert not (tmp_path / "o").exists()
    chosen = ("--seed=10", f"--every={EVERY_S}", "--faults=worker,nan")
    try:
        done = drill(
            tmp_path / "c", f"--reference={reference.path}", minutes, *chosen, *words, "--json"
        )
    finally:
        for runs in tmp_path.glob("c/**/campaign-*"):
            end_leftovers(runs.parent, "campaign-*")
    assert done.returncode == 0, done.stdout + done.stderr
    rates = {"worker": 1.0, "nan": 1.0}
    due = make_schedule(10, STEPS, EVERY_S / STEP_S, rates)
    assert load_schedule(tmp_path / "c/1/faults.jsonl", rates) == due
    assert json.loads(done.stdout)["faults"] == len(due) > 1
    assert not (tmp_path / "c/reference").exists()


def test_what_was_ended_early_is_judged_as_far_as_it_came(broken: Path, tmp_path: Path) -> None:
    run, reference = runs_of(broken)
    copy, notes = RunDir(tmp_path / run.name), CampaignLog(tmp_path)
    shutil.copytree(run.path, copy.path, symlinks=True)
    notes.begin(copy, reference)
    (tmp_path / "struck.jsonl").write_text((broken / "1/struck.jsonl").read_text() + '{"time": 1')
    change_lines(copy.events, lambda line: "" if step_of(line) > 65 else line)
    assert "step 66: its loss was not recorded" in judge(tmp_path).problems
    copy.verdict.write_text(json.dumps({"kind": "stopped", "reason": "hpckit cancel"}))
    outcome = judge(tmp_path)
    assert (outcome.problems, len(outcome.struck)) == ((), DONE)
    change_lines(copy.events, lambda line: "" if step_of(line) == 65 else line)
    drop_a_ledger_line(copy)
    assert judge(tmp_path).problems == ()  # of the last step, which does not count
    copy.verdict.unlink()
    assert "verdict: there is none" in judge(tmp_path).problems


def step_of(line: str) -> int:
    event = json.loads(line)
    return int(event["step"]) if event["kind"] == "step" else 0


def test_where_no_campaign_has_begun_there_is_nothing_to_judge(tmp_path: Path) -> None:
    assert refused("judge", str(tmp_path)) == (
        f"error: {tmp_path / '1'}: no campaign has started a run there\n"
    )


def change_lines(path: Path, change: Callable[[str], str]) -> None:
    path.write_text("".join(change(line) for line in path.read_text().splitlines(keepends=True)))


def drop_a_ledger_line(run: RunDir) -> None:
    path = sorted(run.ledger.iterdir())[-1]
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))


def swap_keys(run: RunDir) -> None:
    path = sorted(run.ledger.iterdir())[-1]
    *lines, last = path.read_text().splitlines(keepends=True)
    entry = json.loads(last)
    entry["keys"][:2] = reversed(entry["keys"][:2])
    path.write_text("".join([*lines, json.dumps(entry) + "\n"]))


def change_a_loss(run: RunDir) -> None:
    def change(line: str) -> str:
        event = json.loads(line)
        if event["kind"] == "step" and event["step"] == 68:
            event["loss"] += 1e-9
        return json.dumps(event) + "\n"

    change_lines(run.events, change)


def lose_a_checkpoint(run: RunDir) -> None:
    newest = sorted(run.checkpoints.glob(f"**/*{STEPS:010d}*"))
    assert newest
    for path in newest:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def flip_bytes(run: RunDir) -> None:
    """One of each pack: some packs have bytes that no checkpoint needs any more."""
    for pack in (path for path in run.checkpoints.glob("packs/**/*") if path.is_file()):
        data = bytearray(pack.read_bytes())
        data[len(data) // 2] ^= 1
        pack.chmod(0o600)
        pack.write_bytes(data)


def say_crash(run: RunDir) -> None:
    verdict = json.loads(run.verdict.read_text())
    run.verdict.write_text(json.dumps(verdict | {"kind": "crash", "reason": "KeyError"}))


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (drop_a_ledger_line, f"step {STEPS}: positions"),
        (swap_keys, ", and not "),
        (change_a_loss, "step 68: loss"),
        (lose_a_checkpoint, " was reported as durable but does not exist"),
        (flip_bytes, "checkpoint 00000000"),
        (say_crash, "verdict: crash: KeyError"),
    ],
)
def test_the_oracle_sees(
    broken: Path, tmp_path: Path, harm: Callable[[RunDir], None], says: str
) -> None:
    run, reference = runs_of(broken)
    copy = RunDir(tmp_path / run.name)
    shutil.copytree(run.path, copy.path, symlinks=True)
    harm(copy)
    found = violations(copy, reference)
    assert any(says in line for line in found), found


@contextmanager
def left_behind(run: RunDir) -> Iterator[int]:
    env = os.environ | {"HPCKIT_RUN": str(run.path)}
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=env) as one:
        yield one.pid


def test_the_oracle_sees_a_process_that_is_left(broken: Path) -> None:
    run, reference = runs_of(broken)
    harmed = {one.harmed for one in CampaignLog(broken / "1").faults() if one.harmed is not None}
    assert harmed
    with left_behind(run) as pid:
        found = violations(run, reference, harmed)
    assert [line.partition(": ")[0] for line in found] == [f"process {pid} is left over"], found


@contextmanager
def listening(spec: RunSpec, run: RunDir) -> Iterator[Path]:
    """As the checkpoint service of the run's first node."""
    path = address(*store_and_name(spec, run), "0")
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))
        try:
            yield path
        finally:
            path.unlink()


def test_the_oracle_tells_a_runs_sockets_from_those_of_one_of_its_name_elsewhere(
    broken: Path, tmp_path: Path
) -> None:
    run, _ = runs_of(broken)
    spec, events = read_spec(run.spec(1)), read_events(run.events)
    with listening(spec, RunDir(tmp_path / run.name)):
        assert leftovers(spec, run, events) == []
    with listening(spec, run) as path:
        assert leftovers(spec, run, events) == [f"socket {path} is left over"]


def test_what_cannot_be_done_is_refused_before_anything_runs(tmp_path: Path) -> None:
    assert refused("campaign", f"--folder={tmp_path}") == (
        f"error: {tmp_path} already exists: give another --folder\n"
    )
    for words, says in (
        (("--faults=fire",), "'fire' is not a fault; the faults are"),
        ((f"--replay={tmp_path / 'none'}",), "none does not exist"),
        (("no.such=1", "--minutes=0.1"), "error: launch.py: no: unknown key"),
    ):
        assert says in refused("campaign", f"--folder={tmp_path / 'c'}", *words)
        assert not (tmp_path / "c").exists(), "the next try, without the mistake, may have it"
