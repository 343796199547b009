"""Interrupted and resumed, a run is the run that was never interrupted."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from checkpointing import list_checkpoints
from hpckit.cli.why import budget_of_run
from hpckit.config.spec_parser import read_spec
from hpckit.faults.injection.process_faults import ProcessFault, victims
from hpckit.report.overview import Queue
from hpckit.report.page.content_reader import read_content
from hpckit.report.page.page_content import RecordDamage
from hpckit.report.page.page_file import render
from hpckit.rundir.directory import RunDir
from hpckit.rundir.sample_ledger import count_epochs
from hpckit.system.atomic_files import read_json
from tests.effort import some
from tests.integration.checkpoint.store_damage import check, committed_in, packs_of
from tests.integration.run.runs import (
    ALONE,
    DRILLED,
    ON_ONE_NODE,
    PACED,
    STEPS,
    Followed,
    Started,
    assert_same_run,
    command,
    complete,
    eventually,
    history,
    is_that_process,
    kept,
    kill,
    losses,
    samples_by_step,
    started,
)
from tests.integration.service.running_services import kill_all

PROGRAM = "from hpckit.cli.main import app; app()"


def test_reference_sees_each_sample_of_an_epoch_once(reference: RunDir) -> None:
    samples = history(reference).samples
    assert samples
    *whole, last = count_epochs(kept(reference), samples, STEPS * 8)
    assert len(whole) == STEPS * 8 // samples
    assert all(count.exact for count in whole)
    assert not last.twice


def test_a_page_about_a_run_says_what_its_records_say(reference: RunDir) -> None:
    it = read_content(reference, Queue(), budget_of_run)
    story = history(reference)
    assert [step for step, _ in it.loss.points] == sorted(story.kept)
    assert [one.step for one in it.saved] == [event["step"] for event in story.committed]
    assert max(it.saved, key=lambda one: one.step).state == "kept"
    assert all(one.bytes and one.new_bytes for one in it.saved)
    assert it.loader_totals is not None
    assert it.in_steps.parts
    assert (it.damage, it.findings) == (RecordDamage(), ())
    page = render([it], "html")
    assert f"{STEPS} of {STEPS}" in page
    # loss on two axes, norm and rate; speed, attempts, wall time, time of steps, node-hours
    assert page.count("<svg xmlns") == 9
    assert f"**step**: {STEPS} of {STEPS}" in render([it], "md")


def test_preempted_on_the_same_world(tmp_path: Path, shards: Path, reference: RunDir) -> None:
    drill = (*ON_ONE_NODE, DRILLED, "debug.drill.preempt_at=[13]")
    status, output = complete(tmp_path, command(tmp_path, shards, *drill))
    assert status == 0, output
    run = RunDir(next(tmp_path.glob("t-*")))
    assert_same_run(run, reference)
    story = history(run)
    assert [life.end for life in story.lives] == ["preempted", "done"]
    assert [gap.repeated for gap in story.interruptions] == [0]
    assert story.lives[1].start_step >= 13
    assert curve(run, "loss") == pytest.approx(losses(run))
    drawn = [path for path in run.logs.rglob("*") if says(path, "the parameters are initialized")]
    assert drawn
    assert {path.relative_to(run.logs).parts[0] for path in drawn} == {"g001"}, (
        "for a new run alone"
    )


def curve(run: RunDir, name: str) -> dict[int, float]:
    """Of TensorBoard."""
    found = EventAccumulator(str(run.tensorboard))
    found.Reload()
    return {point.step: point.value for point in found.Scalars(name)}


def says(path: Path, words: str) -> bool:
    return path.is_file() and words in path.read_text(errors="replace")


def test_preempted_and_resumed_on_other_worlds(
    tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    drill = (DRILLED, "debug.drill.preempt_at=[13,37]", "debug.drill.nodes=[2,1,2]")
    status, output = complete(tmp_path, command(tmp_path, shards, *drill))
    assert status == 0, output
    run = RunDir(next(tmp_path.glob("t-*")))
    assert [life.world_size for life in history(run).lives] == [2, 1, 2]
    assert samples_by_step(run) == samples_by_step(reference)
    assert losses(run) == pytest.approx(losses(reference), rel=1e-3)
    until = history(run).lives[0].end_step
    same_world = {step: loss for step, loss in losses(run).items() if step <= until}
    assert same_world == {step: losses(reference)[step] for step in same_world}


def test_a_run_that_is_done_is_trained_for_longer(
    tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    """The steps before are not done again, and those after take the next samples."""
    words = command(tmp_path, shards, *ALONE, "train.steps=30")
    status, output = complete(tmp_path, words)
    assert status == 0, output
    run = RunDir(next(tmp_path.glob("t-*")))
    resume = [sys.executable, "-c", PROGRAM, "resume", str(run.path)]
    status, output = complete(tmp_path, [*resume, f"train.steps={STEPS}"])
    assert status == 0, output
    assert f"gets train.steps={STEPS}, not 30, and continues after step 30" in output
    assert f"is that of {STEPS} steps from now on: the learning rate was" in output
    assert [(life.start_step, life.end_step) for life in history(run).lives] == [(0, 30), (30, 60)]
    assert samples_by_step(run) == samples_by_step(reference)
    assert len(list(tmp_path.glob("t-*"))) == 1
    status, output = complete(tmp_path, words)
    assert status == 0, output
    assert "is done; nothing to do" in output
    assert len(list(tmp_path.glob("t-*"))) == 1


OF_STAGES = ("parallel=ddp", "parallel.pipeline=2", "train.micro_batch=2")


@pytest.mark.parametrize("second_way", some([OF_STAGES], [("parallel=hsdp",)]))
def test_divided_and_sharded_models_and_pipelines_go_on_in_other_degrees(
    tmp_path: Path, shards: Path, reference: RunDir, second_way: tuple[str, ...]
) -> None:
    """Preempted by signals, each way goes on on another world, and the second where the first was
    stopped."""
    worlds = {
        ("parallel=fsdp_tp", "debug.drill.nodes=[2,1]"): (signal.SIGUSR2, signal.SIGINT),
        (*second_way, "debug.drill.nodes=[1,2]"): (signal.SIGTERM,),
    }
    begun = iter(enumerate((13, 25, 37), start=1))
    for start, (words, signals) in enumerate(worlds.items(), start=1):
        many = command(tmp_path, shards, "launch.nproc_per_node=2", PACED, *words)
        with started(tmp_path, many) as it:
            supervisor = it.wait_for("run_started", start)["pid"]
            for number, (life, step) in zip(signals, begun, strict=False):
                it.wait_for("training_started", life)
                it.wait_for_step(step)
                kill(supervisor, number)
            status, output = it.finish()
        assert status == (130 if signal.SIGINT in signals else 0), output
    story = history(it.run)
    ends = [(life.world_size, life.end) for life in story.lives]
    assert ends == [(4, "preempted"), (2, "stopped"), (2, "preempted"), (4, "done")]
    assert samples_by_step(it.run) == samples_by_step(reference)
    assert losses(it.run) == pytest.approx(losses(reference), rel=1e-3)


def test_fewer_ranks_at_a_smaller_learning_rate(
    tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    drill = ("debug.drill.preempt_at=[13]", "debug.drill.nodes=[2,1]", "elastic.scale_lr=linear")
    status, output = complete(tmp_path, command(tmp_path, shards, DRILLED, *drill))
    assert status == 0, output
    run = RunDir(next(tmp_path.glob("t-*")))
    first, _ = history(run).lives
    kept_lr, full_lr = ({s: e["lr"] for s, e in history(r).kept.items()} for r in (run, reference))
    for step, lr in kept_lr.items():
        assert lr == pytest.approx(full_lr[step] / (1 if step <= first.end_step else 2))
    due = 8 * first.end_step + 4 * (STEPS - first.end_step)
    assert max(max(e.positions) for e in kept(run)) + 1 == due, (
        "each step went on where the one before had ended"
    )
    assert f"epoch 1: {history(run).samples} of {history(run).samples} seen, each exactly" in output


def test_killed_part_by_part(tmp_path: Path, shards: Path, reference: RunDir) -> None:
    """A worker restarts in place; without an agent or its keeper there is a new generation; and
    SIGTERM to the supervisor is a preemption."""
    with started(tmp_path, command(tmp_path, shards, PACED)) as it:
        supervisor = psutil.Process(it.wait_for("run_started")["pid"])
        for life, at in enumerate((13, 23, 33, 43), start=1):
            it.wait_for("training_started", life)
            it.wait_for_step(at)
            if life == 1:
                kill(it.wait_for("worker_started", rank=1)["pid"])
            elif life == 2:
                (agent,) = victims(str(it.run.path), ProcessFault.AGENT, 1)
                agent.kill()
            elif life == 3:
                kill(it.wait_for("agent_started", node=1)["pid"])
            else:
                kill(supervisor.pid, signal.SIGTERM)
        status, output = it.finish()
    assert status == 0, output
    assert "worker lost" in output
    assert "lost the agent of node 1" in output
    assert_same_run(it.run, reference)
    lives = history(it.run).lives
    assert [life.generation for life in lives] == [1, 1, 2, 3, 4], "the first goes on in place"
    assert [life.end for life in lives[1:]] == ["infra", "infra", "preempted", "done"]
    assert lives[1].start_step in range(10, STEPS, 10), "a busy machine kills late"
    told = [(e.kind, e["node"]) for e in it.events() if e.kind.startswith("agent_")]
    both = [("agent_started", 0), ("agent_started", 1)]
    assert told == [*both, ("agent_killed", 1), ("agent_started", 1)], "the keeper, too"


def kill_supervisor_at(it: Started, step: int) -> None:
    victim = it.wait_for("run_started")
    it.wait_for_step(step)
    kill(victim["pid"])
    status, output = it.finish()
    assert status == 75, output
    assert "hpckit resume" in output
    it.wait_until_ended()  # the kernel ends the whole tree


def test_supervisor_killed_and_interrupted_until_started_again(
    tmp_path: Path, shards: Path, reference: RunDir
) -> None:
    """The newest checkpoint, which is torn by then, is skipped with a warning."""
    words = command(tmp_path, shards, *ON_ONE_NODE, PACED)
    with started(tmp_path, words) as it:
        kill_supervisor_at(it, 34)
    kill_all()  # or it may go on from what is whole in memory
    store = it.run.checkpoints
    for one in list_checkpoints(store):
        if one.state == "incomplete":  # the next job may commit it: its parts may all be there
            for part in store.glob(f"{one.key}*"):  # the key is a prefix
                part.unlink()
    *_, before, newest = committed_in(store)
    torn = max(packs_of(store, newest) - packs_of(store, before), key=lambda p: p.stat().st_size)
    with torn.open("r+b") as file:
        file.truncate(torn.stat().st_size // 2)
    hpckit = Path(sys.executable).with_name("hpckit")
    with started(tmp_path, [str(hpckit), "resume", str(it.run.path)]) as it:
        it.wait_for("training_started", 2)
        it.wait_for_step(46)
        it.process.send_signal(signal.SIGINT)
        status, output = it.finish()
    assert status == 130, output
    assert f"checkpoint {newest.step} skipped" in output
    assert read_json(it.run.verdict)["kind"] == "stopped"
    status, output = complete(tmp_path, words)
    assert status == 0, output
    assert len(list(tmp_path.glob("t-*"))) == 1
    assert_same_run(it.run, reference)
    _, second, third = history(it.run).lives
    assert (second.start_step, third.start_step) == (before.step, second.end_step)
    assert history(it.run).interruptions[-1].repeated == 0
    # what was saved after that stands on its own, though the content is the damaged one's
    later = {step: found for step, found in check(store).items() if step > newest.step}
    assert later[STEPS] == []
    assert not any(later.values())


@pytest.mark.parametrize("seed", [1])
def test_killed_at_random_moments(
    tmp_path: Path, shards: Path, reference: RunDir, seed: int
) -> None:
    """Workers, agents and the supervisor, at start-up, while training, while saving."""
    chance = random.Random(seed)
    left, status, output = 4, 0, ""
    while left:
        with started(tmp_path, command(tmp_path, shards, *ON_ONE_NODE)) as it:
            while left and it.process.poll() is None:
                time.sleep(chance.uniform(0.3, 2.5))
                left -= kill_someone(it, chance)
            status, output = it.finish()
            if "nothing to do" in output:
                break
    while status == 75:
        status, output = complete(tmp_path, command(tmp_path, shards, *ON_ONE_NODE))
    assert status == 0, output
    assert left < 3, "it was to be killed more than once"
    assert_same_run(RunDir(next(tmp_path.glob("t-*"))), reference)


def kill_someone(it: Started, chance: random.Random) -> bool:
    """SIGKILL a process of the run, any; False where there is none."""
    if not it.run.events.exists():
        return False
    kinds = ("run_started", "agent_started", "worker_started")
    times = {e["pid"]: e.time for e in it.events() if e.kind in kinds}
    alive = sorted(pid for pid, time_s in times.items() if is_that_process(pid, time_s))
    return bool(alive) and kill(chance.choice(alive))


def document(output: str) -> dict[str, Any]:
    """Of what a command printed, the JSON at the end."""
    found: dict[str, Any] = json.loads(output[output.index("{\n") :])
    return found


def test_a_run_that_is_moved_aside_is_kept_and_one_that_is_done_stays_done(
    tmp_path: Path, reference: RunDir
) -> None:
    shards = Path(read_spec(reference.spec(1)).data.shards or "")  # perhaps another worker's
    copy = tmp_path / reference.name
    shutil.copytree(reference.path, copy, symlinks=True)
    before = (copy / "events.jsonl").read_bytes()
    status, output = complete(tmp_path, command(tmp_path, shards))
    assert status == 0, output
    assert "nothing to do" in output
    about = {"run": copy.name, "path": str(copy)}
    status, output = complete(tmp_path, command(tmp_path, shards, "--json"))
    assert status == 0, output
    assert document(output) == {**about, "submission": None, "job": None}
    assert (copy / "events.jsonl").read_bytes() == before
    with started(tmp_path, command(tmp_path, shards, *ALONE, "--fresh", "--json")) as it:
        status, output = it.finish()
        begun = Followed(copy / "events.jsonl")  # of what is ended with the block
        eventually(lambda: any(e.kind == "run_started" for e in begun.events()) or None)
    assert status == 0, output
    assert (found := document(output)) == {**about, "submission": 1, "job": found["job"]}
    assert found["job"].isdigit()
    assert (tmp_path / f"{reference.name}.old1" / "events.jsonl").read_bytes() == before
