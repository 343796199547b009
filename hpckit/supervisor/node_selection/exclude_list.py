"""Excludes the bad nodes of a run from its next job."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence

from hpckit.config.rules.violations import fewest_nodes
from hpckit.config.spec import RunSpec
from hpckit.events.event_log import EventLog, read_events
from hpckit.events.schema import Degraded, DegradedSubject, ExclusionWithdrawn, NodesExcluded
from hpckit.rundir.directory import RunDir
from hpckit.slurm.allocation import hostnames
from hpckit.slurm.job_placement import PlacementAnswer, ask_placement, options_of_job
from hpckit.slurm.node_exclusion import (
    PartitionNodes,
    choose_exclusions,
    excludable_nodes,
    excluded_from,
)
from hpckit.slurm.scontrol import run_scontrol, show_job
from hpckit.slurm.slurm_query import query
from hpckit.submit import batch_script

log = logging.getLogger(__name__)

_TIMEOUT_S = 10.0
AGAIN_S = 0.5
_UNKNOWN = "the nodes of the partition are unknown"
_UNUSABLE = ("drain", "fail", "error", "maint")  # until somebody returns the node to service
_AWAY = ("down", "unknown")


class ExcludeList:
    """The excluded nodes of a run, which it passes to Slurm for the next job."""

    def __init__(self, run: RunDir, spec: RunSpec, events: EventLog) -> None:
        assert spec.cluster.slurm is not None  # the spec is valid
        self._run, self._spec, self._events = run, spec, events
        self._by_config = spec.cluster.slurm.exclude
        self._known: PartitionNodes | None = None  # last known nodes for the job
        self._refusal = ""  # why Slurm could not place the job without nodes
        self._options: list[str] | None = None  # of this job, if it is to be requeued

    def hosts(self) -> tuple[str, ...]:
        """Returns the nodes to exclude by the run's events so far, without those that the config
        excludes."""
        bad = excludable_nodes(read_events(self._run.events), time.time())
        self._known = self._nodes() or self._known
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
        hosts, before = self.hosts(), excluded_from(read_events(self._run.events), job)
        if not first() or not (hosts or before):
            return
        problem = _update(job, (*self._by_config, *hosts), within_s)
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

    def review(self, job: str) -> None:
        """Gives nodes back to a pending job that Slurm cannot place without them any more, as
        others have gone meanwhile."""
        try:
            hosts = excluded_from(read_events(self._run.events), job)
            if hosts and self._ask(hosts).is_possible is False:
                self.keep_from(job, _TIMEOUT_S)
        except OSError as error:
            log.warning("cannot review the nodes that job %s does without: %s", job, error)

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
            options = self._options = self._options or _options_of_this_job()
        except (OSError, subprocess.SubprocessError) as error:
            return PlacementAnswer(None, str(error))
        exclude = ",".join((*self._by_config, *hosts))
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
            nodes = partition_nodes(os.environ)
            nodes = nodes.without(hostnames(",".join(self._by_config)) if self._by_config else ())
            return nodes if nodes.usable | nodes.away else None
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("%s: %s", _UNKNOWN, error)
            return None


def _options_of_this_job() -> list[str]:
    return options_of_job(show_job(os.environ.get("SLURM_JOB_ID", ""), _TIMEOUT_S))


def partition_nodes(env: Mapping[str, str]) -> PartitionNodes:
    """Returns the nodes of this job's partition.

    Raises:
        OSError, subprocess.SubprocessError: Slurm does not answer.
    """
    partition = env.get("SLURM_JOB_PARTITION")
    where = [f"--partition={partition}"] if partition else []
    command = ["sinfo", "--noheader", "--Node", "--format=%N %T", *where]
    return parse_nodes(query(command, _TIMEOUT_S, env))


def parse_nodes(text: str) -> PartitionNodes:
    """Parses lines of a node name and a state each."""
    pairs = [line.split()[:2] for line in text.splitlines() if line.strip()]
    there = [
        (name, state.lower()) for name, state in pairs if not state.lower().startswith(_UNUSABLE)
    ]
    away = frozenset(name for name, state in there if state.startswith(_AWAY))
    return PartitionNodes(frozenset(name for name, _ in there) - away, away)


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
