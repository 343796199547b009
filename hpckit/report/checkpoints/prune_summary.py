"""A prune that is planned, as sentences, and policies that name nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from checkpointing.retention import Best, KeepPolicy, Only
from checkpointing.store.deletion.checkpoint_prune import PruneChoice
from checkpointing.store.deletion.prune_preview import PrunePlan
from hpckit.text.quantities import count, listing, size


def fate_of(choice: PruneChoice) -> str:
    """Return what would happen to a checkpoint: `goes`, `stays`, or which items it keeps."""
    if choice.decision.goes:
        return "goes"
    return f"keeps {', '.join(choice.decision.items or ())}" if choice.drops else "stays"


def describe_plan(plan: PrunePlan) -> str:
    """Return what the whole prune removes and frees."""
    goes = sum(choice.decision.goes for choice in plan.choices)
    loses = sum(bool(choice.drops) for choice in plan.choices)
    if not goes and not loses:
        return f"all {count(len(plan.choices), 'checkpoint')} stay"
    what = [count(goes, "checkpoint")] if goes else []
    what += [f"items of {loses:,}"] if loses else []
    rest = plan.freed.bytes - plan.freed.pack_bytes
    dead = f", {size(rest)} stay dead in other packs until `hpckit ckpt compact`"
    verb = "is" if goes == 1 and not loses else "are"
    return (
        f"{' and '.join(what)} of {len(plan.choices):,} {verb} removed: "
        f"{size(plan.freed.pack_bytes)} are freed with {count(plan.freed.packs, 'pack')}"
        f"{dead if rest else ''}"
    )


def unknown_names(policies: Sequence[KeepPolicy], choices: Sequence[PruneChoice]) -> str | None:
    """Return a metric or item of the policies that no checkpoint has: with a typo, a policy would
    keep nothing."""
    documents = [choice.found.document for choice in choices]
    metrics = sorted({name for choice in choices for name in choice.metrics})
    items = sorted({name for d in documents for name in d.items})
    for policy in policies:
        inner = policy.policy if isinstance(policy, Only) else policy
        if isinstance(inner, Best) and inner.metric not in metrics:
            there = listing(metrics) or "none at all"
            return f"no checkpoint has a metric {inner.metric!r} (there is {there})"
        for item in policy.items if isinstance(policy, Only) else ():
            if item not in items:
                return f"no checkpoint has an item {item!r} (there is {listing(items)})"
    return None
