"""The oracle: checks of a disturbed run by its events, its sample ledgers, its store and the
machine, and by an undisturbed run of the same config.

Each function returns what is wrong, one line each; empty if nothing is.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

import numpy as np
import psutil

from checkpointing import list_run, verify
from checkpointing.events import CheckpointCommitted
from checkpointing.service.protocol.socket_address import SOCKET, all_sockets, service_key
from data import open_dataset
from data.order.recurring_skips import RecurringSkips
from data.order.skipped_ranges import NOTHING_SKIPPED, SkippedRanges
from data.read.sample_stream import order_of
from hpckit.config.batch_size import samples_before
from hpckit.config.last_step import last_step
from hpckit.config.rules.token_files import order_options, reading_options
from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import read_spec
from hpckit.events.event_log import Event, read_events
from hpckit.events.schema import CheckpointCertified, HangExplained, WrongComputation
from hpckit.faults.campaign.cured_reference import (
    Cures,
    cure_problems,
    cures_of_events,
    cures_of_spec,
)
from hpckit.faults.campaign.fault_log import RecordedFault
from hpckit.faults.campaign.store_leftovers import store_leftovers
from hpckit.faults.fault_plan import DrillKind
from hpckit.report.history import History, TrainingAttempt, build_history
from hpckit.rundir.directory import RunDir, checkpoint_root, run_name, store_and_name
from hpckit.rundir.lock import holder
from hpckit.rundir.sample_ledger import LedgerEntry, count_epochs, kept_entries, read_ledgers
from hpckit.system.atomic_files import read_json
from hpckit.system.child_processes import strays
from hpckit.system.store_timeouts import interactive_store_options

MOST = 5
"""Number of lines of one kind that are shown; further ones are counted."""
CLOSE = 1e-3
"""Relative difference of losses between different numbers of ranks, which sum in another order."""


def violations(
    run: RunDir,
    reference: RunDir,
    harmed: Collection[str] = (),
    struck: Sequence[RecordedFault] = (),
    *,
    cut_short: bool = False,
) -> list[str]:
    """Return all that is wrong with `run`, which has ended.

    Args:
        harmed: names of objects of its store that were damaged on purpose.
        struck: the faults that hit it.
        cut_short: it was ended before its last step on purpose: only what it did is checked.
    """
    spec = read_spec(run.spec(run.submission_numbers()[-1]))
    events = read_events(run.events)
    history = build_history(events)
    whole = build_history(read_events(reference.events))
    until = max(history.kept, default=0) if cut_short else last_step(spec)
    cures = cures_of_events(events)
    kept = kept_entries(read_ledgers(run.ledger), until)
    found = (
        [] if cut_short else verdict_problems(read_json(run.verdict)),
        sample_problems(spec, kept, until, cures.samples),
        cure_problems(events, kept, struck),
        reference_problems(reference, cures),
        loss_problems(history, whole, until, cures.updates),
        checkpoint_problems(spec, run, events, harmed),
        naming_problems(events, struck),
        leftovers(spec, run, events),
        store_leftovers(
            str(checkpoint_root(spec, run)), run_name(spec), is_own=spec.checkpoint.url is None
        ),
    )
    return list(chain.from_iterable(_few(lines) for lines in found))


def verdict_problems(verdict: Mapping[str, object] | None) -> list[str]:
    """Check that the run has ended as done."""
    if verdict is None:
        return ["verdict: there is none"]
    if verdict.get("kind") != "done":
        return [f"verdict: {verdict.get('kind')}: {verdict.get('reason')}"]
    return []


def reference_problems(reference: RunDir, cures: Cures) -> list[str]:
    """Check that the reference run leaves out what the run has left out, as otherwise their losses
    cannot be compared."""
    numbers = reference.submission_numbers()
    if cures == (cures_of_spec(read_spec(reference.spec(numbers[-1]))) if numbers else Cures()):
        return []
    return [
        f"{reference.path}: it has not left out what the run has left out after spikes, because "
        "the campaign ended before such a reference was run: losses after a spike differ"
    ]


def sample_problems(
    spec: RunSpec,
    entries: Sequence[LedgerEntry],
    steps: int,
    left_out: SkippedRanges = NOTHING_SKIPPED,
) -> list[str]:
    """Check that each step takes its own positions of the stream, with the samples that
    the order gives them, so that an epoch has each sample once, except those at the positions
    `left_out`."""
    if spec.data.shards is None:
        return ["data.mixture: a campaign checks the samples of one dataset, data.shards"]
    dataset = open_dataset(
        spec.data.shards,
        cache=spec.data.cache,
        cache_bytes=spec.data.cache_gb * 10**9,
        **reading_options(spec, spec.data.shards),
    )
    order = order_of(dataset, **order_options(spec))
    every_epoch = RecurringSkips(left_out, order) if left_out else left_out
    begins = [samples_before(spec, step) for step in range(steps + 1)]
    every = np.split(every_epoch.kept_at(np.arange(begins[steps])), begins[1:steps])
    taken: dict[int, list[int]] = {step: [] for step in range(1, steps + 1)}
    for entry in entries:
        taken[entry.step].extend(entry.positions)
    found = [
        f"step {step}: positions {sorted(positions)} instead of {due[0]} to {due[-1]}"
        for (step, positions), due in zip(taken.items(), every, strict=True)
        if sorted(positions) != due.tolist()
    ]
    for entry in entries:
        shards, samples = order.locate(entry.positions)
        for position, shard, sample, key in zip(
            entry.positions, shards.tolist(), samples.tolist(), entry.keys, strict=True
        ):
            number = dataset.first[shard] + sample
            due = f"{dataset.opened(shard).index.key(sample)}#{number}"
            if key != due:
                found.append(f"step {entry.step}: position {position} is {key}, and not {due}")
    until = every_epoch.later(0, begins[steps])
    for epoch in count_epochs(entries, len(dataset), until, every_epoch):
        if epoch.missing or epoch.twice:
            lack = f"{epoch.missing} samples missing, {len(epoch.twice)} more than once"
            found.append(f"epoch {epoch.epoch + 1}: {lack}")  # as in reports
    return found


def _losses(history: History) -> dict[int, float]:
    return {step: e.loss for step, e in history.kept.items() if e.loss is not None}


def loss_problems(
    history: History, whole: History, steps: int, without_update: Collection[int] = ()
) -> list[str]:
    """Check that losses equal those of the undisturbed run bit for bit as long as the number of
    ranks is the same, and nearly equal from a state that other numbers of ranks have trained. A
    loss that is not finite equals no other.

    Args:
        without_update: the steps that the run has not made because of their loss.
    """
    mine = _losses(history)
    due = {
        step: loss
        for step, loss in _losses(whole).items()
        if step <= steps and step not in without_update
    }
    world = whole.lives[0].world_size if whole.lives else 0
    exact = min(_exact_until(history.lives, world), _exact_until(whole.lives, world))
    missing = sorted(due.keys() - mine.keys())
    return [f"step {step}: its loss was not recorded" for step in missing] + [
        f"step {step}: loss {mine[step]!r}, and {due[step]!r} undisturbed"
        for step in sorted(due.keys() & mine.keys())
        if not _is_near(mine[step], due[step], CLOSE if step > exact else 0.0)
    ]


def _is_near(mine: float, due: float, within: float) -> bool:
    """Whether they are nearly equal; false for NaN, for which all comparisons are false."""
    return abs(mine - due) <= within * abs(due)


def _exact_until(lives: Sequence[TrainingAttempt], world: int) -> float:
    """Return the last step whose state only `world` ranks have trained, among kept steps: an
    attempt that begins at or before it has undone what came after."""
    last = math.inf
    for life in lives:
        if life.start_step <= last:
            last = math.inf if life.world_size == world else life.start_step
    return last


def checkpoint_problems(
    spec: RunSpec, run: RunDir, events: Sequence[Event], harmed: Collection[str] = ()
) -> list[str]:
    """Check that each committed checkpoint exists, or as many newer ones as are kept (a killed
    process may not have recorded those, or the prune), and that all existing ones are undamaged."""
    url, name = str(checkpoint_root(spec, run)), run_name(spec)
    there = {info.id: info for info in list_run(url, name, interactive_store_options())}
    committed = [e for e in events if isinstance(e, CheckpointCommitted)]
    found = [
        f"checkpoint {e.get('id')} of step {e['step']} was reported as durable but does not exist"
        for e in committed
        if e.id not in there
        and sum(info.step >= e["step"] for info in there.values()) < spec.checkpoint.keep.last
    ]
    if not there:
        found.append("checkpoints: there are none")
    for info in there.values():
        problems = verify(url, info)
        own = [one for one in problems if not any(name in one for name in harmed)]
        found += [f"checkpoint {info.id}: {problem}" for problem in own]
    return found


def naming_problems(events: Sequence[Event], struck: Sequence[RecordedFault]) -> list[str]:
    """Check that the run has said which rank hung or computed wrongly: before the next fault, and
    of a wrong computation within two checks."""
    found = []
    for fault, following in zip(struck, [*struck[1:], None], strict=False):
        if fault.rank is None:
            continue
        until = math.inf if following is None else following.time
        later = [event for event in events if fault.time <= event.time < until]
        if fault.kind == DrillKind.WRONG:
            named = [event.ranks for event in later if isinstance(event, WrongComputation)][:1]
            checks = sum(
                isinstance(event, CheckpointCertified) and event.time > (fault.caused or fault.time)
                for event in later[: _first(later)]
            )
            if checks > 1:
                found.append(f"step {fault.step}: {fault.what}; {checks} checks have passed since")
        else:
            named = [event.culprits for event in later if isinstance(event, HangExplained)][:1]
        if not named:
            found.append(f"step {fault.step}: {fault.what}; the run has not said so")
        elif fault.rank not in named[0]:
            found.append(f"step {fault.step}: {fault.what}; the run has named {named[0]}")
    return found


def _first(events: Sequence[Event]) -> int:
    """Return the place of the first wrong computation, or their number if there is none."""
    places = (n for n, event in enumerate(events) if isinstance(event, WrongComputation))
    return next(places, len(events))


def leftovers(spec: RunSpec, run: RunDir, events: Sequence[Event]) -> list[str]:
    """Check that no process, socket or lock of the run is left. Its shared memory has no names, so
    without a process there is none."""
    nodes = {str(e["node"]) for e in events if e.get("node") is not None}
    own = {f"{service_key(*store_and_name(spec, run), node)}{SOCKET}" for node in nodes}
    found = [f"process {p.pid} is left over: {' '.join(_words(p))}" for p in strays(run.path)]
    found += [f"socket {path} is left over" for path in all_sockets() if path.name in own]
    owner = holder(run.lock)
    return found + ([f"the run is still held by {owner}"] if owner is not None else [])


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _few(lines: Sequence[str]) -> list[str]:
    rest = len(lines) - MOST
    return [*lines[:MOST], *([f"and {rest} more of this kind"] if rest > 0 else [])]
