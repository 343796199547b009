"""The pages of a run's checkpoints: the list, two of them compared, and what a prune would remove.
Pure."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from checkpointing.store.catalog import CheckpointInfo
from checkpointing.store.deletion.prune_preview import is_changed
from checkpointing.store.inspection.checkpoint_diff import TensorDiff, ValueDiff
from hpckit.report.checkpoints.prune_summary import describe_plan, fate_of
from hpckit.report.checkpoints.tensor_changes import (
    change_cells,
    count_kinds,
    describe_kind,
    interest,
    short,
)
from hpckit.serve.checkpoint_reader import (
    CheckpointDifference,
    RetentionPreview,
    StoreListing,
)
from hpckit.serve.pages.html_elements import (
    Content,
    Html,
    alert,
    joined,
    note,
    preformatted,
    table,
    tag,
)
from hpckit.serve.pages.page_shell import PageFrame, breadcrumbs, page
from hpckit.serve.run_reader import ReadRun
from hpckit.text.quantities import ago, count, size

_MOST = 100
"""Tensors, or values, of a comparison that are shown."""
_USABLE = ("committed", "partial")


def checkpoints_page(
    frame: PageFrame,
    read: ReadRun,
    listing: StoreListing | None,
    preview: RetentionPreview | None,
    problems: Sequence[str],
    keep: Sequence[str],
    now: float,
) -> str:
    """Return the page with the list, and what a prune with the policies `keep` would remove.

    Args:
        listing: None: the store cannot be read.
        preview: None: it could not be made.
        problems: why not, a line each.
        keep: policies as `--keep` has them.
    """
    parts: list[Content] = [breadcrumbs(frame, read.key, read.name, "checkpoints.html")]
    parts += [alert(problem) for problem in problems]
    if listing is not None:
        parts += _listing(listing, now)
    if listing is not None and listing.infos:
        parts += _compare(listing) if frame.is_served else []
        parts.append(tag("h2", "What a prune would remove"))
        parts += _keep_form(keep) if frame.is_served else []
        parts += _preview(preview) if preview is not None else []
        parts += _waiting(read)
        words = [f"--keep {shlex.quote(text)}" for text in keep]
        place = shlex.quote(str(read.served.run.path))
        parts.append(preformatted(f"hpckit ckpt prune {place} {' '.join(words)} --dry-run"))
    return page(frame, read.name, joined(*parts), now, is_live=False)


def _listing(listing: StoreListing, now: float) -> list[Html]:
    parts = [tag("h2", "Checkpoints"), note(listing.url), *map(alert, listing.problems)]
    if not listing.infos:
        return [*parts, note("There is none.")]
    head = ("step", "id", "saved", "state", "stored", "raw", "metrics", "marks")
    rows = [_row(info, listing, now) for info in reversed(listing.infos)]
    return [*parts, table(head, rows, frozenset(("step", "stored", "raw")))]


def _row(info: CheckpointInfo, listing: StoreListing, now: float) -> tuple[Content, ...]:
    is_usable = info.state in _USABLE
    mood = "good" if info.state == "committed" else "idle" if is_usable else "bad"
    mood = "idle" if info.state == "incomplete" else mood
    problem = tag("span", info.problem, class_="note") if info.problem else None
    labels = [*listing.labels.get(info.id, ()), *(["certified"] if info.certified else [])]
    return (
        f"{info.step:,}",
        tag("code", info.id),
        ago(info.created, now),
        joined(tag("span", info.state, class_=f"state {mood}"), problem),
        size(info.bytes) if info.state not in ("damaged", "unreadable") else "",
        size(info.raw_bytes) if info.raw_bytes else "",
        ", ".join(f"{name} {value:.4g}" for name, value in sorted(info.metrics.items())),
        ", ".join(labels),
    )


def _compare(listing: StoreListing) -> list[Html]:
    usable = [info for info in reversed(listing.infos) if info.state in _USABLE]
    if len(usable) < 2:
        return []
    fields = [_choice(name, usable, at) for name, at in (("a", 1), ("b", 0))]
    button = tag("button", "Compare", type="submit")
    form = tag("form", *fields, button, method="get", action="diff.html")
    return [tag("h2", "Compare two"), form]


def _choice(name: str, infos: Sequence[CheckpointInfo], at: int) -> Html:
    options = [
        tag("option", f"step {info.step:,} ({info.id})", value=info.id, selected=number == at)
        for number, info in enumerate(infos)
    ]
    return tag("label", name.upper(), tag("select", *options, name=name))


def _keep_form(keep: Sequence[str]) -> list[Html]:
    field = tag(
        "input",
        name="keep",
        value=" ".join(keep),
        size="34",
        spellcheck="false",
        autocapitalize="off",
    )
    label = tag("label", "keep, as last=3 every=1000 best=loss", field, class_="wider")
    button = tag("button", "Preview", type="submit")
    return [tag("form", label, button, method="get", action="checkpoints.html")]


def _preview(preview: RetentionPreview) -> list[Html]:
    plan = preview.plan
    head = ("step", "id", "fate", "frees", "why")
    rows: list[tuple[Content, ...]] = []
    for choice in plan.choices:
        mood = "bad" if choice.decision.goes else "idle" if choice.drops else "good"
        frees = plan.alone.get(choice.found.stored.save, 0)
        rows.append(
            (
                f"{choice.step:,}",
                tag("code", choice.id),
                tag("span", fate_of(choice), class_=mood),
                size(frees) if is_changed(choice) else "",
                "; ".join(choice.decision.reasons),
            )
        )
    problems = [
        f"{id_} is damaged, and therefore neither counted nor removed: {problem}"
        for id_, problem in preview.damaged.items()
    ]
    problems += [
        f"run {save.run}, step {save.step} ({save.id}) is damaged: {problem}; what it needs is "
        "unknown, so that less than stated is freed"
        for save, problem in plan.problems.items()
    ]
    return [
        *map(alert, problems),
        tag("p", describe_plan(plan)),
        table(head, rows, frozenset(("step", "frees"))),
    ]


def _waiting(read: ReadRun) -> list[Html]:
    """Return what a run of evaluations keeps besides."""
    spec = read.overview.spec if read.overview is not None else None
    if spec is None or spec.eval.every is None:
        return []
    words = f"The run also keeps those that wait for an evaluation, for {spec.eval.keep_hours:g} h."
    return [note(words)]


def difference_page(
    frame: PageFrame, read: ReadRun, found: CheckpointDifference | None, problem: str, now: float
) -> str:
    """Return the page of two checkpoints that are compared.

    Args:
        found: None: they could not be, and `problem` says why.
    """
    ways = breadcrumbs(frame, read.key, read.name, "checkpoints.html")
    title = tag("h2", "Two checkpoints compared")
    if found is None:
        return page(frame, read.name, joined(ways, title, alert(problem)), now, is_live=False)
    place = shlex.quote(str(read.served.run.path))
    parts = [
        ways,
        title,
        note(f"A: step {found.a.step:,} ({found.a.id})"),
        note(f"B: step {found.b.step:,} ({found.b.id})"),
        tag("p", count_kinds(found.tensors)),
    ]
    if not found.is_measured:
        parts.append(
            note(
                f"By how much is not said here, as {size(found.comparison.bytes)} would have to be "
                "read. This says it:"
            )
        )
        parts.append(preformatted(f"hpckit ckpt diff {place} {found.a.id} {found.b.id}"))
    parts += _tensors(found.tensors)
    parts += _values(found.comparison.values)
    return page(frame, read.name, joined(*parts), now, is_live=False)


def _tensors(tensors: Sequence[TensorDiff]) -> list[Html]:
    shown = sorted((one for one in tensors if one.kind != "same"), key=interest)
    if not shown:
        return []
    numbers = ("size", "chunks", "elements", "max |B-A|", "rel. L2")
    rows: list[tuple[Content, ...]] = []
    for one in shown[:_MOST]:
        spec = one.b or one.a
        cells = change_cells(one.change) if one.change else ("", "", "", "")
        problem = tag("span", one.problem, class_="note bad") if one.problem else None
        what = joined(describe_kind(one), problem)
        rows.append((tag("code", one.name), what, size(spec.bytes) if spec else "", *cells))
    parts = [table(("tensor", "change", *numbers), rows, frozenset(numbers))]
    if len(shown) > _MOST:
        parts.append(note(f"and {count(len(shown) - _MOST, 'more tensor')}"))
    return parts


def _values(values: Sequence[ValueDiff]) -> list[Html]:
    if not values:
        return []
    shown = [value for value in values if value.kind != "same"]
    same = len(values) - len(shown)
    summary = f"{count(len(values), 'value')}: {same:,} unchanged, {len(shown):,} changed"
    rows: list[tuple[Content, ...]] = [
        (
            tag("code", one.name),
            "" if one.kind == "only_b" else short(one.a),
            "" if one.kind == "only_a" else short(one.b),
        )
        for one in shown[:_MOST]
    ]
    parts = [tag("p", summary)]
    parts += [table(("value", "A", "B"), rows, frozenset())] if rows else []
    if len(shown) > _MOST:
        parts.append(note(f"and {count(len(shown) - _MOST, 'more value')}"))
    return parts
