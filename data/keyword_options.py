"""Keyword arguments that users write: their names and types are checked when they are given.

A constructor takes the fields of one frozen dataclass of options as its keyword arguments.
"""

import difflib
import inspect
import numbers
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from data.errors import ArgumentError

P = ParamSpec("P")
ResultT = TypeVar("ResultT")
SelfT = TypeVar("SelfT")
FirstT = TypeVar("FirstT")
OptionsT = TypeVar("OptionsT")

_ELSEWHERE = {"batch_size": "global_batch", "maxcount": "max_samples", "maxsize": "max_bytes"}
"""Arguments of torch's DataLoader and webdataset's writer, and those here that are meant."""


def takes_fields_of(
    options: Callable[P, OptionsT],
) -> Callable[
    [Callable[[SelfT, FirstT, OptionsT], None]], Callable[Concatenate[SelfT, FirstT, P], None]
]:
    """Return a decorator for `__init__(self, first, options)`, which is then called as
    `Class(first, field=value, ...)`: the fields are defined, documented and type-checked in the
    dataclass alone.

    The constructor raises ArgumentError for arguments that are not fields, and for values of
    another type than `TYPES` and unions of these have.
    """

    def decorate(
        init: Callable[[SelfT, FirstT, OptionsT], None],
    ) -> Callable[Concatenate[SelfT, FirstT, P], None]:
        own = list(inspect.signature(init).parameters.values())[:2]
        fields = inspect.signature(options).parameters.values()
        signature = inspect.Signature([*own, *fields])
        name = init.__qualname__.partition(".")[0]

        @wraps(init)
        def with_fields(*given: Any, **keywords: Any) -> None:
            self, first, *fields = _bind(name, signature, given, keywords)
            init(self[1], first[1], options(**dict(fields)))  # type: ignore[call-arg]

        with_fields.__signature__ = signature  # type: ignore[attr-defined]
        return with_fields

    return decorate


def checks_arguments(function: Callable[P, ResultT]) -> Callable[P, ResultT]:
    """Return the function, which raises ArgumentError for an unknown keyword, with the one that may
    be meant, and for values of another type than `TYPES` and unions of these have."""
    signature, name = _signature(function), function.__qualname__.removesuffix(".__init__")

    @wraps(function)
    def checked(*given: P.args, **keywords: P.kwargs) -> ResultT:
        _bind(name, signature, given, keywords)
        return function(*given, **keywords)

    return checked


def check_takes(name: str, function: Callable[..., Any], arguments: Sequence[str]) -> None:
    """Check that the user's function can be called with these arguments, as far as its signature is
    known. Raises ArgumentError."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of some functions in C
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        call = f"{name}({', '.join(arguments)})"
        raise ArgumentError(
            f"{name} is called as {call}, but {function!r:.100}: {error}"
        ) from error


TYPES: Mapping[Any, tuple[Any, str]] = {
    int: (numbers.Integral, "a whole number"),
    float: (numbers.Real, "a number"),
    bool: (bool, "True or False"),
    str: (str, "text"),
    Path: (os.PathLike, "a path"),
    type(None): (type(None), "None"),
    Callable: (Callable, "a function"),
}
"""For each annotation that is checked, or its origin: the class of its values, and what they are
called."""


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return its signature. Annotations stay text, which is not checked, if one of them names what
    only type checkers import."""
    try:
        return inspect.signature(function, eval_str=True)
    except NameError:
        return inspect.signature(function)


def _bind(
    name: str, signature: inspect.Signature, given: Sequence[Any], keywords: Mapping[str, Any]
) -> list[tuple[str, Any]]:
    parameters = signature.parameters
    for key in keywords:
        if key not in parameters:
            names = [known for known in parameters if known != "self"]
            near = difflib.get_close_matches(key, names, n=1, cutoff=0.65)
            near = [known for known in names if known == _ELSEWHERE.get(key)] or near
            hint = f"; did you mean {near[0]}?" if near else f"; they are {', '.join(names)}"
            raise ArgumentError(f"{name}: no argument is named {key}{hint}")
    bound = list(signature.bind(*given, **keywords).arguments.items())
    for key, value in bound:
        wanted = _wanted(parameters[key].annotation)
        if wanted and not any(_fits(value, kind) for kind in wanted):
            described = " or ".join(TYPES[kind][1] for kind in wanted)
            raise ArgumentError(f"{name}: {key} must be {described}, got {value!r:.100}")
    return bound


@lru_cache(maxsize=256)
def _wanted(annotation: Any) -> tuple[Any, ...]:
    """Return the keys of `TYPES` that a value may have; empty: any, as one of them is none."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        parts = [_wanted(part) for part in typing.get_args(annotation)]
        return tuple(kind for part in parts for kind in part) if all(parts) else ()
    kind = typing.get_origin(annotation) or annotation
    return (kind,) if kind in TYPES else ()


def _fits(value: Any, kind: Any) -> bool:
    is_flag = isinstance(value, bool) and kind in (int, float)
    return isinstance(value, TYPES[kind][0]) and not is_flag
