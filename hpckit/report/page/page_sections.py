"""The sections of a page, from the content about a run. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from hpckit.report.evaluation.evaluation_lines import metric_lines, state_words
from hpckit.report.page.attempt_timeline import attempts
from hpckit.report.page.curve_plots import evaluation_plots, loss_plot, speed_plot
from hpckit.report.page.page_content import Curve, PageContent, SavedCheckpoint
from hpckit.report.page.page_document import (
    Block,
    CommandsBlock,
    FactsBlock,
    PageDocument,
    Section,
    TableBlock,
    TextBlock,
)
from hpckit.report.page.time_spent import data_blocks, time_blocks
from hpckit.report.performance.speed_report import speed_words
from hpckit.report.run_state import RunState
from hpckit.text.quantities import ago, count, size, span

MOST_ROWS = 100
"""Number of rows of a table of which there may be thousands; the newest are shown."""


def page_of(it: PageContent) -> PageDocument:
    """Return the page of one run."""
    return PageDocument(it.overview.run.name, exact(it.now), tuple(sections_of(it)))


def sections_of(it: PageContent) -> Iterator[Section]:
    yield Section("Now", tuple(_now(it)))
    yield Section("Why", (_why(it), CommandsBlock(it.answer.commands)))
    if it.history.lives:
        yield Section("Loss", tuple(_loss(it)))
        yield Section("Speed", tuple(_speed(it)))
        if it.overview.evaluations:
            yield Section("Evaluation", tuple(_evaluation(it)))
        yield Section("Attempts", tuple(attempts(it)))
        yield Section("Where the time went", tuple(time_blocks(it)))
        yield Section("Data", tuple(data_blocks(it)))
    yield Section("Checkpoints", tuple(_checkpoints(it)))
    yield Section("Nodes and ranks", tuple(_findings(it)))


def key_figures(it: PageContent) -> list[tuple[str, str]]:
    """Return what most readers look for first."""
    p, history = it.overview.progress, it.history
    wall_s = history.finished - history.started
    found = [
        ("state", it.overview.word),
        ("step", f"{p.step:,} of {p.steps:,}" if p.steps else f"{p.step:,}"),
        ("ETTR", _share(p.ettr)),
        ("training share", _share(p.training_share)),
        ("durable checkpoint", _last_saved(it)),
        ("wall time", span(wall_s) if wall_s > 0 else "none yet"),
        ("attempts", str(len(history.lives))),
        ("interruptions", _interruptions(it)),
        ("loss", f"{p.loss:.4g}" if p.loss is not None else "none recorded"),
    ]
    if p.validated is not None:
        found.append(("validation", p.validated))
    if it.overview.fork is not None:
        found.append(("forked from", str(it.overview.fork)))
    if it.in_steps.steps:
        found.append(("median step", f"{history.step_s:.3g} s"))
    if it.in_steps.tokens_per_s:
        found.append(("speed", f"{it.in_steps.tokens_per_s:,.0f} tokens/s"))
    return found


def _share(known: float | None) -> str:
    return f"{known:.1%}" if known is not None else "not known yet"


def exact(moment_s: float) -> str:
    """Format a time for readers in other time zones too."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(moment_s))


def _now(it: PageContent) -> Iterator[Block]:
    verdict = (it.overview.verdict or {}).get("reason")
    if it.overview.is_ended and verdict:
        yield TextBlock(f"{it.overview.word}: {verdict}")
    yield FactsBlock(key_figures(it), are_key=True)
    yield from (TextBlock(words, is_alert=True) for words in alerts(it))
    yield FactsBlock((("directory", str(it.overview.run.path)),))


def alerts(it: PageContent) -> Iterator[str]:
    """Return what makes the page incomplete."""
    if not it.history.lives and (spec := it.overview.spec) and spec.command is not None:
        yield (
            "The program has reported no steps, so there are no curves: call hpckit.client.step in "
            "it, or set command.step_pattern or command.tensorboard_dir."
        )
    elif not it.history.lives:
        yield "It has not trained yet: no rank has started, so there are no steps and no curves."
    elif it.overview.state in (RunState.RUNNING, RunState.STARTING):
        yield f"It is still {it.overview.state}: this page shows it as of {exact(it.now)}."
    damage = it.damage
    if damage.torn:
        lines = count(damage.torn, "line")
        yield f"Left out: {lines} of events.jsonl that could not be read (cut short, or damaged)."
    if damage.unsound:
        events = count(damage.unsound, "event")
        yield f"Left out: {events} of events.jsonl with a missing or wrong value."
    if damage.store is not None:
        yield f"The checkpoints cannot be read: {damage.store}"
    if it.overview.problem is not None:
        yield f"This may be incomplete: {it.overview.problem}"


