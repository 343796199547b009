"""Elements of SVG. Pictures take the full width: horizontal positions are in percent, heights and
letters in pixels, so that letters have the same size on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hpckit.text.quantities import clean


def escaped(text: str) -> str:
    """Escape `text`, from any source, as content of a document."""
    return escape(clean(text).replace("\n", " "))


def percent(share: float) -> str:
    """Return a share as percent of the width; one that lies outside is put at the edge."""
    return f"{100 * min(1.0, max(0.0, share)):.2f}%"


def words(x: str, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text{named} x="{x}" y="{y:g}" text-anchor="{anchor}">{escaped(text)}</text>'


def line(x1: str, y1: float, x2: str, y2: float, kind: str, title: str = "") -> str:
    ends = f'x1="{x1}" y1="{y1:g}" x2="{x2}" y2="{y2:g}"'
    if not title:
        return f'<line class="{kind}" {ends}/>'
    return f'<line class="{kind}" {ends}><title>{escaped(title)}</title></line>'


def bar(x: str, y: float, wide: str, high: float, kind: str, title: str) -> str:
    place = f'x="{x}" y="{y:g}" width="{wide}" height="{high:g}"'
    return f'<rect class="{kind}" {place}><title>{escaped(title)}</title></rect>'


def picture(title: str, height: float, parts: Sequence[str]) -> str:
    """Return the whole picture."""
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escaped(title)}" '
    return "\n".join([f'{head}width="100%" height="{height:g}">', *parts, "</svg>"])
