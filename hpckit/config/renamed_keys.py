"""Config keys, values and options that had other names in earlier releases, in one table.

The earlier spellings are accepted in overrides, in YAML files of projects and in stored specs. Each
spelling that a user has typed causes one `FutureWarning`, which gives the present one.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from hpckit.config.earlier_versions import group_of


@dataclass(frozen=True)
class RenamedKey:
    """A key, or a group with all its keys, that had another name or other values."""

    old: str
    """Earlier path, with dots."""
    new: str
    """Present path, in the same group."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The present value for each earlier one; other values have not changed."""

    def present(self, value: Any) -> Any:
        """Returns the present value for an earlier one."""
        return self.values.get(value, value) if isinstance(value, str) else value

    def earlier(self, value: Any) -> Any:
        """Returns the earlier value for a present one."""
        same = (old for old, new in self.values.items() if new is value or new == value)
        return next(same, value) if isinstance(value, str | bool) else value


RENAMED: tuple[RenamedKey, ...] = (
    RenamedKey("start", "init_from"),
    RenamedKey("app", "user_config"),
    RenamedKey("launch.gpus_per_node", "launch.nproc_per_node"),
    RenamedKey("retry.in_place", "retry.max_restarts"),
    RenamedKey("parallel.reduce", "parallel.no_sync", {"last": True, "each": False}),
    RenamedKey("memory.recompute", "memory.activation_checkpointing"),
    RenamedKey("memory.offload", "memory.cpu_offload"),
    RenamedKey("model.experts.per_token", "model.experts.top_k"),
    RenamedKey("lora.layers", "lora.target_modules"),
    RenamedKey("data.boundaries", "data.document_mask"),
    RenamedKey("optim.decay_share", "optim.decay_ratio"),
    RenamedKey("checkpoint.staging", "checkpoint.staging", {"slots": "buffers"}),
)
"""Nothing may be removed here: stored specs have these names, and identities are computed from
them."""
RENAMED_OPTIONS: Mapping[tuple[str, str], str] = {
    ("memory", "low"): "activation_checkpointing",
}
"""The present name of each option of a group, as (group, earlier name), that was renamed."""

Groups = Mapping[str, Collection[str]]
_OVERRIDE = re.compile(r"(?P<sign>\+{0,2}|~)(?P<key>[A-Za-z_][\w.]*)(?P<rest>=.*)?", re.DOTALL)
_QUOTED = re.compile(r"(['\"])(\w+)\1")
_INTERPOLATION = re.compile(r"\$\{([A-Za-z_][\w.]*)\}")
_said: dict[Any, Any] = {}
"""The registry of the `warnings` module, by which each spelling is reported only once."""


class BothSpellingsError(ValueError):
    """Raised where a key is given by its earlier and by its present name."""

    def __init__(self, old: str, new: str) -> None:
        super().__init__(f"{old}: is {new} now, and both are given; leave out {old}")


def current_key(key: str) -> str:
    """Returns the present name of a key, a group, or a key in a group."""
    for one in RENAMED:
        if key == one.old or key.startswith(f"{one.old}."):
            return one.new + key.removeprefix(one.old)
    return key


def current_option(group: str, option: str, own: Groups | None = None) -> str:
    """Returns the present name of an option.

    Args:
        own: the user's options of each group; an option that has an earlier name of one of hpckit's
            own keeps its name.
    """
    if option in (own or {}).get(group, ()):
        return option
    return RENAMED_OPTIONS.get((group, option), option)


def current_text(text: str) -> str:
    """Returns `text` with the present names of the keys in its interpolations, such as `${key}`."""
    return _INTERPOLATION.sub(lambda found: f"${{{current_key(found[1])}}}", text)


def current_overrides(words: Sequence[str], own: Groups | None = None) -> list[str]:
    """Returns overrides with the present names of keys, values and options.

    Args:
        words: each is `key=value`, `group=option`, or anything else, which is returned as it is.
        own: as for `current_option`.

    Raises:
        BothSpellingsError: a key is given by both of its names.
    """
    result = [_current_override(word, own) for word in words]
    given = {_key_of(word) for word in words}
    for word, now in zip(words, result, strict=True):
        old, new = _key_of(word), _key_of(now)
        if old != new and new in given:
            raise BothSpellingsError(old, new)
        if _value_of(word) != _value_of(now):
            warn_of(word.lstrip("+"), now.lstrip("+"), "command line")
        elif old != new:
            warn_of(old, new, "command line")
    return result


def _key_of(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


def _value_of(word: str) -> str:
    return word.partition("=")[2]


def _current_override(word: str, own: Groups | None) -> str:
    found = _OVERRIDE.fullmatch(word)
    if found is None:
        return word
    key, rest = found["key"], current_text(found["rest"] or "")
    plain = _QUOTED.sub(r"\2", rest.removeprefix("="))
    if (option := current_option(key, plain, own)) != plain:
        rest = f"={option}"
    for one in RENAMED:
        if key == one.old and plain in one.values:
            rest = f"={shown(one.present(plain))}"
    return f"{found['sign']}{current_key(key)}{rest}"


def shown(value: Any) -> str:
    """Returns a value as it is typed in an override."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def current_values(
    values: Mapping[str, Any], *, origin: str | None, under: str = "", may_override: bool = False
) -> dict[str, Any]:
    """Returns nested `values` with the present names of keys and the present values.

    Args:
        origin: the place where a user has typed them, which the warnings give; None: no user
            has typed them, and there are no warnings.
        under: the path of the group that has these values; "" for a whole spec.
        may_override: whether the value under an earlier name replaces the one under the present
            name, which holds a default.

    Raises:
        BothSpellingsError: a key is given by both of its names.
    """
    result = deepcopy(dict(values))
    for one in RENAMED:
        if under and not one.old.startswith(f"{under}."):
            continue
        group, old = group_of(one.old.removeprefix(f"{under}.") if under else one.old, result)
        if group is None or old not in group:
            continue
        new, value = one.new.rpartition(".")[2], one.present(group[old])
        if old != new and new in group and not may_override:
            raise BothSpellingsError(one.old, one.new)
        if value is not group[old] and origin is not None:
            warn_of(f"{one.old}={shown(group[old])}", f"{one.new}={shown(value)}", origin)
        elif old != new and origin is not None:
            warn_of(one.old, one.new, origin)
        _rename(group, old, new, value)
    return result


def _rename(group: dict[str, Any], old: str, new: str, value: Any) -> None:
    """Puts `value` under its new name, at the place of the old one."""
    items = list(group.items())
    group.clear()
    for key, kept in items:
        if key == old:
            group[new] = value
        elif key != new:
            group[key] = kept


def first_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the `values` of a whole spec with the names and values that keys had at first,
    because identities are computed from these."""
    result = deepcopy(dict(values))
    for one in RENAMED:
        group, new = group_of(one.new, result)
        if group is not None and new in group:
            group[one.old.rpartition(".")[2]] = one.earlier(group.pop(new))
    return result


def earlier_names(group: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields (earlier, present) names of keys directly in the group of this path."""
    for one in RENAMED:
        *parents, name = one.old.split(".")
        if parents == list(group) and one.old != one.new:
            yield name, one.new.rpartition(".")[2]


def warn_of(old: str, new: str, origin: str) -> None:
    """Issues a `FutureWarning` that gives the present spelling of an earlier one."""
    warnings.warn_explicit(f"{old} is {new} now", FutureWarning, origin, 1, registry=_said)
