"""A report on the speed of a run: how its time was spent, what limits it, and advice; as lines for
people and as a record for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.markup import escape

from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import SpecError, read_spec
from hpckit.report.history import History
from hpckit.report.performance.bottleneck import advice, bottleneck, describe_bottleneck
from hpckit.report.performance.measured_step_time import MeasuredStepTime, step_time
from hpckit.report.progress import describe_straggler
from hpckit.report.straggler_summary import (
    describe_eviction,
    describe_result,
    describe_summary,
    summary_of,
)
from hpckit.rundir.directory import RunDir
from hpckit.text.quantities import count

_GIB = 2**30


def last_spec(run: RunDir) -> RunSpec | None:
    """Return the spec of the newest submission; None: it is of another version, so nothing is said
    about it."""
    try:
        return read_spec(run.spec(run.submission_numbers()[-1]))
    except SpecError:
        return None


def time_went(history: History, in_steps: MeasuredStepTime) -> dict[str, float]:
    """Return seconds: of all time; of kept steps; before the first of them; lost to interruptions,
    and restores among these; and of the rest, most of it the last save."""
    total = history.finished - history.started
    start = history.lives[0].started - history.started if history.lives else 0.0
    lost = sum(gap.lost_s for gap in history.interruptions)
    return {
        "all": total,
        "steps": in_steps.seconds,
        "start": start,
        "lost": lost,
        "restore": sum(life.restore_s for life in history.lives[1:]),
        "else": max(0.0, total - in_steps.seconds - start - lost),
    }


def speed_record(history: History, spec: RunSpec | None) -> dict[str, Any]:
    """Return the report for programs; times are seconds."""
    it = step_time(history)
    loop = bottleneck(it)
    return {
        "time": time_went(history, it),
        "in_steps": it.record(),
        "bottleneck": loop,
        "advice": advice(it, loop, spec),
    }


def speed_facts(history: History, spec: RunSpec | None) -> Iterator[tuple[str, str]]:
    """Return name and text of each line."""
    it = step_time(history)
    yield "time", _time(history, it)
    if it.parts:
        yield "step time", _parts(it)
    if it.exposed is not None:
        yield "collectives", collectives_words(it)
    if speed := speed_words(it):
        yield "speed", speed
    for event in history.slow_ranks:
        yield "straggler", f"{escape(describe_straggler(event))}, from step {event.step} on"
    if (costs := summary_of(history.straggler_costs)) is not None:
        yield "stragglers", escape(describe_summary(costs))
    for evicted in history.evictions:
        yield "evicted", escape(describe_eviction(evicted))
    for result in history.eviction_results:
        yield "eviction", escape(describe_result(result))
    if it.steps:
        loop = bottleneck(it)
        yield "bottleneck", escape(describe_bottleneck(it, loop, spec))
        for line in advice(it, loop, spec):
            yield "suggestion", escape(line)


def _time(history: History, it: MeasuredStepTime) -> str:
    went, times = time_went(history, it), len(history.interruptions)
    restoring = f" ({went['restore']:.1f} s of them restoring)" if times else ""
    return (
        f"{went['all']:.0f} s in total: {went['steps']:.0f} s in kept steps, "
        f"{went['start']:.0f} s before the first step, "
        f"{went['lost']:.1f} s lost to {count(times, 'interruption')}{restoring}, "
        f"{went['else']:.0f} s for everything else"
    )


def _parts(it: MeasuredStepTime) -> str:
    """Return the parts, the largest first."""
    shares = {part: it.share(part) for part in it.parts}
    shown = sorted((part for part in shares if shares[part] >= 0.005), key=lambda p: -shares[p])
    each = ", ".join(f"{part.replace('_', ' ')} {shares[part]:.0%}" for part in shown)
    return f"{it.seconds / it.steps:.3f} s: {each}"


def collectives_words(it: MeasuredStepTime) -> str:
    """Describe the collectives of a run whose steps were traced."""
    return (
        f"{it.exposed:.0%} of the step time is exposed communication, within the parts above "
        f"({count(it.traced, 'step')} traced)"
    )


def speed_words(it: MeasuredStepTime) -> str:
    """Describe the speed that was reached; empty if nothing is known."""
    found = []
    if it.tokens_per_s:
        found.append(f"{it.tokens_per_s:,.0f} tok/s")
    if it.samples_per_s:
        found.append(f"{it.samples_per_s:,.0f} samples/s")
    if it.mfu is not None:
        found.append(f"MFU {it.mfu:.1%}")
    if it.peak_bytes is not None:
        what = "GPU memory" if it.is_gpu else "memory per process"
        found.append(f"peak {what} {it.peak_bytes / _GIB:.1f} GiB")
    return ", ".join(found)
