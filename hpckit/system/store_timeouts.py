"""How long to try to reach a store that has not answered: somebody is sitting there and waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from data import Sources

STORE_BUDGET_S = 15.0


def interactive_store_options() -> dict[str, Any]:
    """Options to open a store with, wherever it is. One that has answered once is given more time,
    so that a long command survives an outage."""
    return {"reach_s": STORE_BUDGET_S}


def interactive_sources() -> Sources:
    """What to open shards with."""
    from data import Sources
    from data.source.retry import Retry

    return Sources(retry=Retry(budget_s=STORE_BUDGET_S))
