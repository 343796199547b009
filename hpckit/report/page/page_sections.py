"""The sections of a page, from the content about a run. Pure."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from hpckit.report.evaluation.evaluation_lines import metric_lines, state_words
from hpckit.report.page.attempt_timeline import attempts
from hpckit.report.page.cures_and_forks import cure_blocks, family_blocks
from hpckit.report.page.curve_plots import evaluation_plots, loss_plot, optimizer_plots, speed_plot
from hpckit.report.page.curve_values import Curve
from hpckit.report.page.page_content import PageContent, SavedCheckpoint
from hpckit.report.page.page_document import (
    Block,
    CommandsBlock,
    FactsBlock,
    PageDocument,
    PlotsBlock,
    Section,
    TableBlock,
    TextBlock,
)
from hpckit.report.page.render.plot_axes import label
from hpckit.report.page.time_spent import cost_blocks, data_blocks, hours_text, time_blocks
from hpckit.report.performance.speed_report import speed_words
from hpckit.report.remaining_time import remaining_s
from hpckit.report.run_state import RunState
from hpckit.text.quantities import ago, count, size, span, span_s

_FORKED = "forked from"
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
        if cures := tuple(cure_blocks(it)):
            yield Section("Spikes and cures", cures)
        yield Section("Speed", tuple(_speed(it)))
        if it.overview.evaluations:
            yield Section("Evaluation", tuple(_evaluation(it)))
        yield Section("Attempts", tuple(attempts(it)))
        yield Section("Where the time went", tuple(time_blocks(it)))
    if it.history.lives or it.cost.total_hours:
        yield Section("Cost", tuple(cost_blocks(it)))
    if it.history.lives:
        yield Section("Data", tuple(data_blocks(it)))
    if family := tuple(family_blocks(it)):
        yield Section("Forks", family)
    yield Section("Checkpoints", tuple(_checkpoints(it)))
    yield Section("Nodes and ranks", tuple(_findings(it)))


def key_figures(it: PageContent) -> list[tuple[str, str]]:
    """Return what most readers look for first."""
    p, history = it.overview.progress, it.history
    wall_s = history.finished - history.started
    left_s = remaining_s(it.overview)
    found = [
        ("state", it.overview.word),
        ("step", f"{p.step:,} of {p.steps:,}" if p.steps else f"{p.step:,}"),
        ("to go", span(left_s) if left_s is not None else ""),
        ("loss", f"{p.loss:.4g}" if p.loss is not None else ""),
        ("validation", p.validated or ""),
        ("speed", _mean_speed(it)),
        ("median step", f"{history.step_s:.3g} s" if it.in_steps.steps else ""),
        ("ETTR", _share(p.ettr)),
        ("training share", _share(p.training_share)),
        ("durable checkpoint", _last_saved(it)),
        ("wall time", span(wall_s) if wall_s > 0 else "none yet"),
        ("node-hours", hours_text(it.cost.total_hours) if it.cost.total_hours else ""),
        ("attempts", str(len(history.lives))),
        ("interruptions", _interruptions(it)),
        (_FORKED, str(it.overview.fork or "")),
    ]
    return [(name, text) for name, text in found if text]


def _mean_speed(it: PageContent) -> str:
    found = it.in_steps
    if found.tokens_per_s:
        return f"{label(found.tokens_per_s)} tokens/s"
    return f"{label(found.samples_per_s)} samples/s" if found.samples_per_s else ""


def _share(known: float | None) -> str:
    return f"{known:.1%}" if known is not None else ""


def exact(moment_s: float) -> str:
    """Format a time for readers in other time zones too."""
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(moment_s))


def _now(it: PageContent) -> Iterator[Block]:
    verdict = (it.overview.verdict or {}).get("reason")
    if it.overview.is_ended and verdict:
        yield TextBlock(f"{it.overview.word}: {verdict}")
    figures = key_figures(it)
    yield FactsBlock([one for one in figures if one[0] != _FORKED], are_key=True)
    yield from (TextBlock(words, is_alert=True) for words in alerts(it))
    rows = [("directory", str(it.overview.run.path))]
    yield FactsBlock([*rows, *(one for one in figures if one[0] == _FORKED)])


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
    if plot := loss_plot(it):
        yield plot
        if notes := " ".join(_signs(it)):
            yield TextBlock(notes)
    else:
        yield TextBlock(_no_loss(it))
    yield from _notes(it.loss, "losses")
    if plots := optimizer_plots(it):
        yield PlotsBlock(plots)


def _signs(it: PageContent) -> Iterator[str]:
    """Yield what lines of the plot of the loss stand for."""
    if it.smoothed.points:
        yield "Smoothed: the middle of the records around each step."
    if it.again.points:
        yield "Losses of steps that were repeated or lost are at the edge if they are beyond it."
    if it.history.interruptions:
        yield "Dashed: interruptions, with the generation that each ended."
    if it.history.spikes or it.history.skipped_updates:
        yield "Dotted: spikes, and updates that were left out."


def _no_loss(it: PageContent) -> str:
    spec = it.overview.spec
    if spec is not None and spec.command is not None:
        return "No loss was recorded: give it to client.step, as in client.step(step, loss=loss)."
    return "No loss was recorded: the training function has to call run.log(loss=...)."


def _speed(it: PageContent) -> Iterator[Block]:
    yield speed_plot(it) or TextBlock("No step was recorded.")
    yield from _notes(it.speed, "records")
    if reached := speed_words(it.in_steps):
        yield FactsBlock((("speed", reached),))


def _evaluation(it: PageContent) -> Iterator[Block]:
    spec, found = it.overview.spec, it.overview.evaluations
    lines = metric_lines(found, spec.eval if spec is not None else None)
    yield FactsBlock((*lines, ("evaluations", state_words(found) or "none")))
    if plots := evaluation_plots(it):
        yield PlotsBlock(plots)


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
    yield TableBlock(head, tuple(map(_row, reversed(shown))), words=("saved", "now")).filled
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


def _findings(it: PageContent) -> Iterator[Block]:
    for bad in it.overview.bad:
        yield TextBlock(f"{bad.host} is listed as a bad node: {bad.problem}", is_alert=True)
    if not it.findings:
        yield TextBlock("No problem of a node or rank was recorded.")
        return
    rows = tuple((exact(f.time), f.what, f.where, f.text) for f in it.findings[-MOST_ROWS:])
    head = ("time", "what", "where", "text")
    yield TableBlock(head, tuple(reversed(rows)), words=head, are_cards=True).filled
    if more := len(it.findings) - len(rows):
        yield TextBlock(f"And {more:,} older ones.")
