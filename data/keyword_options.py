"""Constructors whose keyword arguments are the fields of one frozen dataclass of options."""

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
SelfT = TypeVar("SelfT")
FirstT = TypeVar("FirstT")
OptionsT = TypeVar("OptionsT")


def takes_fields_of(
    options: Callable[P, OptionsT],
) -> Callable[
    [Callable[[SelfT, FirstT, OptionsT], None]], Callable[Concatenate[SelfT, FirstT, P], None]
]:
    """Return a decorator for `__init__(self, first, options)`, which is then called as
    `Class(first, field=value, ...)`: the fields are defined, documented and type-checked in the
    dataclass alone.

    The constructor raises TypeError for arguments that are not fields, as any function does.
    """

    def decorate(
        init: Callable[[SelfT, FirstT, OptionsT], None],
    ) -> Callable[Concatenate[SelfT, FirstT, P], None]:
        own = list(inspect.signature(init).parameters.values())[:2]
        fields = inspect.signature(options).parameters.values()
        signature = inspect.Signature([*own, *fields])

        @wraps(init)
        def with_fields(*given: Any, **keywords: Any) -> None:
            self, first, *fields = signature.bind(*given, **keywords).arguments.items()
            init(self[1], first[1], options(**dict(fields)))  # type: ignore[call-arg]

        with_fields.__signature__ = signature  # type: ignore[attr-defined]
        return with_fields

    return decorate
