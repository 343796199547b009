"""Time limits for reaching a store in interactive commands, as a person waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from data import Sources

STORE_BUDGET_S = 15.0


def interactive_store_options() -> dict[str, Any]:
    """Returns options to open any store with. A store that has answered once gets more time, so
    that a long command survives an outage."""
    return {"reach_s": STORE_BUDGET_S}


def interactive_sources() -> Sources:
    """Returns the sources to open shards with."""
    from data import Sources
    from data.source.retry import SourceRetryPolicy

    return Sources(retry=SourceRetryPolicy(budget_s=STORE_BUDGET_S))
