"""Encodes plain Python values as strict JSON. What JSON cannot express is tagged, so that
decode(encode(v)) == v.

Tags are one-key objects: {"$float": "nan"}, {"$tuple": [...]}, and, for dicts other than JSON
objects with sorted keys, {"$dict": [[key, value], ...]}. FORMAT.md lists all tags.
"""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from itertools import chain, pairwise
from typing import Any, TypeAlias

from checkpointing.errors import DamagedError, FormatError
from checkpointing.format.values import registered_classes, tagged_types

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_DICT_TAGS: dict[type, str] = {dict: "$dict", OrderedDict: "$ordered", Counter: "$counter"}
_DICTS = {tag: kind for kind, tag in _DICT_TAGS.items()}
_GROUP_TAGS: dict[type, str] = {tuple: "$tuple", set: "$set", frozenset: "$frozenset"}
_GROUPS: dict[str, Callable[..., Any]] = {tag: kind for kind, tag in _GROUP_TAGS.items()}
_RECORD = "$record"
_DIGITS, _BITS = 4300, 14_284
"""The most digits of an integer that Python reads and writes, and the bits of the smallest integer
with more digits."""


_PLAIN_SCALARS = frozenset((type(None), bool, str))
SCALARS = _PLAIN_SCALARS | {int, float}
_PLAIN_INT = 1 << 63


def all_scalar(values: Iterable[object]) -> bool:
    """Whether none of the values is a container, decided by their set of types, since there may be
    millions."""
    return SCALARS.issuperset(map(type, values))


def encode(value: Any, path: str) -> Json:
    """Returns a JSON copy of `value`, independent of later changes to it.

    Raises:
        TypeError: something at `path` is not a plain value. Types are compared exactly, because a
            subclass (an enum, a named tuple that is not registered) would be decoded as another
            type.
    """
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value  # type: ignore[no-any-return]
    if kind is int:
        return _encode_int(value, path)
    if kind is float:
        return _encode_float(value)
    if kind is list:
        return _encode_all(value, path)
    if kind in _DICT_TAGS:
        return _encode_dict(value, path)
    if kind in _GROUP_TAGS:
        return _encode_group(value, path)
    if (declared_as := registered_classes.name_of(value)) is not None:
        fields = registered_classes.fields_of(value, path).items()
        pairs: list[Json] = [[key, encode(one, f"{path}/{key}")] for key, one in fields]
        return {_RECORD: [declared_as, pairs]}
    if (dumped := tagged_types.dump(value, path)) is not None:
        return {dumped[0]: encode(dumped[1], path)}
    name = f"{kind.__module__}.{kind.__qualname__}"
    raise TypeError(f"cannot save {name} at {path!r}: {_advice(value)}")


