"""Types of single values, and how a group of them is checked."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

GROUP = ConfigDict(
    extra="forbid",
    strict=True,
    allow_inf_nan=False,
    defer_build=True,  # most groups are only checked as parts of a whole spec
)
FORMS: dict[str, str] = {}
"""A description of each pattern below, for the message about a value that does not match it."""
HIDDEN: set[str] = set()
"""Patterns whose values the message does not show: a secret may have been typed there."""


def _like(pattern: str, words: str) -> StringConstraints:
    FORMS[pattern] = words
    return StringConstraints(pattern=pattern)


Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Text = Annotated[str, StringConstraints(min_length=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Degree = Annotated[int, Field(ge=-1)]
Weight = Annotated[float, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
RunName = Annotated[
    str,
    _like(
        r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
        "1 to 64 letters, digits and _ . - that begin with a letter or digit",
    ),
]
Line = Annotated[str, _like(r"^[^\x00-\x1f\x7f]+$", "one line of text")]
TimeLimit = Annotated[
    str,
    _like(
        r"^(\d{1,3}-)?\d{1,2}:[0-5]\d:[0-5]\d$",
        'hours:minutes:seconds or days-hours:minutes:seconds, as "2-00:00:00"',
    ),
]
Memory = Annotated[
    str, _like(r"^[1-9]\d*[KMGT]?$", "a whole number, then K, M, G or T or nothing, as 64G")
]
Folder = Annotated[str, _like(r"^/[^\x00-\x1f\x7f]*$", "an absolute path")]
Mount = Annotated[
    str,
    _like(
        r"^/[^:,\x00-\x1f\x7f]*(:/[^:,\x00-\x1f\x7f]*(:(ro|rw))?)?$",
        "/source, /source:/target or /source:/target:ro",
    ),
]
Address = Annotated[
    str,
    _like(
        r"^[A-Za-z0-9_][A-Za-z0-9_.+=-]*(@[A-Za-z0-9][A-Za-z0-9.-]*)?$",
        "an e-mail address, as name@example.org",
    ),
]
_ENV_NAME = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
EnvName = Annotated[str, _like(_ENV_NAME, "the name of an environment variable, and not its value")]
HIDDEN.add(_ENV_NAME)
Interfaces = Annotated[
    str, _like(r"^[A-Za-z0-9][A-Za-z0-9_.,-]*$", "names of network interfaces, as ib0,ib1")
]
Value = Annotated[str, _like(r"^[^\x00]*$", "text without a zero byte")]
Words = Annotated[tuple[Value, ...], Field(min_length=1)]
EntryPoint = Annotated[
    str, _like(r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$", "module:function, as mycode.train:main")
]
