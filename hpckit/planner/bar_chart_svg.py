"""Stacked horizontal bars as SVG, in light and dark mode, without other files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape

# Okabe and Ito's colours, which most people can tell apart; one reads on either background.
_COLOURS = ("#0072b2", "#56b4e9", "#009e73", "#e69f00", "#d55e00", "#cc79a7", "#8a8f98")
_STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.limit{stroke:#222}.grid{stroke:#ccc}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.limit{stroke:#ddd}.grid{stroke:#444}}"
)
_LEFT, _WIDTH, _RIGHT = 100, 520, 100
_TOP, _ROW, _BAR, _KEY = 26, 30, 20, 20
_KEYS = 4  # names in a line of the legend


def stacked_bars(
    bars: Mapping[str, Mapping[str, float]],
    words: Callable[[float], str],
    title: str,
    limit: tuple[float, str] | None = None,
) -> str:
    """Draw a bar for each of `bars`, with its parts by name, which all bars have in the same order.

    Args:
        words: formats a value for people.
        limit: a value that is marked by a line, and its name.
    """
    totals = {name: sum(parts.values()) for name, parts in bars.items()}
    most = max([*totals.values(), limit[0] if limit else 0.0]) or 1.0
    scale = _WIDTH / most
    names = list(next(iter(bars.values())))
    bottom = _TOP + _ROW * len(bars)
    height = bottom + _KEY * (-(-len(names) // _KEYS)) + 10
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{escape(title)}" '
        f'viewBox="0 0 {_LEFT + _WIDTH + _RIGHT} {height}">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style>",
    ]
    for row, (bar, parts) in enumerate(bars.items()):
        top = _TOP + row * _ROW
        lines.append(_text(_LEFT - 8, top + 14, bar, anchor="end"))
        at = float(_LEFT)
        for part, colour in zip(names, _COLOURS, strict=False):
            wide = parts[part] * scale
            what = escape(f"{bar}: {part} {words(parts[part])}")
            lines.append(
                f'<rect x="{at:.1f}" y="{top}" width="{wide:.1f}" height="{_BAR}" '
                f'fill="{colour}"><title>{what}</title></rect>'
            )
            at += wide
        lines.append(_text(at + 6, top + 14, words(totals[bar])))
    if limit is not None:
        at = _LEFT + limit[0] * scale
        lines.append(
            f'<line class="limit" x1="{at:.1f}" y1="{_TOP - 6}" x2="{at:.1f}" y2="{bottom}" '
            'stroke-dasharray="4 3"/>'
        )
        lines.append(_text(at, _TOP - 11, f"{limit[1]} {words(limit[0])}", anchor="middle"))
    for number, (name, colour) in enumerate(zip(names, _COLOURS, strict=False)):
        x = _LEFT + number % _KEYS * _WIDTH // _KEYS
        y = bottom + _KEY * (number // _KEYS) + 4
        lines.append(f'<rect x="{x}" y="{y}" width="11" height="11" fill="{colour}"/>')
        lines.append(_text(x + 16, y + 10, name))
    return "\n".join([*lines, "</svg>"])


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
