"""How long to try to reach a store in the cloud: somebody is sitting there and waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from data import Sources

STORE_BUDGET_S = 15.0


def patience(url: str) -> dict[str, Any] | None:
    """What to open the store at `url` with."""
    return {"budget_s": STORE_BUDGET_S} if url.lower().startswith("s3") else None


def patient_sources() -> Sources:
    """What to open shards with."""
    from data import Sources
    from data.source.retry import Retry

    return Sources(retry=Retry(budget_s=STORE_BUDGET_S))
