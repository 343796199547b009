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
from hpckit.events.schema import Degraded, DegradedSubject, NodesExcluded
from hpckit.rundir.directory import RunDir
from hpckit.slurm.allocation import hostnames
from hpckit.slurm.environment import environment_for
from hpckit.slurm.node_exclusion import PartitionNodes, choose_exclusions, excludable_nodes
from hpckit.slurm.scontrol import run_scontrol

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
        excluded, spared = choose_exclusions(bad, self._known, fewest_nodes(self._spec))
        if spared:
            what = f"too few nodes would be left without {', '.join(spared)}: not excluded"
            log.warning(what)
            self._events.emit(Degraded(subject=DegradedSubject.EXCLUDE_LIST, what=what))
        return tuple(excluded)

    def keep_from(
        self, job: str, within_s: float, first: Callable[[], bool] = lambda: True
    ) -> None:
        """Excludes the bad nodes from a pending job of the run, and gives up after about `within_s`
        seconds.

        Args:
            first: makes the job pending. False: it could not. Slurm may end this process's children
                from then on, so the nodes are determined before.
        """
        hosts = self.hosts()
        if not first() or not hosts:
            return
        problem = _update(job, (*self._by_config, *hosts), within_s)
        if problem is None:
            log.info("job %s excludes nodes %s", job, ", ".join(hosts))
            self._events.emit(NodesExcluded(job=job, hosts=list(hosts)))
        else:
            what = f"job {job} may get {', '.join(hosts)} again: {problem}"
            log.error(what)
            self._events.emit(Degraded(subject=DegradedSubject.EXCLUDE_LIST, what=what))

    def _nodes(self) -> PartitionNodes | None:
        """Returns the nodes that the job may get, or None if Slurm does not report them."""
        try:
            nodes = partition_nodes(os.environ)
            nodes = nodes.without(hostnames(",".join(self._by_config)) if self._by_config else ())
            return nodes if nodes.usable | nodes.away else None
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("%s: %s", _UNKNOWN, error)
            return None


def partition_nodes(env: Mapping[str, str]) -> PartitionNodes:
    """Returns the nodes of this job's partition.

    Raises:
        OSError, subprocess.SubprocessError: Slurm does not answer.
    """
    partition = env.get("SLURM_JOB_PARTITION")
    where = [f"--partition={partition}"] if partition else []
    command = ["sinfo", "--noheader", "--Node", "--format=%N %T", *where]
    done = subprocess.run(
        command,
        env=environment_for("query", env),
        capture_output=True,
        text=True,
        check=True,
        timeout=_TIMEOUT_S,
    )
    return parse_nodes(done.stdout)


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
