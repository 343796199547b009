"""Writes a file of `conf/cluster/`, with the source of each key. Pure."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from datetime import date

import yaml

from hpckit.init.site_choice import SiteChoice, SiteKey, Value
from hpckit.init.site_facts import SiteFacts
from hpckit.slurm.cluster_config import Record, describe_gpus, gpu_kinds_of_nodes
from hpckit.text.quantities import count

_WIDTH = 100
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9/_.-]*")
_NOT_TEXT = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def site_name(cluster: str) -> str:
    """Return a valid name of an option from Slurm's name of the cluster."""
    name = re.sub(r"[^A-Za-z0-9_-]+", "-", cluster).strip("-_").lower()
    return name if name and name != "null" else "site"


def is_name(text: str) -> bool:
    """Returns whether a text is a valid name of an option."""
    return _NAME.fullmatch(text) is not None


def render(name: str, site: SiteChoice, facts: SiteFacts, today: date) -> str:
    """Return the text of the file `conf/cluster/<name>.yaml`."""
    lines = [*_head(name, site, facts, today), "", "defaults:", "  - slurm", "  - _self_", ""]
    for key in site.keys:
        if not key.is_slurm:
            lines += _lines(key, "")
    lines.append("slurm:")
    for key in site.keys:
        if key.is_slurm:
            lines += _lines(key, "  ")
    return "\n".join(lines) + "\n"


def _head(name: str, site: SiteChoice, facts: SiteFacts, today: date) -> Iterator[str]:
    version = facts.config.get("SLURM_VERSION", "of an unknown version")
    yield f"# Written by `hpckit init` on {today}, from the settings of Slurm {_shown(version)}."
    yield (
        "# found: read from Slurm. assumed: check it. All other keys are as in hpckit's "
        "cluster=slurm;"
    )
    yield "# all keys: hpckit launch --help keys cluster"
    yield "#"
    whole = f" launch.nproc_per_node={site.gpus[1]}" if site.gpus else ""
    yield f"#   hpckit doctor cluster={name} --node"
    yield f"#   hpckit launch cluster={name} launch.nodes=2{whole} experiment=..."
    yield "#"
    for one in facts.partitions:
        yield f"# partition {_shown(_in_words(one, facts))}"


def _in_words(one: Record, facts: SiteFacts) -> str:
    name = one.get("PartitionName", "?")
    nodes = [node for node in facts.nodes if name in node.get("Partitions", "").split(",")]
    gpus = ", ".join(describe_gpus(kind) for kind, _ in gpu_kinds_of_nodes(nodes)) or "no GPUs"
    limit, state = one.get("MaxTime", "?"), one.get("State", "?")
    return f"{name}: {count(len(nodes), 'node')} with {gpus}, at most {limit}, {state}"


def _lines(key: SiteKey, indent: str) -> list[str]:
    line = f"{indent}{key.name}: {scalar(key.value)}"
    comment = f"{key.how}: {_shown(key.why)}"
    if len(line) + len(comment) + 3 <= _WIDTH:
        return [f"{line} # {comment}"]
    room = _WIDTH - len(indent) - 2
    folded = textwrap.wrap(comment, room, break_long_words=False, break_on_hyphens=False)
    return [*(f"{indent}# {part}" for part in folded), line]


def scalar(value: Value) -> str:
    """Format a value as YAML; text that could be read as another type is quoted."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _NOT_TEXT:
        return value
    if isinstance(value, str):
        return yaml.safe_dump(value, default_style='"', width=1 << 20).strip()
    return json.dumps(value)


def _shown(text: str) -> str:
    """Format a value on one line of a comment."""
    return "".join(c if c.isprintable() else "?" for c in text)
