"""The content of a page as JSON. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from hpckit.report.page.page_content import PageContent
from hpckit.report.page.page_sections import alerts
from hpckit.report.page.run_comparison import differences, labels
from hpckit.report.page.run_family import family_record
from hpckit.report.page.time_spent import parts_of
from hpckit.report.performance.speed_report import speed_record
from hpckit.text.json_values import plain

HEAD = {"written_by": "hpckit report"}
MARK = json.dumps(HEAD)[1:-1]
"""Text that identifies a document of hpckit's."""


def as_json(runs: Sequence[PageContent]) -> str:
    """Return a document with the record of one run, or with `runs` of several and the differences
    of their configs; numbers that are not finite become strings."""
    if len(runs) == 1:
        body = {**HEAD, **record(runs[0])}
    else:
        document = {"names": labels(runs), "config": differences(runs)}
        body = {**HEAD, **document, "runs": [record(it) for it in runs]}
    return json.dumps(plain(body), indent=2, allow_nan=False) + "\n"


def record(it: PageContent) -> dict[str, Any]:
    """Return the record of one run; times are seconds since the epoch."""
    overview, history = it.overview, it.history
    return {
        "run": overview.run.name,
        "path": str(overview.run.path),
        "verdict": overview.verdict,
        **history.record(),
        **speed_record(history, overview.spec),
        "status": overview.record(),
        "as_of": it.now,
        "wall_s": history.finished - history.started,
        "went_into": {part.name: part.value for part in parts_of(it)},
        "cost": it.cost.record(),
        "why": it.answer.record(),
        "alerts": list(alerts(it)),
        "curves": {
            name: asdict(curve)
            for name, curve in (
                ("loss", it.loss),
                ("smoothed", it.smoothed),
                ("again", it.again),
                ("validation", it.validation),
                ("speed", it.speed),
                ("learning_rate", it.rate),
                ("gradient_norm", it.norm),
                *it.evaluation,
            )
        },
        "saved": [{**asdict(one), "reuse": one.reuse} for one in it.saved],
        "intake": asdict(it.loader_totals) if it.loader_totals else None,
        "findings": [asdict(one) for one in it.findings],
        "damage": asdict(it.damage),
        "family": family_record(it.family),
    }
