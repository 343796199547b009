"""Ends a job whose supervisor was lost with its node or hangs there.

A job that survives the loss of a node (`--no-kill`) survives that of its first node, too: it stays
RUNNING without a supervisor to end it, while its successor waits. Any remaining agent ends it. The
same holds if the node works but the supervisor communicates with nobody, as it was stopped or waits
for a disk, and all agents have given it up.

If the node was only unreachable, its supervisor gets the signals of a job that a person cancelled;
the file that the agent writes tells it that no person did, and that the run continues.
"""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hpckit.events.event_log import EventTail
from hpckit.rundir.directory import RunDir
from hpckit.slurm.scontrol import field, shows_expedite
from hpckit.slurm.slurm_query import query
from hpckit.slurm.squeue import QueueError

log = logging.getLogger(__name__)

POLL_S = 1.0
EARLY_LOOK_S, EARLY_POLL_S = 1.5, 0.25
"""Seconds from a request to contact the node to the first look at the answer, and between two. What
Slurm says right away may be of an earlier time, and it takes 2 s (TCPTimeout) at least."""
EARLY_S = 30.0
"""Seconds in which `EARLY_POLL_S` holds: Slurm knows a lost node by then, with its own timeouts."""
RELEASE_S = 10.0
"""Seconds for Slurm to begin to end a job that is cancelled."""
LEFT_POLL_S = 15.0
"""Seconds between two looks of one of all agents of a job, of which there may be thousands."""
PATIENCE_S = 900.0  # Slurm finds a node lost after SlurmdTimeout, by default 300 s
EARLY_ASKERS = 8
"""Agents, the first of a generation, that have Slurm look at the node of a quiet supervisor before
they count it as lost, and that look often afterwards. One is enough; one of thousands may be quiet
for another reason, and all of them would keep Slurm's controller from its work."""
_QUERY_S = 20.0

Ask = Callable[[Sequence[str]], str]

_SUPERVISOR_EVENTS = frozenset(
    ("agent_started", "node_lost", "generation_ended", "generation_started", "run_ended")
)
"""Events that only the supervisor writes. A live supervisor that has lost an agent starts another
or ends the generation, within `agent_pool.MOST_RESTART_S` at the latest."""


class SupervisorLiveness:
    """Watches a run's events for new ones of its supervisor."""

    def __init__(self, events: Path) -> None:
        self._tail = EventTail(events, from_end=True)
        self._has_written = False

    def has_written(self) -> bool:
        """Returns whether the supervisor has written an event since this object was made.

        Raises:
            OSError: the events cannot be read.
        """
        self._has_written |= any(event.kind in _SUPERVISOR_EVENTS for event in self._tail.read())
        return self._has_written


class _Silence:
    """One silence of the supervisor."""

    def __init__(self) -> None:
        self.is_over = threading.Event()
        self.is_confirmed = False
        """Whether Slurm has had no answer of the supervisor's node meanwhile."""


class EarlyNodeCheck:
    """Makes Slurm's controller contact the node of the supervisor once the supervisor is quiet, and
    reads whether that node answers.

    An agent waits some seconds longer before it counts a quiet supervisor as lost. Meanwhile Slurm
    finds out whether the node answers, for which it waits as long (MessageTimeout), so that
    `is_orphan` need not wait for it again, nor the agent once Slurm knows.
    """

    def __init__(self, place: tuple[str, str] | None, ask: Ask | None = None) -> None:
        """
        Args:
            place: the number of the job, and the host of its supervisor. None: there is no job.
            ask: calls a program of Slurm, for tests.
        """
        self._place, self._ask = place, ask or _ask
        self._silence: _Silence | None = None

    @property
    def is_confirmed(self) -> bool:
        """Whether Slurm has had no answer of the node in this silence, either."""
        return self._silence is not None and self._silence.is_confirmed

    def update(self, *, is_quiet: bool) -> threading.Thread | None:
        """Takes whether the supervisor is quiet now, and returns the thread that asks Slurm, which
        is started each time the supervisor falls quiet."""
        if not is_quiet:
            self.close()
            return None
        if self._silence is not None or self._place is None:
            return None
        self._silence = _Silence()
        asking = (self._silence, *self._place, self._ask)
        thread = threading.Thread(target=_look_early, args=asking, name="node check", daemon=True)
        thread.start()
        return thread

    def close(self) -> None:
        """Ends the questions about this silence."""
        if self._silence is not None:
            self._silence.is_over.set()
            self._silence = None


