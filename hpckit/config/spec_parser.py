"""Parses plain data (from Hydra or `spec.yaml`) into a validated `RunSpec`, and converts it
back."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import json
import os
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, reduce
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import rebuild_dataclass

from hpckit.config import earlier_versions, renamed_keys
from hpckit.config.entry_points import is_built_in
from hpckit.config.names_of_other_tools import key_for
from hpckit.config.rules.violations import violations
from hpckit.config.spec import MODEL_KINDS, RunSpec
from hpckit.config.spec.field_types import FORMS, HIDDEN
from hpckit.config.spec_error import SpecError as SpecError
from hpckit.system.pydantic_plugins import without_plugin_search
from hpckit.text.undecodable_text import is_undecodable

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_Group = TypeVar("_Group")

_KEYS_HERE = "; the keys here are "
_MISSING = ("missing", "missing_argument", "missing_keyword_only_argument")
"""pydantic's types of an error about a key without a value."""
_MANY_MISSING = 5
"""Number of keys of a group without a value from which on they are not listed."""
_TYPE = re.compile(r"literal\[.*\]|(constrained-)?(int|float|str)|bool")
"""pydantic's names of types that a value may have."""
_SHORT = 3
"""Letters of a key of which one wrong letter counts less."""
_plugins_lock = threading.RLock()


def parse_spec(
    values: Mapping[str, Any], *, origin: str | None = "config", may_override: bool = False
) -> RunSpec:
    """Returns the spec that `values` (nested dicts and lists) describe.

    Keys that are missing because `values` come from an earlier release get the values that they had
    then (`earlier_versions`), and earlier names of keys are accepted (`renamed_keys`). Unknown
    keys, wrong types and values out of bounds are reported together; rules that span keys are
    checked only if each single key is valid.

    Args:
        origin: the place that warnings about earlier names give; None: there are no warnings.
        may_override: whether the value under an earlier name replaces the one under the present
        name. False: both
            together are refused.

    Raises:
        SpecError: the spec is not valid; the error holds every violation that was found.
    """
    stored = _without_version(values)
    try:
        named = renamed_keys.current_values(stored, origin=origin, may_override=may_override)
        whole = earlier_versions.completed(named, earlier_versions.ADDED)
        with _without_plugins():
            spec = _adapter().validate_json(json.dumps(whole))
    except ValidationError as error:
        raise SpecError(list(_undecodable(whole)) or list(_explain(error))) from None
    except renamed_keys.BothSpellingsError as error:
        raise SpecError([str(error)]) from None
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError([f"config: contains a value that is not plain data ({error})"]) from None
    if found := violations(spec):
        raise SpecError(found)
    return spec


@cache
def _adapter() -> TypeAdapter[RunSpec]:
    """Returns what checks the values of a spec. It takes longer to make than to use: a list of runs
    reads many specs."""
    return TypeAdapter(RunSpec)


def prepare_parser() -> None:
    """Makes what checks the values of a spec, which the first `parse_spec` would make, so that
    forks of this process have it."""
    with _without_plugins():
        rebuild_dataclass(RunSpec)  # type: ignore[arg-type]  # it is one of pydantic's
        _adapter()


def require_usable(spec: RunSpec, entry: str) -> None:
    """Checks the rules of a training function of hpckit that another one calls: those rules do not
    apply to the spec of the other one.

    Args:
        entry: hpckit's own training function.

    Raises:
        SpecError: `spec` is not valid for it.
    """
    if is_built_in(spec):
        return
    if found := violations(dataclasses.replace(spec, entry=entry)):
        raise SpecError(found)