def _why(it: PageContent) -> FactsBlock:
    return FactsBlock(tuple((fact.name, fact.text) for fact in it.answer.facts))


def _last_saved(it: PageContent) -> str:
    p = it.overview.progress
    return f"step {p.saved_step:,}, {ago(p.saved_time, it.now)}" if p.saved_step else "none"


def _interruptions(it: PageContent) -> str:
    found = it.overview.progress.interruptions
    return ", ".join(f"{n} {kind}" for kind, n in found.items()) or "none"


def _loss(it: PageContent) -> Iterator[Block]:
    yield loss_plot(it) or TextBlock("No loss was recorded.")
    yield from _notes(it.loss, "losses")


def _speed(it: PageContent) -> Iterator[Block]:
    yield speed_plot(it) or TextBlock("No step was recorded.")
    yield from _notes(it.speed, "records")
    if reached := speed_words(it.in_steps):
        yield FactsBlock((("speed", reached),))


def _evaluation(it: PageContent) -> Iterator[Block]:
    spec, found = it.overview.spec, it.overview.evaluations
    lines = metric_lines(found, spec.eval if spec is not None else None)
    yield FactsBlock((*lines, ("evaluations", state_words(found) or "none")))
    yield from evaluation_plots(it)


def _notes(curve: Curve, what: str) -> Iterator[TextBlock]:
    if curve.odd:
        note = f"{curve.odd:,} of {curve.records:,} {what} are not finite"
        yield TextBlock(f"{note}: the curve has gaps there.", is_alert=True)
    if len(curve.points) < curve.records:
        yield TextBlock(
            f"{curve.records:,} records, drawn as the first, lowest, highest and last value of "
            "each column of pixels."
        )


def _checkpoints(it: PageContent) -> Iterator[Block]:
    if not it.saved:
        yield TextBlock("No checkpoint was committed.")
        return
    kept = [one for one in it.saved if one.state in ("kept", "partial")]
    counts = f"{len(it.saved):,} committed"
    if it.damage.store is None:
        counts += f", {len(kept):,} kept"
    yield TextBlock(
        f"{counts}. Stored: compressed bytes of the checkpoint in the store; written: those that "
        "were new to the store; reuse: the share that the store already had."
    )
    others = [one for one in it.saved if one not in kept]
    shown = sorted([*kept[-MOST_ROWS:], *others[-MOST_ROWS:]], key=lambda one: one.time)
    head = ("step", "saved", "size", "stored", "written", "reuse", "durable after", "now")
    yield TableBlock(head, tuple(map(_row, reversed(shown))), words=("saved", "now"))
    if more := len(it.saved) - len(shown):
        yield TextBlock(f"And {more:,} older ones.")


def _row(one: SavedCheckpoint) -> Sequence[str]:
    return (
        f"{one.step:,}",
        exact(one.time),
        size(one.bytes) if one.bytes is not None else "",
        size(one.stored_bytes) if one.stored_bytes is not None else "",
        size(one.new_bytes) if one.new_bytes is not None else "",
        f"{one.reuse:.0%}" if one.reuse is not None else "",
        span_s(one.seconds) if one.seconds is not None else "",
        one.state,
    )


def span_s(seconds: float) -> str:
    """Format a duration that may be short."""
    return f"{seconds:.1f} s" if seconds < 120 else span(seconds)


def _findings(it: PageContent) -> Iterator[Block]:
    for bad in it.overview.bad:
        yield TextBlock(f"{bad.host} is listed as a bad node: {bad.problem}", is_alert=True)
    if not it.findings:
        yield TextBlock("No problem of a node or rank was recorded.")
        return
    rows = tuple((exact(f.time), f.what, f.where, f.text) for f in it.findings[-MOST_ROWS:])
    head = ("time", "what", "where", "text")
    yield TableBlock(head, tuple(reversed(rows)), words=head)
    if more := len(it.findings) - len(rows):
        yield TextBlock(f"And {more:,} older ones.")
