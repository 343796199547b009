"""The supervisor: one generation of the job after the other, until a verdict is final.

It is the batch process: submitit calls `supervise` with nothing but the run directory and the
number of the submission, so nothing stale is ever pickled.

What it is asked by signals, `requests` tells. On Slurm a preemption is the end of the job, and its
successor goes on.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from checkpointing import CheckpointError, list_run
from checkpointing.service.ending import end_services
from hpckit.elastic.channel import Message
from hpckit.elastic.devices import visible_gpus
from hpckit.elastic.drill import Drill
from hpckit.elastic.report import ExitReport
from hpckit.elastic.roster import Need
from hpckit.elastic.store import RendezvousStore
from hpckit.elastic.verdict import LEAVES, Ending, Kind, Past, Verdict, judge, past_of
from hpckit.launch.allocation import Allocation, allocation, is_cancelled, leave_array
from hpckit.launch.chain import Chain, silent_jobs
from hpckit.launch.continuing import KEEP_S, chained, is_hopeless, requeue
from hpckit.launch.crew import Crew
from hpckit.launch.fitness import Fitness
from hpckit.launch.holders import Holders
from hpckit.launch.mustering import muster
from hpckit.launch.nodes import LocalNodes, Nodes, SlurmNodes
from hpckit.launch.requests import Requests
from hpckit.launch.succession import former_job, hold_after, is_given_up
from hpckit.launch.timelimit import is_time_up
from hpckit.run.board import Request
from hpckit.run.check import fewest_nodes, fits, nodes_of_generation
from hpckit.run.directory import RunDir, checkpoint_root, lock_paths, run_name, store_and_name
from hpckit.run.durable import write_json
from hpckit.run.events import Event, EventLog, EventTail, read_events
from hpckit.run.length import last_step
from hpckit.run.lock import RunHeldError
from hpckit.run.parse import read_spec
from hpckit.run.processes import sweep
from hpckit.run.rendezvous import places
from hpckit.run.spec import RunSpec

log = logging.getLogger(__name__)

TICK_S = 0.05
# What an agent may take beyond the grace period to end its workers and write its report.
REPORT_MARGIN_S = 10.0


def supervise(run_path: str, submission: int, gpus: tuple[str, ...] | None = None) -> int:
    """Carry submission `submission` of the run at `run_path` to a final verdict; its exit status.

    Whatever keeps it from that is an event, so that whoever follows the run hears of it.

    Raises:
        RunHeldError: another supervisor holds the run.
    """
    run = RunDir(Path(run_path))
    run.logs.mkdir(exist_ok=True)
    logging.basicConfig(
        filename=run.logs / "supervisor.log",
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        force=True,
    )
    with EventLog(run.events, submission=submission) as events:
        try:
            status = _supervise(run, submission, gpus, events).exit_status
        except RunHeldError as error:
            events.emit("run_refused", error=str(error))
            raise
        except Exception as error:
            log.exception("the supervisor failed")
            events.emit("run_failed", error=f"{type(error).__name__}: {error}")
            raise
    if status and os.environ.get("SUBMITIT_EXECUTOR") == "slurm":
        sys.exit(status)  # submitit's process ends with 0 otherwise, and the job as a success
    return status


def _supervise(
    run: RunDir, submission: int, gpus: tuple[str, ...] | None, events: EventLog
) -> Verdict:
    _require_snapshot(run.code(submission))
    supervisor = Supervisor(run, submission, gpus, events)
    what = f"submission {submission} of {run.name}"

    def is_ending(error: RunHeldError) -> bool:
        """Whether it is worth waiting for who holds the run."""
        mine = supervisor.find_job()
        if mine is None or not is_given_up(former_job(read_events(run.events)), mine):
            return False
        events.emit("degraded", what=f"{error}; its job is over: waiting for its end")
        return True

    with hold_after(lock_paths(supervisor.spec, run), what, is_ending):
        verdict = supervisor.run()
    job = supervisor.job_to_requeue
    if job is not None and not verdict.final:
        requeue(run, supervisor.spec, job, events)
    return verdict


def _require_snapshot(code: Path) -> None:
    """Raises RuntimeError unless this very file is the snapshot's: no other code is to run."""
    if not Path(__file__).resolve().is_relative_to(code.resolve()):
        raise RuntimeError(f"the code snapshot {code} is gone; start again with launch.py")


