"""Decides which configs are the same experiment, so that a launch command finds its run again."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from hpckit.config import earlier_versions, renamed_keys
from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import spec_values

# Keys that do not change a run's identity, as they set where, how fast or how carefully it runs,
# not what it trains. Thus the same experiment finds its directory again with another number of
# nodes.
_NOT_IDENTITY = (
    ("root",),
    ("cluster",),
    ("launch",),
    ("elastic",),
    ("retry",),
    ("hang",),
    ("heal",),
    ("health",),
    ("parallel",),
    ("memory",),
    ("checkpoint",),
    ("metrics",),
    ("alerts",),
    ("eval",),
    ("debug", "ledger"),
    ("debug", "deterministic"),
    ("debug", "canary", "steps"),
    ("debug", "canary", "file"),
    ("debug", "canary", "tolerance"),
    ("debug", "profile"),
    ("debug", "drill"),
    ("train", "micro_batch"),
    ("train", "log_every"),
    ("train", "require_finite"),
    ("train", "validate_every"),
    ("train", "validate_samples"),
    ("train", "trace_share"),
    ("data", "grow"),
    ("data", "validation"),
    ("data", "balance"),
    ("data", "prefetch"),
    ("data", "threads"),
    ("data", "cache"),
    ("data", "cache_gb"),
    ("data", "cache_local"),
    ("data", "cache_peers"),
    ("data", "check"),
)


def identity(spec: RunSpec) -> str:
    """Returns eight hex digits that change exactly when the experiment does; the name of the run
    has no influence."""
    values = renamed_keys.first_values(_experiment(spec))
    canonical = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def differences(spec: RunSpec, other: RunSpec) -> list[tuple[str, Any, Any]]:
    """Returns (key, value, other value) for the keys in which the identities of two experiments
    differ."""
    here, there = (dict(_flat(_experiment(one), "")) for one in (spec, other))
    keys = dict.fromkeys([*here, *there])
    return [(k, here.get(k), there.get(k)) for k in keys if here.get(k) != there.get(k)]


def with_identity_mixture(spec: RunSpec) -> RunSpec:
    """Returns `spec` with the value of its mixture as the one that identifies the run, unless it
    has one from before, or no mixture. The mixture may then change, and pause sources, while the
    run continues."""
    if spec.data.mixture is None or spec.data.identity_mixture is not None:
        return spec
    first = spec_values(spec)["data"]["mixture"]
    return dataclasses.replace(spec, data=dataclasses.replace(spec.data, identity_mixture=first))


def _experiment(spec: RunSpec) -> dict[str, Any]:
    """Returns the part of a spec that identifies the experiment. A program is identified by its
    arguments and its folder, as it reads no other key."""
    if (command := spec.command) is not None:
        return {"command": {"arguments": list(command.arguments), "cwd": command.cwd}}
    values = earlier_versions.reduced(spec_values(spec), earlier_versions.ADDED)
    del values["name"]
    if (first := values["train"].pop("identity_steps", None)) is not None:
        values["train"]["steps"] = first
    if (mixture := values["data"].pop("identity_mixture", None)) is not None:
        values["data"]["mixture"] = mixture
    for path in _NOT_IDENTITY:
        *parents, last = path
        where = values
        for key in parents:
            where = where.get(key, {})  # a group that was added in a later release may be missing
        where.pop(last, None)
    return values


def _flat(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
