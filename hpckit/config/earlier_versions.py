"""Specs of earlier releases, and the values that keys had before they could be set.

A later release continues a run that an earlier one has started, and the same command finds it: a
key with the value that it implicitly had before it was added is left out of a run's identity.
`hpckit.config.renamed_keys` has the keys whose names changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

VERSION = 2
"""Version of stored specs. Specs of version 1 have no `VERSION_KEY`, and the earlier names of
`hpckit.config.renamed_keys`."""
VERSION_KEY = "spec_version"
"""Key of a stored spec that holds its version. A release that does not know it refuses the spec."""


@dataclass(frozen=True)
class AddedKey:
    """A key, or a group with all its keys, that was added after 0.1.0."""

    key: str
    """Path with dots."""
    value: Any
    """The value that implies the behaviour of runs before the key was added."""
    kind: str | None = None
    """The `kind` of the group that has the key; None: all kinds."""


_KINDS = ["verdict", "done", "no_progress", "degraded"]
_NO_WEBHOOK: dict[str, Any] = {"url_env": None, "url_file": None, "kinds": _KINDS}
_NO_ALERTS: dict[str, Any] = {
    **dict.fromkeys(("slack", "mattermost", "webhook"), _NO_WEBHOOK),
    "email": {"to": [], "sender": None, "program": "sendmail", "kinds": _KINDS},
    "repeat_minutes": 60.0,
    "max_per_hour": 20,
}

_NO_EVAL: dict[str, Any] = {
    **dict.fromkeys(("every", "entry", "metric")),
    "item": "model",
    "mode": "max",
    "backlog": "each",
    "max_pending": 4,
    "retries": 2,
    "keep_hours": 24.0,
    "nproc_per_node": 1,
    "time_limit": "01:00:00",
    "nice": 10,
    "slurm": {
        **dict.fromkeys(("partition", "account", "qos", "constraint", "cpus_per_node", "memory")),
        "nice": 1000,
        "options": {},
    },
}

ADDED: tuple[AddedKey, ...] = (
    AddedKey("hang.start_s", None),
    AddedKey("hang.validate_s", None),
    AddedKey("hang.save_s", None),
    AddedKey("data.cache_local", False),
    AddedKey("data.check", "auto"),
    AddedKey("checkpoint.check_replicas", 1),
    AddedKey("checkpoint.certify", None),
    AddedKey("checkpoint.may_differ", []),
    AddedKey("command", None),
    AddedKey("data.dtype", None),
    AddedKey("data.end_of_text", None),
    AddedKey("data.column", None),
    AddedKey("command.tensorboard_dir", None),
    AddedKey("hang.output_s", None),
    AddedKey("retry.jobs_without_checkpoint", None),
    AddedKey("retry.node_hours_without_checkpoint", None),
    AddedKey("cluster.slurm.pass_environment", []),
    AddedKey("train.identity_steps", None),
    AddedKey("alerts", _NO_ALERTS),
    AddedKey("health.deep", None),
    AddedKey("cluster.slurm.suspects", None),
    AddedKey(
        "heal",
        {
            "on_spike": None,
            "deviations": 8.0,
            "window": 128,
            "patience": 3,
            "before": 0,
            "most": 3,
            "within": 1000,
        },
    ),
    AddedKey("data.remix_every", 0),
    AddedKey("elastic.evict_stragglers", None),
    AddedKey("elastic.evict_most", 2),
    AddedKey("elastic.evict_within_hours", 24.0),
    AddedKey("elastic.evict_evidence_minutes", 10.0),
    AddedKey("eval", _NO_EVAL),
    AddedKey("data.mixture", None),
    AddedKey("data.identity_mixture", None),
    AddedKey("data.balance", None),
    AddedKey("train.batch_ramp", None),
    AddedKey("train.sequence_ramp", None),
    AddedKey("optim.schedule_unit", "steps"),
    AddedKey("data.grow", "refuse"),
    AddedKey("data.cache_peers", False),
    AddedKey("debug.profile.costs", False),
)
"""The added keys, in the order of their addition. No key may be removed from here or from
the spec, as runs that stored the key could not continue."""


def completed(values: Mapping[str, Any], added: Iterable[AddedKey]) -> dict[str, Any]:
    """Returns a spec's `values` with the added keys that it was stored without."""
    whole = deepcopy(dict(values))
    for new in added:
        group, name = group_of(new.key, whole, new.kind)
        if group is not None and name not in group:
            group[name] = deepcopy(new.value)
    return whole


def reduced(values: Mapping[str, Any], added: Iterable[AddedKey]) -> dict[str, Any]:
    """Returns `values` without added keys whose values equal the behaviour before their
    addition."""
    rest = deepcopy(dict(values))
    for new in reversed(tuple(added)):
        group, name = group_of(new.key, rest, new.kind)
        if group is not None and name in group and group[name] == new.value:
            del group[name]
    return rest


def absent_keys(stored: Mapping[str, Any]) -> list[AddedKey]:
    """Returns the added keys that a stored spec does not have."""
    values, found = dict(stored), []
    for new in ADDED:
        group, name = group_of(new.key, values, new.kind)
        if group is None or name not in group:
            found.append(new)
    return found


def group_of(
    key: str, values: dict[str, Any], kind: str | None = None
) -> tuple[dict[str, Any] | None, str]:
    """Returns the group of a key in `values`, or None if no group may have the key, and the key's
    name in the group.

    Args:
        kind: the `kind` that the group must have; None: any.
    """
    *parents, name = key.split(".")
    group: Any = values
    for parent in parents:
        group = group.get(parent) if isinstance(group, dict) else None
    if not isinstance(group, dict) or (kind is not None and group.get("kind") != kind):
        return None, name
    return group, name
