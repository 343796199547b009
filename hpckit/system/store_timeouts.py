"""Time limits for access to a store in interactive commands, for which a person waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from data import Sources

STORE_BUDGET_S = 15.0


def interactive_store_options() -> dict[str, Any]:
    """Returns the options with which an interactive command opens a store. The limit holds until
    the store has answered once, so that a long command survives an outage."""
    return {"reach_s": STORE_BUDGET_S}


def interactive_sources() -> Sources:
    """Returns the sources with which an interactive command opens shards. The limit holds until
    the host has answered once, and leaves time for two attempts."""
    from data import Sources
    from data.source.retry import SourceRetryPolicy

    return Sources(retry=SourceRetryPolicy(reach_s=STORE_BUDGET_S), stall_s=STORE_BUDGET_S / 2)
