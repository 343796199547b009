"""The end of a job whose supervisor went with its node, or hangs there.

A job that outlives the loss of a node (`--no-kill`) outlives that of its first one too, as a ghost:
it stays RUNNING with nobody to end it, and its successor waits. Any agent that is left ends it. So
it does where the node is well and the supervisor says nothing to anybody: it was stopped, or waits
for a disk for ever, and all agents have given it up.

The node may only have been out of reach. Its supervisor is told to end then, as if a person had
cancelled the job; the sign that the agent leaves says that none has, and that the run goes on.
"""

from __future__ import annotations

import logging
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from hpckit.slurm.scontrol import field

log = logging.getLogger(__name__)

POLL_S = 1.0
PATIENCE_S = 900.0  # Slurm finds a node lost after SlurmdTimeout: 300 s, if the site has not set it
_QUERY_S = 20.0

Ask = Callable[[Sequence[str]], str]


def is_orphan(
    job: str,
    host: str,
    has_spoken: Callable[[], bool],
    ask: Ask | None = None,
    patience_s: float = PATIENCE_S,
) -> bool:
    """Whether Slurm has lost the node of the job's supervisor, or that node answers for as long as
    `patience_s`, and the supervisor does not. Returns once that is known.

    Not where the supervisor speaks to others: then it is this node that was cut off. Nor where it
    has ended: then Slurm ends the job.

    Args:
        has_spoken: whether the supervisor has said anything to anybody since this node has not
            heard of it. Raises OSError where that cannot be known.
    """
    ask, until_s = ask or _ask, time.monotonic() + patience_s
    _have_it_looked_at(job, ask)
    while True:
        try:
            told = ask(["scontrol", "--oneliner", "show", "job", job])
            if not is_running(told):
                return False
            if not _has(told, host, ask) or is_lost(
                ask(["scontrol", "--oneliner", "show", "node", host])
            ):
                log.error("node %s is lost, and the supervisor with it", host)
                return True
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("Slurm does not tell what became of node %s: %s", host, error)
        if time.monotonic() > until_s:
            return _is_mute(job, host, has_spoken)
        time.sleep(POLL_S)


def _have_it_looked_at(job: str, ask: Ask) -> None:
    """Have Slurm's controller talk to the node of the batch process now, by a signal that does
    nothing: by itself it looks each third of SlurmdTimeout, and so knows after MessageTimeout. Seen
    with Slurm 22.05 and its defaults, 300 s and 10 s: a lost node is known 12 s later."""
    try:
        ask(["scancel", "--batch", "--signal=URG", job])
    except (OSError, subprocess.SubprocessError) as error:
        log.warning("Slurm is not made to look for the supervisor of job %s: %s", job, error)


def _is_mute(job: str, host: str, has_spoken: Callable[[], bool]) -> bool:
    """After all this time, of a supervisor whose node answers."""
    try:
        lives = has_spoken()
    except OSError as error:
        log.error("whether the supervisor of job %s lives is not known: %s", job, error)
        return False
    if lives:
        log.error("the supervisor on node %s lives without this node: job %s is left", host, job)
    else:
        log.error("node %s answers, but the supervisor there says nothing at all", host)
    return not lives


def end_job(
    job: str,
    sign: Path,
    ask: Ask | None = None,
    patience_s: float = PATIENCE_S,
    *,
    comes_again: bool = False,
) -> bool:
    """Cancel the job of this node, if nobody else has ended it; whether it did.

    Args:
        sign: a file that is there before the job is cancelled.
        comes_again: requeue it instead: no other job goes on from it. Needs no sign: Slurm tells.
    """
    ask, until_s = ask or _ask, time.monotonic() + patience_s
    while True:
        try:
            if not is_running(ask(["scontrol", "--oneliner", "show", "job", job])):
                return False
            if comes_again:
                ask(["scontrol", "requeue", job])
            else:
                _leave(sign)
                ask(["scancel", job])
            log.error("job %s is ended: it has no supervisor any more", job)
            return True
        except (OSError, subprocess.SubprocessError) as error:
            log.warning("job %s cannot be ended: %s", job, error)
        if time.monotonic() > until_s:
            return False
        time.sleep(POLL_S)


def _leave(sign: Path) -> None:
    try:
        sign.parent.mkdir(exist_ok=True)
        sign.touch()
    except OSError as error:  # a supervisor that lives after all would stop the run for good
        log.error("the sign that no person has cancelled the job cannot be left: %s", error)


def is_lost(text: str) -> bool:
    """Of what `scontrol show node` says: it is given up, or has not answered the last time, which
    is known long before. Some versions say that by a "*"."""
    state, *flags = (field(text, "State") or "").split("+")
    return "*" in state or state == "DOWN" or "NOT_RESPONDING" in flags


def _has(text: str, host: str, ask: Ask) -> bool:
    """Whether the job still has that node. A node that is soon back is not the job's any more."""
    nodes = field(text, "NodeList")
    return nodes is None or host in ask(["scontrol", "show", "hostnames", nodes]).split()


def is_running(text: str) -> bool:
    """Of what `scontrol show job` says."""
    return field(text, "JobState") == "RUNNING"


def _ask(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_QUERY_S)
    return done.stdout