def _without_version(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of a spec without its version.

    Raises:
        SpecError: a later release wrote it.
    """
    version = values.get(earlier_versions.VERSION_KEY, 1)
    if not isinstance(version, int) or version > earlier_versions.VERSION:
        raise SpecError(
            [
                f"{earlier_versions.VERSION_KEY}: a later release of hpckit wrote this spec in "
                f"version {version}, and this release reads versions up to "
                f"{earlier_versions.VERSION}; use the later release"
            ]
        )
    return {key: value for key, value in values.items() if key != earlier_versions.VERSION_KEY}


@contextmanager
def _without_plugins() -> Iterator[None]:
    """Disables pydantic's plug-ins in the block. A spec needs none, and the search for them reads
    the metadata of all installed packages, which takes about 25 ms. They are enabled again
    afterwards. One thread at a time is in the block, as each restores what it has found."""
    name = "PYDANTIC_DISABLE_PLUGINS"
    with _plugins_lock:
        before = os.environ.get(name)
        os.environ[name] = "__all__"
        try:
            with without_plugin_search():
                yield
        finally:
            if before is None:
                del os.environ[name]
            else:
                os.environ[name] = before


def read_spec(path: Path) -> RunSpec:
    """Reads the spec in the YAML file at `path`, which an earlier release may have written.

    Raises:
        SpecError: the file is damaged, or its spec is not valid.
    """
    values = _stored_values(path)
    try:
        return parse_spec(values, origin=None)
    except SpecError as error:
        raise SpecError([f"{path}: {_of_stored(line)}" for line in error.violations]) from None


def _of_stored(line: str) -> str:
    """Returns what is wrong with a stored spec: it has keys of a later release, or was edited."""
    head, mark, _ = line.partition(_KEYS_HERE)
    return f"{head}; it was edited, or written by a later version of hpckit" if mark else line


def stored_version(path: Path) -> int:
    """Returns the version of the spec in the YAML file at `path`.

    Raises:
        SpecError: the file is damaged.
    """
    return int(_stored_values(path).get(earlier_versions.VERSION_KEY, 1))


def _stored_values(path: Path) -> dict[str, Any]:
    import yaml  # which commands that read no stored spec do without

    from hpckit.text.plain_yaml import load_plain

    try:
        values = load_plain(path.read_text(encoding="utf-8"))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        said = " ".join(filter(None, (error.context, error.problem)))
        advice = "restore the file, or launch again"
        raise SpecError([f"{path}: not valid YAML ({where}{said}); {advice}"]) from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise SpecError([f"{path}: not valid YAML ({' '.join(str(error).split())})"]) from None
    if not isinstance(values, dict):
        raise SpecError([f"{path}: does not contain a spec"])
    return values


def with_values(group: _Group, **values: Any) -> _Group:
    """Returns a spec or a group of one with other values that need no check, such as absolute
    paths. `dataclasses.replace` checks the whole group, for which pydantic first makes what checks
    it, in 5 ms for each kind of group."""
    known = {field.name for field in dataclasses.fields(group)}  # type: ignore[arg-type]
    if unknown := values.keys() - known:
        raise TypeError(f"{type(group).__name__} has no {', '.join(sorted(unknown))}")
    changed = copy.copy(group)
    vars(changed).update(values)  # it is frozen
    return changed


def spec_values(spec: RunSpec) -> dict[str, Any]:
    """Returns `spec` as nested plain dicts and lists; `parse_spec` is the inverse."""
    values: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(spec)))
    return values


def dump_amended_spec(spec: RunSpec, source: Path) -> str:
    """Returns `spec` as YAML for the code that has written the spec in the YAML file at `source`:
    without keys that it may not know, unless they have other values than it implies.

    Raises:
        SpecError: the file is damaged.
    """
    stored = _stored_values(source)
    return dump_spec(spec, stored_version(source), earlier_versions.absent_keys(stored))


def dump_spec(
    spec: RunSpec,
    version: int = earlier_versions.VERSION,
    unknown: Iterable[earlier_versions.AddedKey] = (),
) -> str:
    """Returns `spec` as YAML, with the version of its keys first.

    Args:
        unknown: keys that are left out where they have the values that are implied without them.
        version: 1 for code of the release that has no versions: the spec has its names, and only
            keys that it knows or that have other values than it implies.
    """
    import yaml

    values = spec_values(spec)
    if version == 1:
        values = earlier_versions.reduced(values, earlier_versions.ADDED)
        values = renamed_keys.first_values(values)
    else:
        values = earlier_versions.reduced(values, unknown)
        values = {earlier_versions.VERSION_KEY: version, **values}
    return yaml.safe_dump(values, sort_keys=False)


def _undecodable(value: object, key: str = "config") -> Iterator[str]:
    """Yields what is wrong with each key and value that is not UTF-8. pydantic would only say at
    which character of all values that is."""
    if isinstance(value, str) and is_undecodable(value):
        yield f"{key}: {value!a} is not UTF-8, as which the values of a run are kept"
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _undecodable(name, key)
            yield from _undecodable(inner, name if key == "config" else f"{key}.{name}")
    elif isinstance(value, list):
        for inner in value:
            yield from _undecodable(inner, key)


def _explain(error: ValidationError) -> Iterator[str]:
    items = error.errors(include_url=False)
    missing = Counter(str(item["loc"][0]) for item in items if item["type"] in _MISSING)
    for group, number in missing.items():
        if number >= _MANY_MISSING:
            yield (
                f"{group}: {number} keys have no value; a file of yours in conf/{group}/ begins "
                "with `defaults: [OPTION, _self_]`, the option that it changes"
            )
    for parent, errors in groupby(items, lambda item: item["loc"][:-1]):
        together = list(errors)
        if _is_one_value(together):
            yield _either(_key(_without_tag(parent)), together)
            continue
        for item in together:
            if item["type"] in _MISSING and missing[str(item["loc"][0])] >= _MANY_MISSING:
                continue
            yield _explain_item(item)


def _is_one_value(items: Sequence[ErrorDetails]) -> bool:
    """Returns whether these errors are about one value that may be of several types: pydantic has
    one for each type, whose name it appends to the key."""
    names = [str(item["loc"][-1]) for item in items if item["loc"]]
    is_same = all(item["input"] == items[0]["input"] for item in items)
    return len(items) > 1 and is_same and all(map(_TYPE.fullmatch, names))


def _either(key: str, items: Sequence[ErrorDetails]) -> str:
    """Joins what is wrong with one value by the types that it may have."""
    needs = [_required_value(key, item) for item in items]
    forms = [needs[0].form, *(need.form.removeprefix("must be ") for need in needs[1:])]
    told = [need.got for need in needs if need.got is not None]
    got = max(told, key=len) if len(told) == len(needs) else None
    return _RequiredValue(" or ".join(forms), got).of(key)


def _explain_item(item: ErrorDetails) -> str:
    loc = _without_tag(item["loc"])
    key = _key(loc)
    if item["type"] == "unexpected_keyword_argument":
        if tuple(loc) in all_keys():
            return f"{key}: a {loc[0]} of this kind has no such key"
        return f"{key}: unknown key{_suggestion(loc)}"
    if item["type"] == "union_tag_not_found":
        return f"{key}.kind: has no value"
    if item["type"] == "union_tag_invalid":
        kinds = ", ".join(MODEL_KINDS)
        return f"{key}.kind: must be one of {kinds}, got {item['input']['kind']!r}"
    if item["type"] in _MISSING:
        return f"{key}: has no value"
    if item["type"] == "json_invalid":  # its input is that of all keys
        return f"{key}: has a value that cannot be read ({item['msg']})"
    if item["type"] == "dataclass_type" and (names := _keys_under(loc)):
        known = f"{key}.{sorted(names)[0]}"
        return f"{key}: must be a group of keys, such as {known}; got {item['input']!r}"
    return _required_value(key, item).of(key)


@dataclasses.dataclass(frozen=True)
class _RequiredValue:
    """What the value of a key must be."""

    form: str
    """Such as "must be a list"."""
    got: str | None
    """The value, with advice; None: it is not part of the message."""

    def of(self, key: str) -> str:
        mark = ";" if "," in self.form else ","
        return f"{key}: {self.form}" + (f"{mark} got {self.got}" if self.got is not None else "")


def _required_value(key: str, item: ErrorDetails) -> _RequiredValue:
    kind, value = item["type"], item["input"]
    if kind == "string_pattern_mismatch":
        pattern = item["ctx"]["pattern"]
        return _RequiredValue(
            f"must be {FORMS[pattern]}", None if pattern in HIDDEN else repr(value)
        )
    if kind in ("dict_type", "dataclass_type"):
        return _RequiredValue(f"must be a group of keys, such as {key}.NAME", repr(value))
    if kind in ("list_type", "tuple_type"):
        return _RequiredValue("must be a list", f"{value!r}; write {key}=[{value}]")
    if kind in ("bool_type", "bool_parsing"):
        return _RequiredValue("must be true or false", repr(value))
    if kind in ("int_type", "int_parsing", "int_from_float"):
        return _RequiredValue("must be a whole number", f"{value!r}{_written(value)}")
    if kind == "string_type" and isinstance(value, bool | int | float):
        return _RequiredValue("must be text", f"{value!r}; write {key}=\"'{str(value).lower()}'\"")
    return _RequiredValue(_sentence(item["msg"]), repr(value))


def _key(loc: Sequence[str]) -> str:
    return ".".join(loc) or "config"


def _without_tag(path: Sequence[str | int]) -> list[str]:
    """Returns a key's path without the kind of model that pydantic inserts after its group."""
    loc = [str(part) for part in path]
    is_tagged = len(loc) > 1 and loc[0] == "model" and tuple(loc[:2]) not in all_keys()
    return [loc[0], *loc[2:]] if is_tagged and loc[1] in MODEL_KINDS else loc


def _written(value: Any) -> str:
    """Returns how to write a number that is whole, as 1e4 is."""
    is_whole = isinstance(value, float) and value.is_integer()
    return f"; write {int(value)}" if is_whole else ""


def _sentence(message: str) -> str:
    return message.removeprefix("Input ").replace("should", "must", 1)


def _suggestion(loc: list[str]) -> str:
    """Returns a suggestion for a mistyped key: a similar key of its group, or the same key of
    another group."""
    parts = loc[0].partition("=")[0].strip().split(".")
    if len(loc) == 1 and len(parts) > 1 and tuple(parts) in all_keys():  # of a file
        nested = reduce(lambda inner, part: f"{{{part}: {inner}}}", reversed(parts), "VALUE")
        return f"; in a file, write {nested[1:-1]}"
    siblings = _keys_under(loc[:-1])
    names = {**dict(renamed_keys.earlier_names(loc[:-1])), **{name: name for name in siblings}}
    cutoff = 0.6 if len(loc[-1]) == _SHORT else 0.75
    near = difflib.get_close_matches(loc[-1], list(names), n=1, cutoff=cutoff)
    if near:
        return f"; did you mean {'.'.join([*loc[:-1], names[near[0]]])}?"
    elsewhere = [".".join(path) for path in all_keys() if path[-1] == loc[-1]]
    if elsewhere:
        return f"; did you mean {' or '.join(elsewhere)}?"
    if known := key_for(loc[-1]):
        return f"; here it is {known}"
    own = "" if len(loc) > 1 else f"; a key of your own is user_config.{loc[0]}"
    return f"{_KEYS_HERE}{', '.join(siblings)}{own}" if siblings else ""


def suggested_keys(name: str) -> list[str]:
    """Returns the keys that are called `name`, of whatever group, or by which another tool calls
    one, or that are nearly called so."""
    keys = {".".join(path): path[-1] for path in all_keys()}
    found = [key for key, last in keys.items() if name in (key, last)]
    if not found and (known := key_for(name)):
        found = [known.partition(",")[0]]
    near = difflib.get_close_matches(name, list(keys.values()), n=1, cutoff=0.85)
    return found or [key for key, last in keys.items() if last in near]


def _keys_under(path: list[str]) -> list[str]:
    found = [key[-1] for key in all_keys() if list(key[:-1]) == path]
    return found or _keys_of_entry(path)


def _keys_of_entry(path: list[str]) -> list[str]:
    """Returns the keys of an entry that has a name of the user's choice, or a number, as a source
    or a stage of `data.mixture`."""
    kind: Any = RunSpec
    for name in path:
        if get_origin(kind) in (dict, tuple):
            kind = get_args(kind)[1 if get_origin(kind) is dict else 0]
            continue
        of_parts = [_fields_of(part) for part in (kind, *get_args(kind))]
        fields = next((fields for fields in of_parts if name in fields), None)
        if fields is None:
            return []
        kind = fields[name].annotation
    return list(_fields_of(kind))


def _fields_of(kind: Any) -> dict[str, Any]:
    return getattr(kind, "__pydantic_fields__", {})


def all_keys() -> list[tuple[str, ...]]:
    """Returns every key of the spec, groups included, as paths, in the order of their
    definition."""
    return list(dict.fromkeys(_walk(RunSpec, ())))


def _walk(kind: type, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    for name, field in kind.__pydantic_fields__.items():  # type: ignore[attr-defined]
        yield (*path, name)
        if get_origin(field.annotation) in (dict, tuple):
            continue  # its keys have names of the user's choice, or numbers
        for part in (field.annotation, *get_args(field.annotation)):
            if dataclasses.is_dataclass(part) and isinstance(part, type):
                yield from _walk(part, (*path, name))