def _look_early(silence: _Silence, job: str, host: str, ask: Ask) -> None:
    """Makes Slurm contact the node, and asks until the silence is over or Slurm has no answer."""
    _trigger_node_check(job, ask)
    wait_s = EARLY_LOOK_S
    while not silence.is_over.wait(wait_s):
        wait_s = EARLY_POLL_S
        try:
            if is_lost(ask(["scontrol", "--oneliner", "show", "node", host])):
                silence.is_confirmed = True
                return
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("cannot query Slurm about node %s: %s", host, error)


def is_orphan(
    job: str,
    host: str,
    has_written: Callable[[], bool],
    ask: Ask | None = None,
    patience_s: float = PATIENCE_S,
    *,
    is_urgent: bool = True,
) -> bool:
    """Returns whether Slurm has lost the node of the job's supervisor, or the node answered for
    `patience_s` seconds while the supervisor did not. Returns once that is known.

    The result is False if the supervisor communicates with others, as then this node was cut off,
    and if the supervisor has ended, as then Slurm ends the job.

    Args:
        has_written: whether the supervisor has written events since this node lost contact with it.
            Raises OSError if that cannot be known.
        is_urgent: whether this agent makes Slurm contact the node and looks often, which is for a
            few agents of a job. The others notice what these have done.
    """
    ask, begun_s = ask or _ask, time.monotonic()
    if is_urgent:
        _trigger_node_check(job, ask)
    while True:
        try:
            output = ask(["scontrol", "--oneliner", "show", "job", job])
            if not is_running(output):
                return False
            if not _has_node(output, host, ask) or is_lost(
                ask(["scontrol", "--oneliner", "show", "node", host])
            ):
                log.error("node %s is lost, and with it the supervisor", host)
                return True
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("cannot query Slurm about node %s: %s", host, error)
        asked_s = time.monotonic() - begun_s
        if asked_s > patience_s:
            return _is_supervisor_silent(job, host, has_written)
        time.sleep(_pause_s(asked_s, is_urgent=is_urgent))


def _pause_s(asked_s: float, *, is_urgent: bool) -> float:
    """Returns the seconds until the next look, after so many seconds of them."""
    if not is_urgent:
        return LEFT_POLL_S
    return EARLY_POLL_S if asked_s < EARLY_S else POLL_S


def _trigger_node_check(job: str, ask: Ask) -> None:
    """Makes Slurm's controller contact the node of the batch process now, with a signal that has no
    effect: by itself it checks each third of SlurmdTimeout and knows after MessageTimeout. Seen
    with Slurm 22.05 and its defaults, 300 s and 10 s: a lost node is known 12 s later."""
    try:
        ask(["scancel", "--batch", "--signal=URG", job])
    except (OSError, subprocess.SubprocessError) as error:
        log.warning(
            "cannot ask Slurm to check the node of the supervisor of job %s: %s", job, error
        )


def _is_supervisor_silent(job: str, host: str, has_written: Callable[[], bool]) -> bool:
    """Returns whether the supervisor is silent, after the patience has passed and its node
    answers."""
    try:
        is_alive = has_written()
    except OSError as error:
        log.error("cannot find out whether the supervisor of job %s is alive: %s", job, error)
        return False
    if is_alive:
        log.error(
            "the supervisor on node %s is alive without this node: job %s continues", host, job
        )
    else:
        log.error("node %s answers, but its supervisor does not", host)
    return not is_alive


