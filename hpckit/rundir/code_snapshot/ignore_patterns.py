"""The patterns of `.hpckitignore`, which name what is no part of the code snapshot. Their syntax is
that of gitignore, as its manual page has it, for one file at the top of the project."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

NAME = ".hpckitignore"


_LEADING_STARS = re.compile(r"([^*?\[\\]*)\*\*+(/|$)")
"""`**` after a part without wildcards: git compares that part first and takes the rest as a pattern
of its own, so that `build**/x` matches as `**/x` does behind `build`."""


class _Pattern(NamedTuple):
    regex: re.Pattern[str]
    is_negative: bool
    """Whether names that match are not ignored after all."""
    is_for_folders: bool


class IgnorePatterns:
    """Decides by the last pattern that matches. Pure."""

    def __init__(self, lines: Iterable[str]) -> None:
        parsed = (_parse(line) for line in lines)
        self._patterns = [one for one in parsed if one is not None]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def matches(self, name: str, is_folder: bool) -> bool:
        """Returns whether the file or folder is ignored. The caller does not ask about what is in
        an ignored folder: that is ignored, too.

        Args:
            name: relative to the project, with slashes.
        """
        for one in reversed(self._patterns):
            if (is_folder or not one.is_for_folders) and one.regex.fullmatch(name):
                return not one.is_negative
        return False


def read_patterns(root: Path) -> IgnorePatterns:
    """Returns the patterns of the project's `.hpckitignore`; none if it does not exist.

    Raises:
        OSError: it cannot be read.
    """
    try:
        text = (root / NAME).read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        text = ""
    return IgnorePatterns(text.splitlines())


def _parse(line: str) -> _Pattern | None:
    text = re.sub(r"(?<!\\) +$", "", line.rstrip("\r\n"))
    if not text or text.startswith("#"):
        return None
    is_negative = text.startswith("!")
    text = text.removeprefix("!")
    is_for_folders = text.endswith("/")
    text = text.removesuffix("/")
    if not text:
        return None
    is_anchored = "/" in text
    try:
        regex = re.compile(_regex(text.removeprefix("/"), is_anchored), re.DOTALL)
    except re.error:  # git ignores a pattern that it cannot parse, such as [z-a] and [a
        return None
    return _Pattern(regex, is_negative, is_for_folders)


def _regex(text: str, is_anchored: bool) -> str:
    """Returns the regular expression of a pattern. One without a slash matches in any folder."""
    start = "" if is_anchored else "(?:.*/)?"
    if is_anchored and (found := _LEADING_STARS.match(text)):
        start = re.escape(found[1]) + ("(?:.*/)?" if found[2] else ".*")
        text = text[found.end() :]
    end = ""
    if text.endswith("/**"):
        end, text = "/.+", text[:-3]
    return start + "".join(_tokens(text)) + end


def _tokens(text: str) -> Iterable[str]:
    """Yields the regular expressions of the parts of a pattern. Raises re.error."""
    place = 0
    while place < len(text):
        if text.startswith("/**/", place):
            yield "/(?:.*/)?"
            place += 4
        elif (char := text[place]) == "*":
            yield "[^/]*"
            place += 1
        elif char == "?":
            yield "[^/]"
            place += 1
        elif char == "[":
            if (found := re.match(r"\[([!^]?)(\]?[^\]]*)\]", text[place:])) is None:
                raise re.error("a [ has no ]", text, place)
            inner = found[2].replace("\\", "\\\\").replace("[", "\\[")
            inner = "\\" + inner if inner.startswith(("]", "^")) else inner
            yield f"(?!/)[{'^' if found[1] else ''}{inner}]"
            place += found.end()
        elif char == "\\":
            if place + 1 == len(text):
                raise re.error("nothing follows the last \\", text, place)
            yield re.escape(text[place + 1])
            place += 2
        else:
            yield re.escape(char)
            place += 1