class Supervisor:
    """The generations of one submission."""

    def __init__(
        self, run: RunDir, submission: int, gpus: tuple[str, ...] | None, events: EventLog
    ) -> None:
        """Takes over the process's signals at once: from here on none is lost."""
        self._run = run
        self._submission = submission
        self._events = events
        self.spec: RunSpec = read_spec(run.spec(submission))
        self._gpus = visible_gpus(os.environ) if gpus is None else gpus
        self._job: Allocation | None = None  # None: it is none of Slurm's
        self.job_to_requeue: str | None = None
        """The job that goes on by being run again."""
        self._requests = Requests()
        self._past: list[Past] = []
        self._past_before = 0  # generations of jobs before this one
        self._holders = Holders()
        self._is_short = False  # nodes that it had are gone, and too few are left
        self._took_part: tuple[int, ...] = ()  # nodes of the generation before
        self._saved_step = 0  # of the newest committed checkpoint, as it was last seen

    def run(self) -> Verdict:
        """Generation after generation, to the final verdict."""
        self._nodes = self._find_nodes()
        self._fitness = Fitness(self._job, self._events)
        job = {} if self._job is None else {"job": self._job.job, "hosts": list(self._job.hosts)}
        self._events.emit("run_started", pid=os.getpid(), steps=last_step(self.spec), **job)
        told = read_events(self._run.events)
        self._past = past_of(told)
        self._past_before = len(self._past)
        if swept := sweep(self._run.path):
            self._events.emit("strays_killed", pids=swept)
        self._saved_step = newest_step(self.spec, self._run)
        self._drill = Drill(self.spec.debug.drill.preempt_at, self._saved_step)
        with (
            self._continued(told) as chain,
            RendezvousStore(self._nodes.address) as store,
            Crew(self._nodes.start_agent, self._events, self._drain_s, self.spec.health) as crew,
        ):
            try:
                verdict = self._generations(store, crew)
            finally:
                if self._job is None:
                    self._end_services()
            if chain is not None and not verdict.final:
                chain.keep(KEEP_S)
        self._events.emit("run_ended", verdict=verdict.kind, status=verdict.exit_status)
        return verdict

    @property
    def _drain_s(self) -> float | None:
        """For agents whose nodes are machines of their own."""
        return None if self._job is None else self.spec.cluster.grace_s + REPORT_MARGIN_S

    def find_job(self) -> str | None:
        """The number of the job that this is; None: it is none of Slurm's.

        Raises:
            OSError, subprocess.SubprocessError: Slurm does not tell.
        """
        return allocation(os.environ).job if self.spec.cluster.kind == "slurm" else None

    def _find_nodes(self) -> Nodes:
        if self.spec.cluster.kind == "slurm":
            self._job = allocation(os.environ)
            leave_array(os.environ)
            return SlurmNodes(self.spec, self._run, self._submission, self._job)
        return LocalNodes(self.spec, self._run, self._submission, self._gpus)

    def _generations(self, store: RendezvousStore, crew: Crew) -> Verdict:
        verdict = self._one_generation(store, crew)
        while not verdict.final:
            asked = self._hear(crew)
            if self._has_to_leave(asked):
                break
            if asked is Request.STOP:
                verdict = Verdict(Kind.STOPPED, True, "stopped between two generations")
                self._record(verdict)
            else:
                verdict = self._one_generation(store, crew)
        return verdict

    def _has_to_leave(self, asked: Request) -> bool:
        """Slurm wants the nodes back, or has lost them: the next generation is another job's."""
        is_asked = self._past[-1].kind in LEAVES or asked is Request.PREEMPT
        return self._job is not None and (is_asked or self._is_short)

    def _continued(self, told: Sequence[Event]) -> AbstractContextManager[Chain | None]:
        """See to it that the run goes on after this job, by another one that is queued now or by
        itself."""
        how = self.spec.launch.continuation
        if self._job is None or how == "none" or is_hopeless(silent_jobs(told), self._events):
            return nullcontext()
        if how == "requeue":
            self.job_to_requeue = self._job.job
            return nullcontext()
        return chained(self._run, self.spec, self._submission, self._job, self._events)

    def _end_services(self) -> None:
        """What trainers left in memory is made durable, then nothing of the run is left here."""
        within_s = self.spec.cluster.grace_s + REPORT_MARGIN_S
        if not end_services(*store_and_name(self.spec, self._run), within_s):
            self._events.emit("degraded", what="a checkpoint service is still writing")

    def _hear(self, crew: Crew) -> Request:
        return self._requests.hear(crew.signals(), self._is_cancelled)

    def _is_cancelled(self) -> bool:
        """Whether a person ends the job for good."""
        if self._job is None or self._is_orphan():
            return False
        return is_cancelled(self._job.job)

    def _is_orphan(self) -> bool:
        """Whether this node was out of reach, so that an agent of another one ended the job."""
        return self._job is not None and self._run.orphan(self._job.job).exists()

    def _is_time_up(self) -> bool:
        """Whether it is for its time that the job is told to leave."""
        if self._is_orphan():
            what = "this node was out of reach, so that an agent of another one ended the job"
            self._events.emit("degraded", what=what)
            return False
        return is_time_up(self._job, self.spec.cluster)

    def _one_generation(self, store: RendezvousStore, crew: Crew) -> Verdict:
        """Start a generation, stay with it to its end, and judge it."""
        store.clear()
        generation = max(self._run.generation_numbers(), default=0) + 1
        need = self._need()
        self._events.emit(
            "generation_started",
            generation=generation,
            nodes=need.wanted,
            from_step=self._saved_step,
        )
        self._generation = generation
        self._run.generation_logs(generation).mkdir(parents=True)
        crew.call(range(self._nodes.count), generation)
        there = muster(crew, need, self._took_part, lambda: self._hear(crew) is not Request.NONE)
        unhealthy = self._fitness.tell(generation, crew.unhealthy())
        if there:
            self._begin(crew, store, there, need)
            asked = self._watch(crew, store)
            lost, fallen = crew.lost(), crew.fallen()
        else:
            asked = self._requests.now
            lost, fallen = [] if asked or unhealthy else self._silent(crew), []
            self._is_short = asked is Request.NONE and bool(self._took_part or unhealthy)
        if self._job is not None:  # Slurm ends all that a step has left
            self._holders.lost(lost)
        self._requests.end(asked)
        if asked is Request.NONE:
            self._fitness.tell_lost(generation, lost)
            self._fitness.tell_fallen(generation, fallen)
        gone = tuple(f"the agent of node {node}" for node in sorted(lost + fallen))
        return self._judge(asked, crew.reports(), gone, () if there else unhealthy)

    def _silent(self, crew: Crew) -> list[int]:
        return sorted(set(range(self._nodes.count)) - crew.hellos().keys())

    def _judge(
        self,
        asked: Request,
        reports: tuple[ExitReport, ...],
        gone: tuple[str, ...],
        unhealthy: tuple[str, ...],
    ) -> Verdict:
        progress = self._has_saved()
        is_over = asked is Request.PREEMPT and self._is_time_up()
        ending = Ending(asked, reports, gone, progress, unhealthy, is_time_up=is_over)
        verdict = judge(ending, self._past, self.spec.retry)
        if unhealthy and self._job is None and asked is Request.NONE:
            verdict = replace(verdict, final=True)  # there are no other nodes
        self._conclude(verdict, reports)
        self._past.append(Past(verdict.kind, progress))
        return verdict

    def _need(self) -> Need:
        wanted = nodes_of_generation(self.spec, len(self._past) - self._past_before)
        return Need(wanted, min(wanted, fewest_nodes(self.spec)), partial(fits, self.spec))

    def _begin(
        self, crew: Crew, store: RendezvousStore, there: Mapping[int, Message], need: Need
    ) -> None:
        orders = self._nodes.orders(
            self._generation, there, store, is_memory_here=self._holders.are_here(there)
        )
        if orders.note:
            log.warning(orders.note)
            self._events.emit("degraded", generation=self._generation, what=orders.note)
        if self.spec.elastic.spares or len(there) < need.wanted:
            self._events.emit(
                "nodes_chosen",
                generation=self._generation,
                nodes=sorted(there),
                hosts=[str(hello["host"]) for hello in there.values()],
                wanted=need.wanted,
            )
        self._took_part = tuple(there)
        crew.begin(orders.starts)

    def _watch(self, crew: Crew, store: RendezvousStore) -> Request:
        """Until all agents have reported: what they were asked."""
        tail = EventTail(self._run.events, from_end=True)
        passed_on = Request.NONE
        deadline: float | None = None
        while crew.is_under_way():
            asked = self._hear(crew)  # which may wait for Slurm: agents are heard after it
            crew.tick()
            crew.suspect(places(store.left(), self._run.name, self._generation))
            crew.recall()
            self._fitness.tell(self._generation, crew.unhealthy())  # nodes that stand by, too
            self._follow(tail)
            if asked > passed_on:
                passed_on = asked
                self._pass_on(passed_on, crew)
                deadline = time.monotonic() + self.spec.cluster.grace_s + REPORT_MARGIN_S
            overdue = deadline is not None and time.monotonic() > deadline
            if overdue or crew.lost() or crew.fallen() or crew.has_failed():
                crew.end(REPORT_MARGIN_S)  # one node's part is over for good, so is the generation
            time.sleep(TICK_S)
        self._follow(tail)
        return passed_on

    def _follow(self, tail: EventTail) -> None:
        for event in tail.read():
            if event.kind == "step":
                self._drill.at_step(event["step"])
            elif event.kind == "training_started":
                self._holders.trained(self._took_part)

    def _pass_on(self, request: Request, crew: Crew) -> None:
        log.info("%s: telling the agents", request.name.lower())
        self._events.emit("asked", generation=self._generation, request=request.name.lower())
        crew.ask(request)

    def _conclude(self, verdict: Verdict, reports: tuple[ExitReport, ...]) -> None:
        """Say how the generation ended, in the log, in the events and in `verdict.json`."""
        log.info("generation %d: %s (%s)", self._generation, verdict.kind, verdict.reason)
        self._events.emit(
            "generation_ended",
            generation=self._generation,
            verdict=verdict.kind,
            reason=verdict.reason,
            final=verdict.final,
            step=min((report.step for report in reports), default=0),
            saved_step=self._saved_step,
        )
        self._record(verdict)

    def _record(self, verdict: Verdict) -> None:
        """Write `verdict.json`; on a full disk the log and the events have to do."""
        record = {
            **asdict(verdict),
            "generation": self._generation,
            "submission": self._submission,
            "saved_step": self._saved_step,
            "steps": last_step(self.spec),
            "time": time.time(),
        }
        try:
            write_json(self._run.verdict, record)
        except OSError as error:
            log.error("verdict.json is not written: %s", error)

    def _has_saved(self) -> bool:
        """Look at the store again: whether there is a newer checkpoint than the time before.

        A store that is out of reach now is no reason to give up the run; no progress is counted.
        """
        before = self._saved_step
        try:
            self._saved_step = newest_step(self.spec, self._run)
        except CheckpointError as error:
            what = f"cannot look at the checkpoints: {error}"
            log.warning(what)
            self._events.emit("degraded", generation=self._generation, what=what)
        return self._saved_step > before


def newest_step(spec: RunSpec, run: RunDir) -> int:
    """Step of the newest committed checkpoint of the run; 0 where there is none."""
    found = list_run(checkpoint_root(spec, run), run_name(spec))
    return max((info.step for info in found if info.state == "committed"), default=0)
