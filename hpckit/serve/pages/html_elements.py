"""HTML elements. Every text that is not `Html` already is escaped. Pure."""

from __future__ import annotations

from hpckit.report.page.render.svg_elements import escaped

_VOID = frozenset(("input", "meta", "link", "br"))


class Html(str):
    """Text that is HTML, as opposed to text that has to be escaped."""

    __slots__ = ()


Content = str | None
"""What an element contains: `Html` as it is, other text escaped, None: nothing."""


def as_html(content: Content) -> Html:
    """Return the content, escaped if it is not HTML."""
    if content is None:
        return Html("")
    return content if isinstance(content, Html) else Html(escaped(content))


def tag(name: str, /, *contents: Content, **attributes: str | bool | None) -> Html:
    """Return an element.

    Args:
        attributes: `_` stands for `-`, and one at the end is left out, as in `class_`. True:
            without a value; None and False: left out.
    """
    made = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escaped(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in _VOID:
        return Html(f"<{name}{made}>")
    return Html(f"<{name}{made}>{''.join(map(as_html, contents))}</{name}>")


def joined(*contents: Content, by: str = "") -> Html:
    """Return the contents one after the other, with `by` between them."""
    return Html(as_html(by).join(map(as_html, contents)))


def link(to: str, *contents: Content) -> Html:
    """Return a link to the page `to`, whose address is one of ours."""
    return tag("a", *contents, href=to)


def note(*contents: Content) -> Html:
    """Return a paragraph in small letters."""
    return tag("p", *contents, class_="note")


def alert(*contents: Content) -> Html:
    """Return a paragraph about something missing or wrong."""
    return tag("p", *contents, class_="alert")


def preformatted(text: str) -> Html:
    """Return lines as they are."""
    lines = (escaped(line) for line in text.split("\n"))
    return Html(f'<pre tabindex="0">{chr(10).join(lines)}</pre>')


def facts(*rows: tuple[str, Content], are_key: bool = False) -> Html:
    """Return named lines; key ones as boxes."""
    pairs = [joined(tag("dt", name), tag("dd", text)) for name, text in rows]
    if are_key:
        return tag("dl", *(tag("div", pair) for pair in pairs), class_="key")
    return tag("dl", *pairs)


def table(head: tuple[str, ...], rows: list[tuple[Content, ...]], numbers: frozenset[str]) -> Html:
    """Return a table that becomes a list of cards on a narrow screen.

    Args:
        numbers: the columns whose cells are numbers.
    """
    kinds = [None if name in numbers else "word" for name in head]
    headings = [tag("th", name, class_=kind) for name, kind in zip(head, kinds, strict=True)]
    body = [tag("tr", *(_cell(*one) for one in zip(head, kinds, row, strict=True))) for row in rows]
    whole = tag("table", tag("thead", tag("tr", *headings)), tag("tbody", *body))
    return tag("div", whole, class_="wide rows")


def _cell(name: str, kind: str | None, content: Content) -> Html:
    if not content:
        return tag("td", class_=kind)
    return tag("td", tag("div", content), class_=kind, data_name=name)
