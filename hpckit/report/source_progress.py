"""How far the sources of a mixture have been read, and how their weights have changed, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hpckit.events.schema import Event, MixtureChanged, MixtureLogged


def newest_sources(events: Sequence[Event], most: int | None = None) -> dict[str, dict[str, Any]]:
    """Return the newest progress of each source by name, of at most `most` steps; empty without a
    mixture."""
    for event in reversed(events):
        if isinstance(event, MixtureLogged) and (most is None or event.step <= most):
            return {
                name: fields
                for name, fields in event.sources.items()
                if isinstance(fields, dict) and {"weight", "samples", "epochs"} <= fields.keys()
            }
    return {}


def describe_source(name: str, fields: Mapping[str, Any]) -> str:
    """Describe the progress of one source."""
    parts = [
        f"{name}: {fields['samples']:,} samples ({fields['epochs']:.3g} epochs)",
        f"{fields['tokens']:,} tokens" if "tokens" in fields else "",
        f"loss {fields['loss']:.4g}" if "loss" in fields else "",
        f"{fields['weight']:.1%} of the samples to come" if fields["weight"] else "paused",
    ]
    return ", ".join(filter(None, parts))


def describe_change(event: MixtureChanged) -> str:
    """Describe a change of weights."""
    at = event.position
    where = "from there on" if at is None else f"from sample {at:,} of the stream on"
    cause = "the run resumed with other weights" if event.reason == "resume" else "a stage began"
    shares = (
        f"{name} {event.before.get(name, 0):.1%} -> {share:.1%}"
        for name, share in event.after.items()
    )
    return f"step {event.step:,}: {cause}, {where}: {', '.join(shares)}"