def decode(value: Json) -> Any:
    """Returns the value that was given to `encode`.

    Raises:
        FormatError: there is a tag that this version does not know, or an object of a class that
            the program has not registered.
        DamagedError: it is not a result of `encode`.
    """
    try:
        return _decode(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise DamagedError(f"the value cannot be read: {error}") from error


def readable(value: Json) -> Json:
    """Returns the JSON with an object for each dict whose keys are strings, in its order: for
    display, and for comparisons in which order does not matter."""
    if isinstance(value, list):
        return [readable(one) for one in value]
    if not isinstance(value, dict):
        return value
    pairs: Any = value.get("$dict") if len(value) == 1 else None
    if isinstance(pairs, list) and all(
        isinstance(pair, list) and len(pair) == 2 and _is_plain_key(pair[0]) for pair in pairs
    ):
        return {key: readable(one) for key, one in pairs}
    return {key: readable(one) for key, one in value.items()}


def _encode_int(value: int, path: str) -> Json:
    if value.bit_length() >= _BITS and abs(value) >= 10**_DIGITS:
        raise TypeError(
            f"cannot save the integer at {path!r}: it has more than {_DIGITS} digits; save it as "
            "bytes (int.to_bytes)"
        )
    return value


def _encode_float(value: float) -> Json:
    return value if math.isfinite(value) else {"$float": repr(value)}


def _encode_all(values: Sequence[object], path: str) -> list[Json]:
    if _is_json(values):
        return list(values)  # type: ignore[arg-type]
    return [encode(v, f"{path}/{i}") for i, v in enumerate(values)]


def _is_json(values: Collection[Any]) -> bool:
    """Whether JSON can express each of these scalars as it is, decided as by `all_scalar`."""
    types = set(map(type, values))
    if types == {int}:
        return bool(min(values) > -_PLAIN_INT and max(values) < _PLAIN_INT)
    if types == {float}:
        return all(map(math.isfinite, values))
    return types <= _PLAIN_SCALARS


def _encode_dict(value: dict[Any, Any], path: str) -> Json:
    # canonical JSON sorts keys, so a dict in another order is stored as pairs
    is_plain = type(value) is dict and all(map(_is_plain_key, value))
    if is_plain and all(one < other for one, other in pairwise(value)):
        if _is_json(value.values()):
            return dict(value)
        return {k: encode(v, f"{path}/{k}") for k, v in value.items()}
    if _is_json(value) and _is_json(value.values()):  # there may be millions
        pairs: list[Json] = list(map(list, value.items()))
    else:
        pairs = [[encode(k, f"{path} (key)"), encode(v, f"{path}/{k}")] for k, v in value.items()]
    return {_DICT_TAGS[type(value)]: pairs}


def _is_plain_key(key: object) -> bool:
    return type(key) is str and not key.startswith("$")


def _encode_group(value: Any, path: str) -> Json:
    found = [encode(v, f"{path}/{i}") for i, v in enumerate(value)]
    if type(value) is not tuple:  # the order of a set differs between processes
        found.sort(key=json.dumps)
    return {_GROUP_TAGS[type(value)]: found}


def _advice(value: object) -> str:
    """Advises the user on a value that cannot be saved."""
    if registered_classes.can_be(type(value)):
        return f"register the class: checkpointing.register({type(value).__qualname__})"
    if isinstance(value, Enum):
        return "save its value (or its name), and convert it back to the enum after the restore"
    return (
        "a state holds tensors, None, bool, int, float, complex, str, bytes, numpy arrays and "
        "scalars, torch.Size, dtypes and devices, lists, tuples, dicts and sets of these; give "
        "another object state_dict() and load_state_dict() and put it at the top level of the state"
    )


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


def _decode_pairs(pairs: list[Any]) -> dict[Any, Any]:
    """Returns the dict of pairs of a key and a value, decided as by `all_scalar`."""
    are_pairs = set(map(type, pairs)) <= {list} and set(map(len, pairs)) <= {2}
    if are_pairs and all_scalar(chain.from_iterable(pairs)):
        return dict(pairs)
    return dict(_decode(pair) for pair in pairs)


def _decode_tag(tag: str, inner: Json) -> Any:
    if tag == "$float" and inner in ("nan", "inf", "-inf"):
        return float(str(inner))
    if tag in _GROUPS and isinstance(inner, list):
        return _GROUPS[tag](_decode(v) for v in inner)
    if tag in _DICTS and isinstance(inner, list):
        return _DICTS[tag](_decode_pairs(inner))
    if tag == _RECORD and isinstance(inner, list):
        name, fields = inner
        pairs: dict[Any, Json] = dict(fields)  # type: ignore[arg-type]
        cls = registered_classes.class_named(name, [*pairs])
        return registered_classes.made(cls, {key: _decode(one) for key, one in pairs.items()})
    if tag in ("$float", *_GROUPS, *_DICTS):
        raise FormatError(
            f"unknown kind of value {tag!r}: was it written by a newer version of hpckit?"
        )
    return tagged_types.load(tag, _decode(inner))
