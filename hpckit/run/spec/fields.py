"""Types of single values, and how a group of them is checked."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field, StringConstraints

GROUP = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

Count = Annotated[int, Field(ge=1)]
Natural = Annotated[int, Field(ge=0)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Text = Annotated[str, StringConstraints(min_length=1)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Degree = Annotated[int, Field(ge=-1)]
Positive = Annotated[float, Field(gt=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
RunName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Line = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$")]
TimeLimit = Annotated[str, StringConstraints(pattern=r"^(\d{1,3}-)?\d{1,2}:\d{2}:\d{2}$")]
Memory = Annotated[str, StringConstraints(pattern=r"^[1-9]\d*[KMGT]?$")]
Folder = Annotated[str, StringConstraints(pattern=r"^/[^\x00-\x1f\x7f]*$")]
Mount = Annotated[
    str, StringConstraints(pattern=r"^/[^:,\x00-\x1f\x7f]*(:/[^:,\x00-\x1f\x7f]*(:(ro|rw))?)?$")
]
Interfaces = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.,-]*$")]
Value = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$")]
EntryPoint = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
