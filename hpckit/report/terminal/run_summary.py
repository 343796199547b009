"""The summary of a run on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import takewhile

from rich.console import Console, JustifyMethod
from rich.markup import escape
from rich.table import Table

from checkpointing import CheckpointError
from hpckit.config.batch_size import samples_before
from hpckit.config.spec_parser import read_spec
from hpckit.events.event_validation import ValidatedEvents, read_valid_events
from hpckit.events.schema import Event
from hpckit.report.evaluation.evaluation_lines import metric_lines
from hpckit.report.evaluation.evaluation_records import known_and_waiting
from hpckit.report.history import History, Interruption, TrainingAttempt, build_history, names_of
from hpckit.report.overview import read_verdict
from hpckit.report.performance.speed_report import last_spec, speed_facts
from hpckit.report.progress import (
    describe_hang,
    describe_skipped,
    describe_spike,
    validated_words,
)
from hpckit.report.remaining_checkpoints import left_checkpoints
from hpckit.report.source_progress import describe_change, describe_source
from hpckit.report.terminal.fitting_columns import fitting_columns
from hpckit.rundir.directory import RunDir
from hpckit.rundir.lock import holder
from hpckit.rundir.sample_ledger import (
    EpochCount,
    count_epochs,
    kept_entries,
    read_ledgers,
    recurring_samples,
)
from hpckit.text.quantities import clean, count

_SHOWN_SKIPPED = 10
_LOST = "lost: seconds without a new step"
_LOST_SPLIT = (
    " = leave (notice, save, exit) + restart (processes, rendezvous, restore) + repeat "
    "(repeated steps)"
)
_SPLIT = "leave + restart + repeat"
_COLUMNS = ("gen", "nodes", "ranks", "steps", "ended", "lost", _SPLIT)
_IMPORTANCE = ("gen", "steps", "ended", "lost", "nodes", "ranks", _SPLIT)
_GAP = 2


def show(run: RunDir, console: Console, validated: ValidatedEvents | None = None) -> bool:
    """Print what has happened in the run so far; returns whether there was anything.

    Args:
        validated: its events, if they were read already.
    """
    validated = validated or read_valid_events(run)
    history = build_history(validated.events, alive=holder(run.lock) is not None)
    if not history.lives:
        console.print(_without_steps(run), highlight=False, soft_wrap=True)
        return False
    console.print()
    shown = _generations(history, console.width)
    console.print(shown)
    if history.interruptions:
        has_split = any(column.header == _SPLIT for column in shown.columns)
        console.print(_LOST + _LOST_SPLIT * has_split, style="dim", highlight=False)
    for name, text in _facts(run, history, validated.events):
        console.print(f"[bold]{name:<12}[/] {clean(text)}", highlight=False, soft_wrap=True)
    return True


def _generations(history: History, width: int) -> Table:
    """Return a table of the training attempts in `width` columns of the terminal. Columns that do
    not fit are left out in the order of `_IMPORTANCE`, the last one first."""
    gaps: Sequence[Interruption | None] = [*history.interruptions, None]
    rows = [
        {"gen": name, **_row(life, gap)}
        for name, life, gap in zip(names_of(history.lives), history.lives, gaps, strict=True)
    ]
    wide = {name: max(len(name), *(len(row[name]) for row in rows)) for name in _IMPORTANCE}
    fitting = fitting_columns(wide, width + _GAP, _GAP)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in (name for name in _COLUMNS if name in fitting):
        justify: JustifyMethod = "left" if name == "ended" else "right"
        table.add_column(name, justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*(row[name] for name in _COLUMNS if name in fitting))
    return table


def _row(life: TrainingAttempt, gap: Interruption | None) -> dict[str, str]:
    row = {
        "nodes": str(life.nodes),
        "ranks": str(life.world_size),
        "steps": f"{life.start_step} → {life.end_step}",
        "ended": life.end,
        "lost": "",
        _SPLIT: "",
    }
    if gap is not None:
        row["lost"] = f"{gap.lost_s:.1f} s"
        row[_SPLIT] = f"{gap.leave_s:.1f} + {gap.restart_s:.1f} + {gap.repeat_s:.1f} s"
    return row


def _facts(run: RunDir, history: History, events: Sequence[Event]) -> Iterator[tuple[str, str]]:
    yield "verdict", _verdict(run)
    last = history.steps_kept
    repeated = sum(gap.repeated for gap in history.interruptions)
    yield "steps", f"{last} kept, {repeated} repeated"
    if history.samples and run.ledger.is_dir():
        every = read_ledgers(run.ledger)
        entries = kept_entries(every, last)
        until = _positions(run, history, last)
        if history.left_out:  # later epochs may have reached further, as they leave them out, too
            until = max([until, *(at + 1 for entry in entries for at in entry.positions)])
        recurring = recurring_samples(every, history.samples, history.left_out)
        counts = count_epochs(entries, history.samples, until, history.left_out, recurring)
        for line in _epochs(counts):
            yield "samples", line
    if losses := [(s, e["loss"]) for s, e in sorted(history.kept.items()) if e.get("loss")]:
        (first, before), (final, after) = losses[0], losses[-1]
        yield "loss", f"{before:.3f} at step {first}, {after:.3f} at step {final}"
    for name, fields in history.sources.items():
        yield "source", escape(describe_source(name, fields))
    for grown in history.dataset_growths:
        yield (
            "dataset",
            f"grown from {grown.before:,} to {grown.after:,} shards at step {grown.step:,}; all "
            f"are read from sample {grown.position:,} on (epoch {grown.epoch + 1})",
        )
    for change in history.mixture_changes:
        yield "mixture", escape(describe_change(change))
    for spike in history.spikes:
        yield "spike", escape(describe_spike(spike))
    for skipped in history.skipped_updates[-_SHOWN_SKIPPED:]:
        yield "update", escape(describe_skipped(skipped))
    if (earlier := len(history.skipped_updates) - _SHOWN_SKIPPED) > 0:
        yield "update", f"and {count(earlier, 'earlier update')} left out"
    for hang in history.hangs:
        yield "hang", escape(describe_hang(hang))
    if history.validated:
        yield "validation", _validation(history)
    spec = last_spec(run)
    evaluations = known_and_waiting(run, events, spec)
    for name, text in metric_lines(evaluations, spec.eval if spec is not None else None):
        yield name, escape(text)
    yield "checkpoints", _checkpoints(run, history)
    yield from speed_facts(history, spec)


def _validation(history: History) -> str:
    """Return the newest validation, and the lowest loss."""
    newest = history.validated[max(history.validated)]
    text = f"{validated_words(newest)} at step {newest.step}"
    losses = {s: e["val_loss"] for s, e in history.validated.items() if e.get("val_loss")}
    best = min(losses, key=losses.__getitem__, default=newest.step)
    return text if best == newest.step else f"{text}; lowest {losses[best]:.4g} at step {best}"


def _verdict(run: RunDir) -> str:
    verdict, problem = read_verdict(run)
    if verdict is None:
        return escape(problem or "none yet")
    return escape(f"{verdict.get('kind')}: {verdict.get('reason')}")


def _positions(run: RunDir, history: History, steps: int) -> int:
    """Return the position after the first `steps` steps; batches may differ between attempts."""
    life = next((life for life in reversed(history.lives) if life.start_step <= steps), None)
    if life is None or life.position is None or life.global_batch is None:
        return samples_before(read_spec(run.spec(run.submission_numbers()[-1])), steps)
    samples, _ = life.samples_after(steps - life.start_step)
    return history.left_out.later(life.position, samples)


def _epochs(counts: Sequence[EpochCount]) -> Iterator[str]:
    """Yield a line per epoch; consecutive exact epochs share one line."""
    exact = len(list(takewhile(lambda count: count.exact, counts)))
    if exact > 3:
        each = f"{counts[0].samples:,} of {counts[0].samples:,}"
        yield f"epochs 1 to {exact}: {each} seen in each, each exactly once"
        counts = counts[exact:]
    yield from map(_epoch, counts)


def _epoch(count: EpochCount) -> str:
    head = f"epoch {count.epoch + 1}: {count.seen:,} of {count.samples:,} seen"
    if count.twice:
        first = escape(count.twice[0])
        return f"{head}, [red]{len(count.twice)} more than once[/], first {first}"
    if count.missing:
        return f"{head}, [red]{count.missing:,} missing[/]"
    left_out = f", {count.left_out:,} left out" if count.left_out else ""
    end = "" if count.complete else " (the run ends inside it)"
    return f"{head}, each exactly once{left_out}{end}"


def _without_steps(run: RunDir) -> str:
    """Return what is known of a run without steps."""
    spec = last_spec(run) if run.submission_numbers() else None
    if spec is None or spec.command is None:
        return f"{run.name} has not trained yet."
    verdict, _ = read_verdict(run)
    if verdict is not None and verdict["kind"] not in ("done", "stopped"):
        return f"{run.name} has reported no steps"
    return (
        f"{run.name} has reported no steps: call hpckit.client.step in the program, or set "
        "command.step_pattern or command.tensorboard_dir"
    )


def _checkpoints(run: RunDir, history: History) -> str:
    if history.reported:
        newest = history.reported[-1].step
        return f"{len(history.reported)} reported by the program, the newest at step {newest}"
    try:
        left = left_checkpoints(run, history)
    except (CheckpointError, FileNotFoundError) as error:
        return f"{len(history.committed)} committed, but they cannot be read: {escape(str(error))}"
    there = [info for info in left if info.state != "damaged"]
    steps = ", ".join(
        f"{info.step} (certified)" if info.certified else str(info.step)
        for info in sorted(there, key=lambda i: i.step)
    )
    size = max((info.raw_bytes for info in there), default=0) / 2**20
    return (
        f"{len(history.committed)} committed, {len(there)} kept"
        f" (step{'s' if len(there) != 1 else ''} {steps}), {size:.1f} MiB each"
        if there
        else f"{len(history.committed)} committed, none kept"
    )
