"""Follows a run in the terminal that started it, by the events in `events.jsonl`.

Signals to the command that follows are passed on to the supervisor, once there is one:

    SIGUSR2           preemption: the run saves and continues
    SIGINT, SIGTERM   stop: the run saves and ends; a second Ctrl-C ends only the following
    SIGHUP            the terminal is gone: only the following ends, if the run outlives it
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from checkpointing.events import (
    CheckpointCommitted,
    CheckpointFailed,
    CheckpointSkipped,
    ReplicasDiffer,
)
from hpckit.agent.verdict_record import EXIT_STATUS, LEAVES, REFUSED, VerdictKind
from hpckit.events.event_log import Event, EventTail
from hpckit.events.schema import (
    CheckpointCertified,
    DataBound,
    DeepHealthEnded,
    Degraded,
    GenerationEnded,
    GenerationStarted,
    HangDetected,
    HangExplained,
    LeaveRequested,
    NodesChosen,
    NodeUnhealthy,
    OutOfMemory,
    RunEnded,
    RunFailed,
    RunRefused,
    RunStarted,
    StepLogged,
    StragglerCost,
    StragglerEvicted,
    StragglerEvictionResult,
    StragglerFound,
    StragglerOver,
    TrainingStarted,
    Validated,
    WorkerLost,
    WrongComputation,
)
from hpckit.report.progress import describe_straggler, validated_words
from hpckit.report.straggler_summary import describe_cost, describe_eviction, describe_result
from hpckit.rundir.directory import RunDir
from hpckit.rundir.lock import holder
from hpckit.text.quantities import clean

TICK_S = 0.2
# A terminal shows every step on a bar; a log file gets a line at this interval.
LINE_EVERY_S = 10.0
FULL_BYTES = 1 << 20
_RECEIVED = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP)


class RunFollower:
    """Shows a submission's events until the run has ended."""

    def __init__(
        self,
        run: RunDir,
        submission: int,
        steps: int | None,
        console: Console,
        tail: EventTail,
        is_outlived: bool = True,
    ) -> None:
        """
        Args:
            steps: the number of steps that the run is meant to have; None: it is unknown.
            tail: determines where reading starts; it must be made before the submission, so that no
                event is missed.
            is_outlived: whether the supervisor outlives this process. False: SIGHUP stops the run
                after a save, as SIGTERM does.
        """
        self._run = run
        self._submission = submission
        self._steps = steps
        self._console = console
        self._tail = tail
        self._is_outlived = is_outlived
        self._status: int | None = None
        self._received: set[signal.Signals] = set()
        self._supervisor: int | None = None  # its process, once it can receive signals
        self._asked_to_stop = False
        self._is_stop_seen = False
        self._last_line = 0.0

    @contextmanager
    def noting_signals(self) -> Iterator[None]:
        """Defers signals in the block, for `follow` to handle. The block starts before the
        submission, so that a Ctrl-C between submission and `follow` cannot leave a run that nobody
        stops. One that is ignored, such as SIGHUP below nohup, stays ignored."""
        noted = [one for one in _RECEIVED if signal.getsignal(one) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._note) for number in noted}
        mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, noted)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._received.add(signal.Signals(number))

    def follow(self, job_alive: Callable[[], bool]) -> int:
        """Follows the run until it has ended, or its job has without an event, and returns the
        run's exit status."""
        with _progress(self._console) as bar:
            task = bar.add_task("starting", total=self._steps, metrics="")
            while self._status is None:
                try:
                    self._handle_signals()
                    alive = job_alive() or holder(self._run.lock) is not None
                    self._show_new(bar, task)
                    if self._status is None and not alive:
                        self._show_new(bar, task)
                        break
                    if self._asked_to_stop and not self._is_stop_seen:
                        self._ask_to_stop()
                    time.sleep(TICK_S)
                except KeyboardInterrupt:
                    if self._asked_to_stop:
                        self._say(f"no longer followed; it still runs: {self._run.path}")
                        return EXIT_STATUS[VerdictKind.PREEMPTED]
                    self._stop("stopping after a save; press Ctrl-C again to stop following")
        if self._status is None:
            return self._ended_silently()
        return self._status

    def _handle_signals(self) -> None:
        """Does what the signals since the last call request.

        Raises:
            KeyboardInterrupt: there was a Ctrl-C.
        """
        received, self._received = self._received, set()
        if signal.SIGHUP in received:
            self._hang_up()
        if received & {signal.SIGTERM, signal.SIGHUP} and not self._asked_to_stop:
            self._stop("SIGTERM or SIGHUP: stopping after a save")
        if signal.SIGUSR2 in received and not self._preempt():
            self._received.add(signal.SIGUSR2)  # there is no supervisor yet
        if signal.SIGINT in received:
            raise KeyboardInterrupt

    def _hang_up(self) -> None:
        """Ends this process by SIGHUP if the supervisor outlives it; the terminal may be gone."""
        if not self._is_outlived:
            self._console.file = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
            return
        with suppress(OSError):
            self._say(f"SIGHUP: no longer followed; it still runs: {self._run.path}")
            self._console.show_cursor(True)
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGHUP)

    def _stop(self, message: str) -> None:
        self._asked_to_stop = True
        self._say(message)
        self._ask_to_stop()

    def _preempt(self) -> bool:
        """Passes a preemption on to the supervisor, and returns whether there is one. It handles
        signals from before its first event, and each one is a preemption of its own."""
        if self._supervisor is None:
            return False
        self._say("SIGUSR2: the run is preempted; it saves and continues")
        with suppress(ProcessLookupError):
            os.kill(self._supervisor, signal.SIGUSR2)
        return True

    def _show_new(self, bar: Progress, task: TaskID) -> None:
        for event in self._tail.read():
            if (
                isinstance(event, RunEnded | RunRefused | RunFailed)
                and event.submission == self._submission
            ):
                self._end(event)
            elif isinstance(event, StepLogged):
                self._show_step(event, bar, task)
            elif isinstance(event, RunStarted) and event.submission == self._submission:
                self._supervisor = int(event["pid"])
                self._say(describe_signals(self._supervisor))
            elif line := describe(event):
                bar.console.print(f"[dim]{_clock(event)}[/] {clean(line)}", highlight=False)
            if isinstance(event, TrainingStarted):
                name = f"gen {event.generation}"
                bar.update(task, description=name, completed=event.step)
            if isinstance(event, LeaveRequested):
                self._is_stop_seen = True

    def _end(self, event: RunEnded | RunRefused | RunFailed) -> None:
        """Takes the exit status from the submission's last event."""
        if isinstance(event, RunEnded):
            self._status = int(event["status"])
            return
        self._say(f"[red]{event.kind.replace('_', ' ')}[/]: {escape(str(event.error))}")
        self._status = REFUSED if isinstance(event, RunRefused) else EXIT_STATUS[VerdictKind.INFRA]

    def _show_step(self, event: StepLogged, bar: Progress, task: TaskID) -> None:
        metrics = describe_metrics(event)
        bar.update(task, completed=event.step, metrics=metrics)
        if not self._console.is_terminal and event.time - self._last_line > LINE_EVERY_S:
            self._last_line = event.time
            of = "" if self._steps is None else f"/{self._steps}"
            self._console.print(
                f"{_clock(event)} step {event.step}{of}  {metrics}",
                highlight=False,
                soft_wrap=True,
            )

    def _ask_to_stop(self) -> None:
        """Signals the supervisor. Called repeatedly until it reacts, as the supervisor may not
        exist yet."""
        owner = holder(self._run.lock)
        # 0: the holder is unknown; as a pid, 0 is this process group
        if owner is not None and owner.pid and owner.host == socket.gethostname():
            with suppress(ProcessLookupError):
                os.kill(owner.pid, signal.SIGINT)

    def _ended_silently(self) -> int:
        full = shutil.disk_usage(self._run.path).free < FULL_BYTES
        self._say("[red]The supervisor ended without recording why.[/]")
        if full:
            self._say(f"The disk of {self._run.path} is full.")
        self._say(f"Its log: {self._run.logs}/supervisor.log, {self._run.submitit}/*.err")
        self._say(f"Resume from the newest checkpoint: hpckit resume {self._run.path}")
        return EXIT_STATUS[VerdictKind.INFRA]

    def _say(self, text: str) -> None:
        self._console.print(clean(text), highlight=False, soft_wrap=True)


