"""Composes overrides and `conf/` with Hydra into plain data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, OverrideType
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from checkpointing.state.collector_pause import collector_paused
from hpckit.config.config_trees import Groups as Groups
from hpckit.config.config_trees import ambiguous, conf_dir, group_options
from hpckit.config.renamed_keys import BothSpellingsError, current_overrides
from hpckit.config.spec_error import SpecError
from hpckit.submit.composition.composed_values import ComposedValues
from hpckit.submit.composition.project_config_source import searched
from hpckit.text.suggestions import did_you_mean

_EXPERIMENT = "experiment"
"""The group whose options are whole runs; it is not a group of keys."""
_PROGRAMS = ("python", "python3", "torchrun", "accelerate", "deepspeed", "bash")
_ENTRY = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_MISSING = "???"
"""What OmegaConf calls a value that is still to be given."""
_PLAIN_KEY = re.compile(r"[A-Za-z_][\w.]*")


VERSION_BASE = "1.3"
"""The version of Hydra whose rules apply."""


def compose_values(
    overrides: Sequence[str], conf: Path, yours: Path | None = None
) -> ComposedValues:
    """Returns the values of `overrides` on the config tree `conf`, extended by `yours`.

    Values are added with Hydra's `++`, so that the spec's own check sees unknown keys. It reports
    all of them together, with suggestions.

    Raises:
        SpecError: nothing can be composed; with all problems that can be found together.
    """
    groups = group_options(conf, yours)  # Hydra reads the whole tree on each query
    # Hydra makes half a million objects, most of which stay: a tenth of the time is collection
    with collector_paused(), initialize_config_dir(config_dir=str(conf), version_base=VERSION_BASE):
        items = _parse(present(overrides, groups), groups)
        refused = {line: item for item in items for line in refusals(item, groups)}
        usable = [item for item in items if item not in refused.values()]
        try:
            values = _compose([_force_added(item, groups) for item in usable], conf, yours)
        except SpecError as error:
            raise SpecError([*refused, *error.violations]) from None
    return ComposedValues(values, list(refused))


_KEPT = ("identity_steps", "identity_mixture")
"""Keys that are of the run, whatever option of their group it continues with."""


def amend_values(
    values: dict[str, Any], overrides: Sequence[str], conf: Path, yours: Path | None
) -> None:
    """Changes the values of a spec by `overrides`, independent of the files that it was composed
    from: only options of groups among `overrides` are read, from `conf` and from `yours`.

    Raises:
        SpecError: with all problems that can be found together.
    """
    groups = group_options(conf, yours)
    with initialize_config_dir(config_dir=str(conf), version_base=VERSION_BASE):
        items = _parse(present(overrides, groups), groups)
        refused = [
            line for item in items for line in (*refusals(item, groups), *_amend_refusals(item))
        ]
        if refused:
            raise SpecError(refused)
        chosen = [item.input_line or "" for item in items if item.key_or_group in groups]
        options = _compose(chosen, conf, yours) if chosen else {}
    for item in items:
        if item.key_or_group in groups:
            group, before = item.key_or_group, values.get(item.key_or_group)
            kept = {key: before[key] for key in _KEPT if isinstance(before, dict) and key in before}
            values[group] = {**options[group], **kept} if kept else options[group]
        else:
            _set(values, item.key_or_group.split("."), _plain(item))


def present(overrides: Sequence[str], groups: Groups) -> list[str]:
    """Returns overrides with the present names of keys, values and options that were renamed."""
    try:
        return current_overrides(overrides, groups)
    except BothSpellingsError as error:
        raise SpecError([str(error)]) from None


def _amend_refusals(item: Override) -> list[str]:
    """Returns the reasons why an override cannot apply to an existing run."""
    if item.key_or_group == _EXPERIMENT:
        return [
            f"{_EXPERIMENT}: is a whole run; give keys or groups, or start it with hpckit launch"
        ]
    if item.is_delete():
        return [f"{item.input_line}: no key can be removed from a run; set KEY=null"]
    return []


def _plain(item: Override) -> Any:
    """Returns the value with the escapes of Hydra's grammar undone."""
    try:
        held = OmegaConf.create({"value": item.value()})
        return OmegaConf.to_container(held, resolve=True)["value"]  # type: ignore[index,call-overload]
    except OmegaConfBaseException as error:
        raise SpecError([f"{item.key_or_group}: {_one_line(error)}"]) from None


