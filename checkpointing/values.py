"""Plain Python values as strict JSON; what JSON cannot say is tagged, so decode(encode(v)) == v.

Tags are one-key objects: {"$float": "nan"}, {"$tuple": [...]}, and for dicts whose keys are not all
ordinary strings {"$dict": [[key, value], ...]} (likewise "$ordered", "$counter").
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeAlias

from checkpointing.errors import DamagedError, FormatError

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_DICT_TAGS: dict[type, str] = {dict: "$dict", OrderedDict: "$ordered", Counter: "$counter"}


_SCALARS = frozenset((type(None), bool, int, float, str))


def all_scalar(values: Iterable[object]) -> bool:
    """Whether none of these is a container: told by their types, without a look at each, for there
    may be millions."""
    return _SCALARS.issuperset(map(type, values))


def encode(value: object, path: str) -> Json:
    """A JSON copy of `value`, independent of later changes to it.

    Raises:
        TypeError: something at `path` is no plain value. Types are compared exactly, because a
            subclass (numpy.float64, an enum, a named tuple) would come back as something else.
    """
    if value is None or type(value) in (bool, int, str):
        return value  # type: ignore[return-value]  # mypy does not narrow by type()
    if type(value) is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if type(value) is list:
        return _encode_all(value, path)
    if type(value) is tuple:
        return {"$tuple": _encode_all(value, path)}
    if isinstance(value, dict) and type(value) in _DICT_TAGS:
        return _encode_dict(value, path)
    raise TypeError(
        f"cannot save {type(value).__module__}.{type(value).__qualname__} at {path!r}: a state "
        "holds tensors, None, bool, int, float, str, lists, tuples and dicts of them; "
        "turn arrays into tensors and scalars into Python numbers, or give the object "
        "state_dict() and load_state_dict() and put it at the top level of the state"
    )


def _encode_all(values: Sequence[object], path: str) -> list[Json]:
    if _is_json(values):
        return list(values)  # type: ignore[arg-type]
    return [encode(v, f"{path}/{i}") for i, v in enumerate(values)]


def _is_json(values: Collection[object]) -> bool:
    """Whether JSON can say each of these scalars as it is; told as by `all_scalar`."""
    kinds = set(map(type, values))
    if float not in kinds:
        return kinds <= _SCALARS
    return kinds == {float} and all(map(math.isfinite, values))  # type: ignore[arg-type]


def _encode_dict(value: dict[Any, Any], path: str) -> Json:
    plain = type(value) is dict and all(type(k) is str and not k.startswith("$") for k in value)
    if plain:
        if _is_json(value.values()):
            return dict(value)
        return {k: encode(v, f"{path}/{k}") for k, v in value.items()}
    pairs: list[Json] = [
        [encode(k, f"{path} (key)"), encode(v, f"{path}/{k}")] for k, v in value.items()
    ]
    return {_DICT_TAGS[type(value)]: pairs}


def decode(value: Json) -> Any:
    """The value that `encode` was given.

    Raises:
        FormatError: a tag that this version does not know.
        DamagedError: `encode` makes no such thing.
    """
    try:
        return _decode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise DamagedError(f"no value that can be read: {error}") from error


def _decode(value: Json) -> Any:
    if isinstance(value, list):
        return list(value) if all_scalar(value) else [_decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        ((tag, inner),) = value.items()
        if tag.startswith("$"):
            return _decode_tag(tag, inner)
    if all_scalar(value.values()):
        return dict(value)
    return {k: _decode(v) for k, v in value.items()}


def _decode_tag(tag: str, inner: Json) -> Any:
    if tag == "$float" and inner in ("nan", "inf", "-inf"):
        return float(str(inner))
    if tag == "$tuple" and isinstance(inner, list):
        return tuple(_decode(v) for v in inner)
    kinds: dict[str, Callable[[dict[Any, Any]], Any]] = {t: k for k, t in _DICT_TAGS.items()}
    if tag in kinds and isinstance(inner, list):
        return kinds[tag](dict(_decode(pair) for pair in inner))
    raise FormatError(f"unknown kind of value {tag!r}: written by a newer version of hpckit?")
