"""Stacked bars as a picture in PNG, for Word, which has no charts of its own here."""

from __future__ import annotations

from io import BytesIO

from PIL import Image, ImageDraw, ImageFont

from hpckit.report.page.office.chart_colours import colour
from hpckit.report.page.office.printable_sections import one_line
from hpckit.report.page.page_document import BarsBlock
from hpckit.report.page.render.bars_svg import longest
from hpckit.report.page.render.plot_axes import label

_WIDE, _LETTERS = 1600, 30  # pixels; the picture is shown on 16 cm, where letters have 8.5 points
_NAME, _BAR, _GAP = 40, 36, 22
_TOP, _KEY = 46, 46
_INK, _LIMIT = (29, 33, 37), (179, 38, 30)


def draw_png(block: BarsBlock) -> bytes:
    """Draw the bars with a legend."""
    font = ImageFont.load_default(size=_LETTERS)
    most, row = longest(block), _NAME + _BAR + _GAP
    keys = _key_lines(block, font)
    bottom = _TOP + row * len(block.bars)
    image = Image.new("RGB", (_WIDE, bottom + _KEY * len(keys)), "white")
    draw = ImageDraw.Draw(image)
    for number, (name, values) in enumerate(block.bars):
        top, at = _TOP + number * row, 0.0
        total = f"{one_line(name)}: {label(sum(values))} {block.unit}"
        draw.text((0, top), total, _INK, font)
        for part, value in enumerate(values):
            ends = (at / most * _WIDE, (at + value) / most * _WIDE)
            if ends[1] - ends[0] >= 1:
                draw.rectangle(
                    (ends[0], top + _NAME, ends[1] - 1, top + _NAME + _BAR), colour(part)
                )
            at += value
    if block.limit is not None:
        name, value = block.limit
        x = min(_WIDE - 3, value / most * _WIDE)
        draw.line((x, _TOP - 6, x, bottom), _LIMIT, 3)
        anchor = "ra" if x > _WIDE / 2 else "la"
        text = f"{one_line(name)}: {label(value)} {block.unit}"
        draw.text((x, 0), text, _LIMIT, font, anchor)
    for line, names in enumerate(keys):
        y, x = bottom + line * _KEY, 0.0
        for number, name, wide in names:
            draw.rectangle((x, y + 6, x + 24, y + 30), colour(number))
            draw.text((x + 34, y), name, _INK, font)
            x += wide
    found = BytesIO()
    image.save(found, "PNG", dpi=(254, 254))
    return found.getvalue()


def _key_lines(
    block: BarsBlock, font: ImageFont.FreeTypeFont | ImageFont.ImageFont
) -> list[list[tuple[int, str, float]]]:
    """Return the lines of the legend: of each entry the number, the name and the width."""
    lines: list[list[tuple[int, str, float]]] = [[]]
    left = float(_WIDE)
    for number, part in enumerate(block.parts):
        name = one_line(part)
        wide = font.getlength(name) + 70
        if wide > left and lines[-1]:
            lines.append([])
            left = float(_WIDE)
        lines[-1].append((number, name, wide))
        left -= wide
    return lines
