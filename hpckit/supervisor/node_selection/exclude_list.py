"""Excludes the bad nodes of a run from its next job."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Callable, Sequence

from hpckit.config.rules.violations import fewest_nodes
from hpckit.config.spec import RunSpec
from hpckit.events.event_log import EventLog, read_events
from hpckit.events.schema import (
    Degraded,
    DegradedSubject,
    Event,
    ExclusionWithdrawn,
    NodesExcluded,
)
from hpckit.rundir.directory import RunDir
from hpckit.slurm.allocation import hostnames
from hpckit.slurm.job_placement import PlacementAnswer, ask_placement, options_of_job
from hpckit.slurm.node_exclusion import (
    ExcludableNode,
    PartitionNodes,
    choose_exclusions,
    excludable_nodes,
    excluded_from,
)
from hpckit.slurm.sbatch_answers import explain_refusal
from hpckit.slurm.scontrol import field, run_scontrol, show_job
from hpckit.submit import batch_script
from hpckit.submit.exclusion.partition_nodes import partition_nodes
from hpckit.supervisor.continuation.successor_watch import SuccessorFate, SuccessorState
from hpckit.suspects.suspect_folder import read_view
from hpckit.suspects.suspect_record import within_share

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
AGAIN_S = 0.5
_UNKNOWN = "the nodes of the partition are unknown"
_SEE = "sinfo and scontrol show job show what the job may have"
_AGAIN = "hpckit cancel --save and then hpckit resume KEY=VALUE start it again with other values"


class ExcludeList:
    """The excluded nodes of a run, which it passes to Slurm for the next job."""

    def __init__(self, run: RunDir, spec: RunSpec, events: EventLog) -> None:
        assert spec.cluster.slurm is not None  # the spec is valid
        self._run, self._spec, self._events = run, spec, events
        self._by_config = spec.cluster.slurm.exclude
        self._suspects = spec.cluster.slurm.suspects
        self._reported: set[str] = set()  # problems of the suspect list
        self._known: PartitionNodes | None = None  # last known nodes for the job
        self._refusal = ""  # why Slurm could not place the job without nodes
        self._options: list[str] | None = None  # of this job, if it is to be requeued
        self._own_exclude: tuple[str, ...] = ()  # nodes that a person has had this job exclude

    def hosts(self) -> tuple[str, ...]:
        """Returns the nodes to exclude by the run's events so far, without those that the config
        excludes."""
        self._known = self._nodes() or self._known
        bad = self._bad(excludable_nodes(_events_of(self._run), time.time()))
        if not bad:
            return ()
        if not self._known:  # a job that may get no node would never start
            names = ", ".join(one.host for one in bad)
            self._events.emit(
                Degraded(
                    subject=DegradedSubject.EXCLUDE_LIST,
                    what=f"the next job may get {names} again: {_UNKNOWN}",
                )
            )
            return ()
        self._refusal = ""
        needed = fewest_nodes(self._spec)
        excluded, spared = choose_exclusions(bad, self._known, needed, self._can_run)
        if spared:
            why = f" ({self._refusal})" if self._refusal else ""
            what = f"too few nodes would be left without {', '.join(spared)}: not excluded{why}"
            log.warning(what)
            self._events.emit(Degraded(subject=DegradedSubject.EXCLUDE_LIST, what=what))
        return tuple(excluded)

    def _bad(self, own: Sequence[ExcludableNode]) -> list[ExcludableNode]:
        """Returns the run's own excludable nodes that nobody has cleared, and the suspects of other
        runs in the partition."""
        view = read_view(self._suspects)
        for problem in view.problems:
            if problem not in self._reported:
                self._reported.add(problem)
                log.warning(problem)
                self._events.emit(Degraded(subject=DegradedSubject.SUSPECT_LIST, what=problem))
        bad = view.uncleared(own)
        hosts = {one.host for one in bad}
        others = [one for one in view.suspects if one.node not in hosts]
        there = self._known.usable | self._known.away if self._known else frozenset()
        trusted, _ = within_share([one for one in others if one.node in there], len(there))
        return [*bad, *(one.excludable for one in trusted)]

    def record(self, job: str, hosts: Sequence[str]) -> str:
        """Emits the event of a job that was queued without these nodes, and returns the job."""
        if hosts:
            self._events.emit(NodesExcluded(job=job, hosts=list(hosts)))
        return job

    def keep_from(
        self, job: str, within_s: float, first: Callable[[], bool] = lambda: True
    ) -> None:
        """Excludes the bad nodes from a pending job of the run, and gives up after about `within_s`
        seconds. Nodes that were excluded from it before and no longer are may be used again.

        Args:
            first: makes the job pending. False: it could not. Slurm may end this process's children
                from then on, so the nodes are determined before.
        """
        hosts, before = self.hosts(), excluded_from(_events_of(self._run), job)
        by_user = self._by_user(job, before) if hosts or before else ()
        if not first() or not (hosts or before):
            return
        if by_user is None:
            problem: str | None = "Slurm does not say which nodes it excludes already"
        else:
            hosts = tuple(host for host in hosts if host not in by_user)
            together = dict.fromkeys((*self._by_config, *by_user, *hosts))
            problem = _update(job, tuple(together), within_s)
        if problem is None:
            log.info("job %s excludes nodes %s", job, ", ".join(hosts) or "none")
            self._report_withdrawn(job, [host for host in before if host not in hosts])
            self.record(job, hosts)
        else:
            names = ", ".join(hosts)
            what = f"job {job} may get {names} again: {problem}"
            if not hosts:
                what = f"job {job} still does without {', '.join(before)}: {problem}"
            log.error(what)
            self._events.emit(Degraded(subject=DegradedSubject.EXCLUDE_LIST, what=what))

    def _by_user(self, job: str, ours: Sequence[str]) -> tuple[str, ...] | None:
        """Returns the nodes that the job excludes without hpckit, by `--exclude` or `scontrol
        update`; None: unknown.

        Args:
            ours: the nodes that hpckit has excluded from it.
        """
        try:
            given = field(show_job(job, _TIMEOUT_S), "ExcNodeList")
            names = hostnames(given) if given not in (None, "", "(null)") else ()
            by_config = hostnames(",".join(self._by_config)) if names and self._by_config else ()
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("cannot read the nodes that job %s excludes: %s", job, error)
            return None
        return tuple(name for name in names if name not in (*ours, *by_config))

    def review(self, job: str) -> SuccessorState | None:
        """Gives nodes back to a pending job that Slurm cannot place without them any more, as
        others have gone meanwhile. Returns what else keeps the job from ever starting, or None: as
        long as it waits for another job, Slurm's reason does not say so."""
        try:
            hosts = excluded_from(_events_of(self._run), job)
            answer = self._ask(hosts)
            if hosts and answer.is_possible is False:
                self.keep_from(job, _TIMEOUT_S)
                answer = self._ask(excluded_from(_events_of(self._run), job))
        except OSError as error:
            log.warning("cannot review the nodes that job %s does without: %s", job, error)
            return None
        if not answer.is_refused:
            return None
        refusal = explain_refusal(answer.message)
        meaning, advice = ("", _SEE) if refusal is None else (refusal.meaning, refusal.advice)
        what = f"{answer.message}: {meaning}" if meaning else answer.message
        return SuccessorState(SuccessorFate.BLOCKED, what, f"{advice}; {_AGAIN}")

    def _report_withdrawn(self, job: str, hosts: list[str]) -> None:
        if not hosts:
            return
        reason = self._refusal or "the run no longer excludes them"
        log.warning("job %s may get %s again: %s", job, ", ".join(hosts), reason)
        self._events.emit(ExclusionWithdrawn(job=job, hosts=hosts, reason=reason))

    def _can_run(self, hosts: Sequence[str]) -> bool:
        """Returns whether Slurm says that the job can be placed without these nodes."""
        answer = self._ask(hosts)
        if answer.is_possible is not True:
            self._refusal = f"Slurm on a job without {', '.join(hosts)}: {answer.message}"
        return answer.is_possible is True

    def _ask(self, hosts: Sequence[str]) -> PlacementAnswer:
        """Asks about a job like the next one, as if it had to wait for no other job. A job that a
        person has submitted with options of their own is requeued with these."""
        passed = batch_script.passed_variables(self._spec)
        if not self._spec.launch.is_requeued:
            return ask_placement(self._script(hosts), (), passed, _TIMEOUT_S)
        try:
            if self._options is None:
                job = os.environ.get("SLURM_JOB_ID", "")
                text = show_job(job, _TIMEOUT_S)
                self._options = options_of_job(text)
                before = excluded_from(_events_of(self._run), job)
                self._own_exclude = self._by_user(job, before) or ()
            options = self._options
        except (OSError, subprocess.SubprocessError) as error:
            return PlacementAnswer(None, str(error))
        exclude = ",".join((*self._by_config, *self._own_exclude, *hosts))
        return ask_placement("#!/bin/sh\n", (*options, f"--exclude={exclude}"), passed, _TIMEOUT_S)

    def _script(self, hosts: Sequence[str]) -> str:
        place = batch_script.BatchJob(
            name=self._run.name,
            folder=self._run.submitit,
            output=self._run.logs,
            code="code",
            exclude=tuple(hosts),
        )
        return batch_script.script(self._spec, place)

    def _nodes(self) -> PartitionNodes | None:
        """Returns the nodes that the job may get, or None if Slurm does not report them."""
        try:
            nodes = partition_nodes(os.environ.get("SLURM_JOB_PARTITION"))
            nodes = nodes.without(hostnames(",".join(self._by_config)) if self._by_config else ())
            return nodes if nodes.usable | nodes.away else None
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("%s: %s", _UNKNOWN, error)
            return None


def _update(job: str, hosts: Sequence[str], within_s: float) -> str | None:
    """Updates the job's excluded nodes. Returns None on success and Slurm's last error otherwise;
    it tries again, as a requeued job may take a while to become pending."""
    words = ["update", f"JobId={job}", f"ExcNodeList={','.join(hosts)}"]
    deadline = time.monotonic() + within_s
    while True:
        problem = run_scontrol(words, _TIMEOUT_S)
        if problem is None or time.monotonic() > deadline:
            return problem
        time.sleep(AGAIN_S)


def _events_of(run: RunDir) -> list[Event]:
    """Returns the events of a run without its steps, which tell nothing of its nodes."""
    return read_events(run.events, with_steps=False)
