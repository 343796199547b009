"""Registers the named tuples and dataclasses of a program, so that they can be saved.

A store holds the name of such a class and its fields, and never selects code: objects are created
only of the class that the program has registered under that name.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, TypeVar

from checkpointing.errors import FormatError

C = TypeVar("C", bound=type)

_CLASSES: dict[str, type] = {}
_NAMES: dict[type, str] = {}


def register(cls: C, *, name: str | None = None) -> C:
    """Register a named tuple or dataclass that the state contains, before saving and restoring. Can
    be used as a decorator.

        checkpointing.register(Progress)

    An object is saved by its fields and restored with them, without a call of `__init__` or
    `__post_init__`. Tensors in its fields are saved as tensors.

    Args:
        name: the name under which it is saved; by default its `__qualname__`. Pass the old name if
            the class was renamed.

    Raises:
        TypeError: it is neither a named tuple nor a dataclass.
        ValueError: another class is registered under this name.
    """
    if not can_be(cls):
        raise TypeError(
            f"cannot register {cls!r}: only named tuples and dataclasses can be registered; save "
            "an enum by its value, and give any other class state_dict() and load_state_dict()"
        )
    name = cls.__qualname__ if name is None else name
    other = _CLASSES.get(name, cls)
    if (other.__module__, other.__qualname__) != (cls.__module__, cls.__qualname__):
        raise ValueError(
            f"{other.__module__}.{other.__qualname__} is already registered as {name!r}: register "
            f"{cls.__module__}.{cls.__qualname__} with another name="
        )
    if _NAMES.get(cls, name) != name:
        raise ValueError(f"{cls.__qualname__} is already registered as {_NAMES[cls]!r}")
    _CLASSES[name], _NAMES[cls] = cls, name
    return cls


def can_be(cls: object) -> bool:
    """Whether a class can be registered."""
    return isinstance(cls, type) and (_is_named_tuple(cls) or dataclasses.is_dataclass(cls))


def name_of(value: object) -> str | None:
    """Returns the name under which the class of `value` is registered; None if it is not."""
    return _NAMES.get(type(value))


def fields_of(value: Any, path: str) -> dict[str, Any]:
    """Returns the fields of an object of a registered class.

    Args:
        path: name of the object, for the error.

    Raises:
        TypeError: it has attributes that are not fields and would be lost, or lacks a field.
    """
    names, kind = _field_names(type(value)), type(value).__qualname__
    if lacking := [name for name in names if not hasattr(value, name)]:
        raise TypeError(f"cannot save {kind} at {path!r}: its field {lacking[0]!r} is not set")
    more = [key for key in getattr(value, "__dict__", ()) if key not in names]
    for key in more:
        if not isinstance(getattr(type(value), key, None), functools.cached_property):
            raise TypeError(
                f"cannot save {kind} at {path!r}: its attribute {key!r} is not a field of the "
                "class and would be lost; make it a field"
            )
    return {name: getattr(value, name) for name in names}


def made(cls: type, fields: Mapping[str, Any]) -> Any:
    """Returns an object of a registered class with exactly these fields."""
    if _is_named_tuple(cls):
        return tuple.__new__(cls, [fields[name] for name in _field_names(cls)])
    one: Any = object.__new__(cls)
    for name in _field_names(cls):
        object.__setattr__(one, name, fields[name])  # also works if it is frozen
    return one


def class_named(name: object, fields: list[Any]) -> type:
    """Returns the class that is registered under a name from a checkpoint, if it has these fields.

    Raises:
        FormatError: there is none, or it has other fields.
    """
    cls = _CLASSES.get(name) if isinstance(name, str) else None
    if cls is None:
        raise FormatError(
            f"the checkpoint holds an object of class {name!r}, which this program has not "
            f"registered: call checkpointing.register({name}) before, or "
            f"register(Class, name={name!r}) if the class now has another name"
        )
    if set(fields) != set(here := _field_names(cls)):
        raise FormatError(
            f"an object of class {name!r} was saved with the fields {', '.join(map(str, fields))}, "
            f"but here the class has {', '.join(here)}: register one with the saved fields as "
            f"register(Class, name={name!r})"
        )
    return cls


def is_changeable(value: object) -> bool:
    """Whether the fields of an object of a registered class can be set: those of a dataclass that
    is not frozen."""
    params = getattr(type(value), "__dataclass_params__", None)
    return params is not None and not params.frozen and not _is_named_tuple(type(value))


def is_named_tuple(value: object) -> bool:
    return _is_named_tuple(type(value))


def _is_named_tuple(cls: type) -> bool:
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple)


def _field_names(cls: type) -> tuple[str, ...]:
    if _is_named_tuple(cls):
        return tuple(cls._fields)  # type: ignore[attr-defined]
    return tuple(field.name for field in dataclasses.fields(cls))