def end_job(
    job: str,
    sign: Path,
    ask: Ask | None = None,
    patience_s: float = PATIENCE_S,
    *,
    comes_again: bool = False,
    host: str | None = None,
) -> bool:
    """Cancels the job of this node, if it still runs, and returns whether this call ended it.

    Args:
        sign: a file to create before the job is cancelled.
        comes_again: whether to requeue the job instead, if no other job continues the run. Needs no
            file, as Slurm reports a requeue. If Slurm is about to requeue it ahead of other jobs,
            that is left to Slurm.
        host: the node of the supervisor.
    """
    ask, until_s = ask or _ask, time.monotonic() + patience_s
    while True:
        try:
            text = ask(["scontrol", "--oneliner", "show", "job", job])
            if not is_running(text):
                return False
            is_patient = time.monotonic() < until_s
            if comes_again and is_patient and host and is_left_to_slurm(text, [host], ask):
                time.sleep(LEFT_POLL_S)
                continue
            if comes_again:
                ask(["scontrol", "requeue", job])
            else:
                _write_sign(sign)
                ask(["scancel", job])
            log.error("job %s is cancelled: its supervisor no longer runs", job)
            return True
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("cannot end job %s: %s", job, error)
        if time.monotonic() > until_s:
            return False
        time.sleep(POLL_S)


def release_successor(
    run: RunDir, job: str, ask: Ask | None = None, patience_s: float = RELEASE_S
) -> list[str]:
    """Lets the jobs of the run that wait for the end of this one, which is cancelled, start before
    that, and returns their numbers.

    A job without its first node ends late. Each `slurmstepd` of another node first tries to notify
    the `srun` on that node, five times (14 s, seen with Slurm 22.05), and the job does not end
    before Slurm has given the lost node up (SlurmdTimeout, by default 300 s). What still runs of it
    can save nothing once its successor has taken the run over.

    Args:
        patience_s: seconds within which Slurm has to know that this job ends.
    """
    from hpckit.slurm.queued_jobs import waiting_for  # of few agents, and few jobs

    ask, released = ask or _ask, []
    until_s = time.monotonic() + patience_s
    try:
        while not (found := waiting_for(run, job)) and time.monotonic() < until_s:
            time.sleep(EARLY_POLL_S)  # a job that was just cancelled may still count as running
        for number, others in found:
            ask(["scontrol", "update", f"JobId={number}", f"Dependency={others}"])
            log.info("job %s no longer waits for the end of job %s", number, job)
            released.append(number)
    except (OSError, subprocess.SubprocessError, QueueError) as error:
        log.warning("the next job waits for the end of job %s: %s", job, error)
    return released


def _write_sign(sign: Path) -> None:
    try:
        sign.parent.mkdir(exist_ok=True)
        sign.touch()
    # without the file, a supervisor that lives after all stops the run for good
    except OSError as error:
        log.error("cannot write the file that records that no person cancelled the job: %s", error)


def is_lost(text: str) -> bool:
    """Returns whether the output of `scontrol show node` says that the node is given up, or has not
    answered the last time, which is known long before. Some versions mark that with "*"."""
    state, *flags = (field(text, "State") or "").split("+")
    return "*" in state or state == "DOWN" or "NOT_RESPONDING" in flags


def is_left_to_slurm(text: str, hosts: Sequence[str], ask: Ask) -> bool:
    """Returns whether Slurm is about to requeue a running job ahead of all others, as it has
    expedited requeues and one of `hosts` does not answer.

    Slurm does so when it gives the node up (SlurmdTimeout). A requeue by `scontrol` before that
    gains no time, as the job waits for that node to be given up, too. It loses the place in the
    queue, and the nodes that are left go to other jobs meanwhile. Seen with Slurm 26.05. Slurm does
    not requeue a job that goes on without the node (`--no-kill`), and takes the node from it.

    Args:
        text: the output of `scontrol show job`.

    Raises:
        OSError, subprocess.SubprocessError: Slurm does not answer.
    """
    show = ("scontrol", "--oneliner", "show", "node")
    return shows_expedite(text) and any(
        _has_node(text, host, ask) and is_lost(ask([*show, host])) for host in hosts
    )


def _has_node(text: str, host: str, ask: Ask) -> bool:
    """Returns whether the job still has that node. A node that comes back soon does not belong to
    the job any more."""
    nodes = field(text, "NodeList")
    return nodes is None or host in ask(["scontrol", "show", "hostnames", nodes]).split()


def is_running(text: str) -> bool:
    """Returns whether the output of `scontrol show job` says that the job runs."""
    return field(text, "JobState") == "RUNNING"


def _ask(command: Sequence[str]) -> str:
    return query(command, _QUERY_S)