def _set(values: dict[str, Any], path: list[str], value: Any) -> None:
    """Sets a value as Hydra does: keys of a dict are set one by one."""
    *parents, last = path
    for key in parents:
        if not isinstance(values.get(key), dict):
            values[key] = {}
        values = values[key]
    if isinstance(value, dict) and isinstance(values.get(last), dict):
        for key, inner in value.items():
            _set(values[last], [str(key)], inner)
    else:
        values[last] = value


def _compose(overrides: list[str], conf: Path, yours: Path | None) -> dict[str, Any]:
    """Returns Hydra's result for `overrides` as nested dicts, with interpolations resolved."""
    search = [f"hydra.searchpath=[{quoted(searched(yours))}]"] if yours else []
    try:
        config = compose("config", [*search, *overrides], return_hydra_config=True)
        choices = dict(config.hydra.runtime.choices)
        with open_dict(config):
            del config["hydra"]
        if yours and (found := ambiguous(choices, conf, yours)):
            raise SpecError(found)
        return plain_values(config)
    except BothSpellingsError as error:
        raise SpecError([str(error)]) from None
    except yaml.MarkedYAMLError as error:
        raise SpecError(
            [f"config: {_yaml_place(error)}: {error.problem}; correct that line"]
        ) from None
    except MissingConfigException as error:
        raise SpecError([f"config: {_missing(error)}"]) from None
    except (OmegaConfBaseException, HydraException) as error:
        if _is_of_interrupt(error):
            raise KeyboardInterrupt from None
        key = error.full_key if isinstance(error, OmegaConfBaseException) else None
        raise SpecError([f"{key or 'config'}: {_one_line(error)}"]) from None


def plain_values(config: DictConfig) -> dict[str, Any]:
    """Returns a composed config as nested dicts, with interpolations resolved.

    Raises:
        SpecError: a key has no value, or the file of an experiment is none.
        OmegaConfBaseException: an interpolation cannot be resolved.
    """
    OmegaConf.resolve(config)
    values = OmegaConf.to_container(config)
    assert isinstance(values, dict)
    if _has_missing(values) and (missing := sorted(OmegaConf.missing_keys(config))):
        raise SpecError([f"{key}: has no value; give {key}=..." for key in missing])
    if _EXPERIMENT in values:
        raise SpecError(
            [
                f"{_EXPERIMENT}: its file in conf/{_EXPERIMENT}/ sets keys of its own "
                "instead of the run's; "
                "its first line has to be `# @package _global_`"
            ]
        )
    return {str(key): value for key, value in values.items()}


def _has_missing(value: object) -> bool:
    """Returns whether a value may be missing below. OmegaConf takes as long to say which ones as to
    apply all overrides."""
    if isinstance(value, dict):
        return any(map(_has_missing, value.values()))
    return any(map(_has_missing, value)) if isinstance(value, list) else value == _MISSING


