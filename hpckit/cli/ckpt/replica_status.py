"""The replicas in `hpckit ckpt status`: those that a node holds for others, and its own on other
nodes."""

from __future__ import annotations

from typing import Any

from hpckit.cli.common.command_output import clean, count, size


def replica_summary(replication: dict[str, Any] | None) -> str:
    """Summarize the replicas as part of a line; empty if the service does not replicate.

    Args:
        replication: this part of a service's status.
    """
    if replication is None:
        return ""
    parts = [_held(replication["held"]), _sent(replication["sent"])]
    parts += [
        f"{replication[name]} {what}"
        for name, what in (
            ("no_room", "refused because memory is short"),
            ("strangers", "connections refused"),
            ("taken_over", "ranks taken over"),
        )
        if replication[name]
    ]
    return ", ".join(part for part in parts if part)


def problem(replication: dict[str, Any] | None) -> str | None:
    """Return why no other node has the node's snapshots; None: another node has them, or need
    not."""
    sent = replication["sent"] if replication is not None else None
    if sent is None or sent["error"] is None:
        return None
    return f"no replicas at node {clean(sent['to'])}: {sent['error']}"


def _held(held: list[dict[str, Any]]) -> str:
    snapshots = sum(len(one["steps"]) for one in held)
    if not held:
        return ""
    nodes = ", ".join(sorted({clean(one["node"]) for one in held}))
    memory = size(sum(one["bytes"] for one in held))
    return f"holds {count(snapshots, 'snapshot')} of {nodes} in {memory}"


def _sent(sent: dict[str, Any] | None) -> str:
    if sent is None:
        return ""
    to = clean(sent["to"])
    if sent["step"] is None:
        return f"no replica at {to} yet"
    behind = f", {sent['lag_s']:.0f} s behind" if sent["lag_s"] else ""
    lost = ", ".join(f"{sent[name]} {name}" for name in ("skipped", "overtaken") if sent[name])
    return f"step {sent['step']} also at {to}{behind}{f' ({lost})' if lost else ''}"