def describe_signals(supervisor: int) -> str:
    """Returns the line that says which process to signal, and what signals do."""
    return (
        f"the supervisor is process {supervisor}: SIGUSR2 to it, or to this command, preempts the "
        "run; Ctrl-C or SIGTERM to this command saves and stops it"
    )


def describe_metrics(event: StepLogged) -> str:
    """Returns the available metrics of a step in a form that fits beside a bar in 80 columns.

    `data` and `ckpt` are the shares of the step spent waiting for data and for a save.
    """
    words = {
        "loss": "loss {:.3f}",
        "grad_norm": "grad {:.2f}",
        "accuracy": "accuracy {:.1%}",
        "tokens_per_s": "{:,.0f} tok/s",
        "samples_per_s": "{:,.0f} samples/s",
    }
    found = [text.format(event[key]) for key, text in words.items() if event.get(key) is not None]
    waits = {"data": event.data_wait_s, "ckpt": event.checkpoint_stall_s}
    for name, wait_s in waits.items():
        if wait_s is not None and event.get("step_s"):
            found.append(f"{name} {wait_s / event.step_s:.0%}")
    return " ".join(found)


def describe(event: Event) -> str | None:
    """Returns the line about `event` for a person who follows the run, or None if it is of no
    interest. An event that is being followed has not been validated: a field may be missing."""
    get = event.get
    match event:
        case GenerationStarted():
            nodes = _count(get("nodes"), "node")
            return f"generation {get('generation')} starts on {nodes}"
        case TrainingStarted():
            return f"training on {_count(get('world_size'), 'rank')} from step {get('step')}"
        case LeaveRequested():
            return f"[yellow]{get('request')}[/]: all ranks are asked to save and exit"
        case WorkerLost():
            return f"[yellow]worker lost[/] on node {get('node')} at step {get('step')}"
        case HangDetected():
            what = f"[yellow]hang[/] on node {get('node')} after step {get('step')}"
            return f"{what}: stacks in {escape(' '.join(get('stacks', [])) or 'none')}"
        case HangExplained():
            return f"[yellow]hang[/] after step {get('step')}: {escape(str(get('text')))}"
        case NodeUnhealthy():
            where = get("host") or f"node {get('node')}"
            return f"[yellow]{where} is left out[/]: {escape('; '.join(get('problems', [])))}"
        case DeepHealthEnded():
            nodes, found = _count(len(get("hosts")), "node"), get("found")
            result = f"[yellow]{escape('; '.join(found))}[/]" if found else "nothing wrong or slow"
            return f"measured {nodes} in {get('seconds'):.0f} s: {result}"
        case OutOfMemory():
            where = f"on node {get('node')} after step {get('step')}"
            return f"[yellow]out of memory[/] ({get('memory')}) {where}"
        case NodesChosen() if len(get("nodes")) < get("wanted"):
            return (
                f"[yellow]continuing with {_count(len(get('nodes')), 'node')}[/] of {get('wanted')}"
            )
        case Validated():
            return f"step {get('step')}: {validated_words(event)} in {get('seconds'):.1f} s"
        case CheckpointCommitted():
            mib = get("bytes", 0) / 2**20
            return f"checkpoint {get('step')} committed, {mib:.1f} MiB in {get('seconds'):.1f} s"
        case CheckpointFailed() | CheckpointSkipped():
            why = get("reason") or get("error")
            what = event.kind.removeprefix("checkpoint_")
            return f"[red]checkpoint {get('step')} {what}[/]: {escape(str(why))}"
        case CheckpointCertified():
            return (
                f"all ranks compute alike at step {get('step')}, checked in {get('seconds'):.1f} s"
            )
        case WrongComputation():
            return f"[red]wrong computation[/]: {escape(str(get('what')))}"
        case ReplicasDiffer():
            what = escape(str(get("summary")))
            return f"[red]replicas differ[/] at step {get('step')}: {what}"
        case Degraded():
            return f"[yellow]degraded[/]: {escape(str(get('what')))}"
        case DataBound():
            tone = "green" if get("bound") == "consumer" else "yellow"
            return f"[{tone}]data[/] at step {get('step')}: {escape(str(get('diagnosis')))}"
        case StragglerFound():
            return f"[yellow]straggler[/] at step {get('step')}: {describe_straggler(event)}"
        case StragglerCost() if event.ranks:
            return f"[yellow]stragglers[/] at step {get('step')}: {escape(describe_cost(event))}"
        case StragglerEvicted():
            return f"[yellow]evicted[/]: {escape(describe_eviction(event))}"
        case StragglerEvictionResult():
            tone = "green" if event.has_paid else "yellow"
            return f"[{tone}]eviction[/]: {escape(describe_result(event))}"
        case StragglerOver():
            what = f"rank {get('rank')} on {get('host')} keeps up again"
            return f"[green]straggler[/] at step {get('step')}: {what}"
        case GenerationEnded():
            colour = {"done": "green", **dict.fromkeys(("stopped", *LEAVES), "yellow")}
            kind = f"[{colour.get(str(get('verdict')), 'red')}]{get('verdict')}[/]"
            return f"generation {get('generation')} ended: {kind}, {escape(str(get('reason')))}"
    return None


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        MofNCompleteColumn(),
        TextColumn("{task.fields[metrics]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _clock(event: Event) -> str:
    return time.strftime("%H:%M:%S", time.localtime(event.time))
