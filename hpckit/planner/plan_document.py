"""Writes a plan as Markdown with pictures beside it, or as one HTML page that contains them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from hpckit.planner.bar_chart_svg import stacked_bars
from hpckit.planner.plan_text import facts, memory_table, problems, seconds, time_table
from hpckit.planner.run_estimate import RunEstimate
from hpckit.text.quantities import size

KINDS = (".md", ".html")
_STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff; }
table { border-collapse: collapse; margin: 1rem 0; }
th, td { text-align: right; padding: .2rem .8rem; border-bottom: 1px solid #ccc; }
th:first-child, td:first-child { text-align: left; }
dl { display: grid; grid-template-columns: 8rem auto; gap: .3rem; }
dt { font-weight: 600; } dd { margin: 0; }
.problem { border-left: 4px solid #d55e00; padding-left: .8rem; }
svg { width: 100%; height: auto; }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #1b1d20; } th, td { border-color: #444; }
}
"""
_MEMORY, _TIME = "Memory of a GPU", "Time of a step"


def write(plan: RunEstimate, name: str, path: Path) -> None:
    """Write the document in the format of the ending of `path`, one of `KINDS`; its folder is
    created.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".html":
        path.write_text(page(plan, name), encoding="utf-8")
        return
    drawn = dict(pictures(plan))
    links = {what: f"{path.stem}-{what.split()[0].lower()}.svg" for what in drawn}
    for what, picture in drawn.items():
        path.with_name(links[what]).write_text(picture, encoding="utf-8")
    path.write_text(markdown(plan, name, links), encoding="utf-8")


def pictures(plan: RunEstimate) -> Iterator[tuple[str, str]]:
    """Return SVG pictures by their titles."""
    bars = {at: memory.parts() for at, memory in plan.footprint.moments.items()}
    bars["recomputed"] = plan.recomputed.peak.parts()
    yield _MEMORY, stacked_bars(bars, size, _MEMORY, (plan.room, "room"))
    if plan.speed is not None:
        yield _TIME, stacked_bars({"step": plan.speed.step.parts()}, seconds, _TIME)


def page(plan: RunEstimate, name: str) -> str:
    """Return an HTML page without other files."""
    lines = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Plan of {escape(name)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>Plan of {escape(name)}</h1>",
        *(f'<p class="problem">{escape(text)}</p>' for text in problems(plan)),
        "<dl>",
        *(f"<dt>{escape(key)}</dt><dd>{escape(text)}</dd>" for key, text in facts(plan)),
        "</dl>",
    ]
    drawn, tables = dict(pictures(plan)), _tables(plan)
    for what, (head, rows) in tables.items():
        lines += [f"<h2>{what}</h2>", drawn.get(what, ""), "<table><thead>", _row("th", head)]
        lines += ["</thead><tbody>", *(_row("td", row) for row in rows), "</tbody></table>"]
    return "\n".join([*lines, "</body></html>"]) + "\n"


def markdown(plan: RunEstimate, name: str, links: dict[str, str]) -> str:
    """Return the plan as Markdown. `links`: paths of the pictures by their titles."""
    lines = [f"# Plan of {name}", ""]
    lines += [line for text in problems(plan) for line in (f"> **{text}**", "")]
    lines += [f"- **{key}**: {text}" for key, text in facts(plan)]
    for what, (head, rows) in _tables(plan).items():
        lines += ["", f"## {what}", ""]
        lines += [f"![{what}]({links[what]})", ""] if what in links else []
        lines += [_bar(head), _bar(["---", *["---:"] * (len(head) - 1)]), *map(_bar, rows)]
    return "\n".join(lines) + "\n"


def _tables(plan: RunEstimate) -> dict[str, tuple[list[str], list[list[str]]]]:
    return {_MEMORY: memory_table(plan), _TIME: time_table(plan)}


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _bar(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
