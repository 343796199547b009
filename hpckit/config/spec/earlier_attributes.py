"""Attributes of the spec by the names that they had in earlier releases, for users' code."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar

from hpckit.config.renamed_keys import RENAMED


class EarlierAttributes:
    """Base class of groups with renamed keys: an earlier name is read as an attribute, too, and
    causes a `FutureWarning`. Type checkers know only the present names."""

    _group: ClassVar[str] = ""

    def __init_subclass__(cls, group: str | None = None, **options: Any) -> None:
        """Stores the path of the group that the class describes; "" is the spec itself."""
        super().__init_subclass__(**options)
        if group is not None:
            cls._group = group

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            path = f"{self._group}.{name}".removeprefix(".")
            for one in RENAMED:
                if path == one.old and one.old != one.new:
                    warnings.warn(f"{one.old} is {one.new} now", FutureWarning, stacklevel=2)
                    return one.earlier(getattr(self, one.new.rpartition(".")[2]))
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
