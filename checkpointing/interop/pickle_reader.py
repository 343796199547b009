"""Reads pickles as data: nothing is imported, called or constructed except plain containers.

A pickle is a program for a small stack machine. This module implements that machine, with only the
instructions that a tree of dataclasses needs; where a pickle asks for a class or a call, the result
is a `PickledObject` that describes it.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

from checkpointing.errors import DamagedError, FormatError


@dataclass(frozen=True)
class PickledGlobal:
    """The name of a class or function."""

    name: str  # "torch.Size"


@dataclass(eq=False)
class PickledObject:
    """An object as a pickle describes it: the callable, its arguments, and the state."""

    kind: str
    args: tuple[Any, ...]
    state: Any = None
    entries: dict[Any, Any] = field(default_factory=dict)  # the entries, if it is a kind of dict


@dataclass(eq=False)
class PersistentId:
    """The persistent id of an object outside the pickle."""

    id: Any


class _Mark:
    pass


_MARK = _Mark()
MOST_STEPS = 8_000_000
"""Largest number of instructions of a pickle, so that its content fits into about 600 MiB."""
_DEEPEST_KEY = 8
"""Largest nesting of tuples in a key: the hash of a deeper one could overflow the stack."""


def read(data: bytes, allowed: Collection[str] | None, where: str) -> Any:
    """Returns the content of a pickle: plain values, lists, dicts, tuples, sets, `PickledObject`,
    `PickledGlobal` and `PersistentId`.

    Args:
        allowed: names of the classes and functions that it may refer to; None: any, because the
            caller interprets or refuses each of them.

    Raises:
        FormatError: it refers to another one, or needs an instruction that this machine lacks.
        DamagedError: it is not a whole pickle.
    """
    machine = _Machine(allowed, where)
    try:
        for count, (opcode, arg, _) in enumerate(pickletools.genops(data)):
            if opcode.name == "STOP":
                return machine.pop()
            if count == MOST_STEPS:
                raise FormatError(
                    f"{where}: the pickle has more than {MOST_STEPS} instructions; save long lists "
                    "of numbers as tensors"
                )
            machine.step(opcode.name, arg)
    except (ValueError, IndexError, KeyError, TypeError, UnicodeError) as error:
        raise DamagedError(
            f"{where}: it is not a complete pickle of the expected kind ({error})"
        ) from error
    raise DamagedError(f"{where}: the pickle has no end")


class _Machine:
    """The pickle machine: its stack and its memo."""

    def __init__(self, allowed: Collection[str] | None, where: str) -> None:
        self._allowed, self._where = allowed, where
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def step(self, name: str, arg: Any) -> None:
        if name in _IGNORED:
            return
        if name in _LITERALS:
            self._stack.append(arg)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name]())
        elif name in _STEPS:
            _STEPS[name](self, arg)
        else:
            raise FormatError(f"{self._where}: pickle instruction {name} is not allowed here")

    def pop(self) -> Any:
        thing = self._stack.pop()
        if thing is _MARK:
            raise ValueError("a mark where a value should be")
        return thing

    def pop_to_mark(self) -> list[Any]:
        things = []
        while (thing := self._stack.pop()) is not _MARK:
            things.append(thing)
        return things[::-1]

    def push(self, thing: Any) -> None:
        self._stack.append(thing)

    def top(self) -> Any:
        thing = self._stack[-1]
        if thing is _MARK:
            raise ValueError("a mark where a value should be")
        return thing

    def memoize(self, key: int | None) -> None:
        self._memo[len(self._memo) if key is None else key] = self.top()

    def recall(self, key: int) -> None:
        self.push(self._memo[key])

    def name(self, name: str) -> None:
        if self._allowed is not None and name not in self._allowed:
            raise FormatError(
                f"{self._where}: it refers to {name}, which is not allowed in such a file: it may "
                "be an attack, or written by an unknown program; nothing in it was run"
            )
        self.push(PickledGlobal(name))

    def name_from_stack(self) -> None:
        name, module = self.pop(), self.pop()
        if not isinstance(module, str) or not isinstance(name, str):
            raise ValueError("a name that is not text")
        self.name(f"{module}.{name}")

    def call(self) -> None:
        args, callee = self.pop(), self.pop()
        if isinstance(callee, PickledObject) and self._allowed is None:
            callee = PickledGlobal(f"{callee.kind}()")
        if not isinstance(callee, PickledGlobal) or not isinstance(args, tuple):
            raise ValueError("a call of something that is not a class")
        self.push(PickledObject(callee.name, args))

    def build(self) -> None:
        state, thing = self.pop(), self.top()
        if not isinstance(thing, PickledObject):
            raise ValueError("a state for something that has none")
        thing.state = state

    def extend(self, things: list[Any]) -> None:
        target = self.top()
        if not isinstance(target, list):
            raise ValueError("an element for something that is not a list")
        target.extend(things)

    def set_items(self, things: list[Any]) -> None:
        target = self.top()
        entries = target.entries if isinstance(target, PickledObject) else target
        if not isinstance(entries, dict) or len(things) % 2:
            raise ValueError("an entry for something that is not a dict")
        for key in things[::2]:
            _check_key(key, _DEEPEST_KEY)
        entries.update(zip(things[::2], things[1::2], strict=True))

    def add_items(self, things: list[Any]) -> None:
        target = self.top()
        if not isinstance(target, set):
            raise ValueError("an element for something that is not a set")
        self._check_all(things)
        target.update(things)

    def push_frozen(self, things: list[Any]) -> None:
        self._check_all(things)
        self.push(frozenset(things))

    def _check_all(self, things: list[Any]) -> None:
        for thing in things:
            _check_key(thing, _DEEPEST_KEY)

    def last(self, count: int) -> list[Any]:
        return [self.pop() for _ in range(count)][::-1]


def _check_key(key: object, levels: int) -> None:
    if not isinstance(key, tuple):
        return
    if not levels:
        raise ValueError(f"a key of more than {_DEEPEST_KEY} levels of tuples")
    for inner in key:
        _check_key(inner, levels - 1)


_IGNORED = {"PROTO", "FRAME"}
_LITERALS = {
    *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT"),
    *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"),
    *("SHORT_BINBYTES", "BINBYTES", "BINBYTES8", "BYTEARRAY8"),
}
_CONSTANTS: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None,
    "NEWTRUE": lambda: True,
    "NEWFALSE": lambda: False,
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
    "EMPTY_SET": set,
    "MARK": lambda: _MARK,
}
_STEPS: dict[str, Callable[[_Machine, Any], object]] = {
    "POP": lambda m, arg: m.last(1),
    "POP_MARK": lambda m, arg: m.pop_to_mark(),
    "TUPLE": lambda m, arg: m.push(tuple(m.pop_to_mark())),
    "TUPLE1": lambda m, arg: m.push(tuple(m.last(1))),
    "TUPLE2": lambda m, arg: m.push(tuple(m.last(2))),
    "TUPLE3": lambda m, arg: m.push(tuple(m.last(3))),
    "APPEND": lambda m, arg: m.extend(m.last(1)),
    "APPENDS": lambda m, arg: m.extend(m.pop_to_mark()),
    "SETITEM": lambda m, arg: m.set_items(m.last(2)),
    "SETITEMS": lambda m, arg: m.set_items(m.pop_to_mark()),
    "BINPUT": lambda m, arg: m.memoize(arg),
    "LONG_BINPUT": lambda m, arg: m.memoize(arg),
    "MEMOIZE": lambda m, arg: m.memoize(None),
    "BINGET": lambda m, arg: m.recall(arg),
    "LONG_BINGET": lambda m, arg: m.recall(arg),
    "GLOBAL": lambda m, arg: m.name(arg.replace(" ", ".", 1)),
    "STACK_GLOBAL": lambda m, arg: m.name_from_stack(),
    "ADDITEMS": lambda m, arg: m.add_items(m.pop_to_mark()),
    "FROZENSET": lambda m, arg: m.push_frozen(m.pop_to_mark()),
    "BINPERSID": lambda m, arg: m.push(PersistentId(m.pop())),
    "REDUCE": lambda m, arg: m.call(),
    "NEWOBJ": lambda m, arg: m.call(),
    "BUILD": lambda m, arg: m.build(),
}