def _is_of_interrupt(error: BaseException | None) -> bool:
    """Returns whether Ctrl-C is what OmegaConf was interrupted by, and has failed after."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _yaml_place(error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark
    return (
        "a file" if mark is None else f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}"
    )


def _missing(error: MissingConfigException) -> str:
    """Returns the message for a missing file that another config file asks for."""
    said = str(error).splitlines()[0].rstrip(".")
    if not error.options:
        return f"{said}; there is no such file in conf/"
    asked = str(error.missing_cfg_file).rpartition("/")[2]
    hint = did_you_mean(asked, error.options)
    return f"{said}; {hint}there are {', '.join(error.options)}"


def _parse(overrides: Sequence[str], groups: Groups) -> list[Override]:
    items, found = [], []
    for text in overrides:
        try:
            items.append(parse_one(text))
        except HydraException as error:
            found.append(_unreadable(text, _one_line(error), groups))
    if "=" in overrides:
        raise SpecError(["=: has no key; write key=value without spaces"])
    if found:
        raise SpecError(found)
    return items


def _unreadable(text: str, why: str, groups: Groups) -> str:
    key, sign, value = text.partition("=")
    if value and _PLAIN_KEY.fullmatch(key):
        return f"{key}: {value!r} cannot be read; close each bracket and quote ({why})"
    meant = "" if sign else _meant(text, groups)
    return f"{text}: is not an override like key=value or group=option{meant or f' ({why})'}"


def _meant(word: str, groups: Groups) -> str:
    """Returns what a word without = may stand for, or ""."""
    from hpckit.submit.manual_page import program

    if word in _PROGRAMS:
        return f"; to start a program: {program()} KEY=VALUE... -- {word} ..."
    if _ENTRY.fullmatch(word):
        return f"; for the training function say entry={word}"
    if word.endswith(".py"):
        module = word.removesuffix(".py").removeprefix("./").replace("/", ".")
        return (
            f"; to start that script: {program()} -- python {word}; for the training function main "
            f"in it say entry={module}:main"
        )
    if found := [group for group, options in groups.items() if word in options]:
        return f"; did you mean {' or '.join(f'{group}={word}' for group in found[:3])}?"
    return f"; write {word}=VALUE" if _PLAIN_KEY.fullmatch(word) else ""


def parse_one(text: str) -> Override:
    """Parses one override. A value that Hydra's grammar cannot parse, mostly a path, is taken as
    plain text."""
    parser = OverridesParser.create()
    try:
        item = parser.parse_override(text)
    except HydraException:
        key, _, value = text.partition("=")
        if not _PLAIN_KEY.fullmatch(key) or value[:1] in ("", "[", "{", "'", '"'):
            raise
        item = parser.parse_override(f"{key}={quoted(value)}")
    if not item.key_or_group:
        raise OverrideParseException(text, "it has no key")
    return item


def quoted(value: str) -> str:
    """Quotes any text for Hydra's grammar, in which a backslash has a meaning only before a
    quote."""
    escaped = re.sub(r"\\(?=\\*('|$))", r"\\\\", value).replace("'", "\\'")
    return f"'{escaped}'"


def refusals(item: Override, groups: Groups) -> list[str]:
    """Returns the reasons why this single override cannot be used."""
    key = item.key_or_group
    if key.split(".")[0] == "hydra":
        return [f"{key}: Hydra only composes here; its own settings have no effect"]
    if item.is_sweep_override():
        return [f"{key}: {item.input_line!r} is a sweep over several values; give one, or -m"]
    if key not in groups:
        return []
    if item.type == OverrideType.ADD:
        return [f"{key}: {item.input_line!r} adds what is there; write {key}=..."]
    options = groups[key]
    value = item.value()
    for option in value if isinstance(value, list) else [value]:
        if option is not None and str(option) not in options:
            hint = did_you_mean(str(option), options)
            own = "; yours are files NAME.yaml in conf/experiment/" if key == _EXPERIMENT else ""
            return [f"{key}: no option {option!r}; {hint}there are {', '.join(options)}{own}"]
    return []


def _force_added(item: Override, groups: Groups) -> str:
    plain = item.type == OverrideType.CHANGE and item.key_or_group not in groups
    return f"++{item.input_line}" if plain else str(item.input_line)


def _one_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return _with_advice("; ".join(lines[:2])) or repr(error)


def _with_advice(said: str) -> str:
    """Returns what Hydra says about a list of defaults, with what to write in it."""
    if found := re.search(r"Could not override '(\w+)'", said):
        hint = did_you_mean(found[1], group_options(conf_dir())).strip()
        return f"{said.rstrip('.')}{f'; {hint}' if hint else ''}"
    if found := re.match(r"Error merging override \+*([\w.]+)=", said):
        return f"{found[1]} is a group of keys, and has no value of its own; set keys below it"
    if found := re.search(r"Environment variable '(\w+)' not found", said):
        return f"{found[0]}; export it, or write ${{oc.env:{found[1]},DEFAULT}}"
    if found := re.match(r"(\w+) appears more than once in the final defaults list", said):
        return f"{said}; in a file of yours, write `override /{found[1]}: OPTION`"
    return said
