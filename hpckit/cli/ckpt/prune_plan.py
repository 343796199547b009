"""The output of the plan of a prune: what it would remove, and how much space that would free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from checkpointing.store.deletion.checkpoint_prune import PruneChoice
from checkpointing.store.deletion.prune_preview import PrunePlan, is_changed, plan_prune
from checkpointing.store.store import Store
from hpckit.cli.common.command_output import CommandOutput, clean, size, table
from hpckit.report.checkpoints.prune_summary import describe_plan, fate_of


def make_plan(store: Store, choices: Sequence[PruneChoice], out: CommandOutput) -> PrunePlan:
    """Compute the plan, and show how far that is."""
    with out.counting("reading tables", len(store.manifests())) as on_checkpoint:
        return plan_prune(store, choices, on_checkpoint)


def print_plan(plan: PrunePlan, out: CommandOutput) -> None:
    """Print a line for each checkpoint, and what the whole prune frees."""
    rows = table(
        "step", "id", "fate", "frees", "why", right=("step", "frees"), folded=("fate", "why")
    )
    for choice in plan.choices:
        frees = plan.alone.get(choice.found.stored.save, 0)
        rows.add_row(
            str(choice.step),
            choice.id,
            _fate(choice),
            size(frees) if is_changed(choice) else "",
            clean("; ".join(choice.decision.reasons)),
        )
    out.table(rows)
    for save, problem in plan.problems.items():
        out.line(f"damaged: run {save.run}, step {save.step} ({save.id}): {problem}")
    if plan.problems:
        out.line("what it needs is unknown: less than stated is freed, perhaps nothing")
    out.line(describe_plan(plan))


def plan_record(plan: PrunePlan) -> dict[str, Any]:
    """Return the plan as JSON values."""
    return {
        "checkpoints": [
            {
                "step": choice.step,
                "id": choice.id,
                "goes": choice.decision.goes,
                "drops": list(choice.drops),
                "reasons": list(choice.decision.reasons),
                "frees": plan.alone.get(choice.found.stored.save, 0),
            }
            for choice in plan.choices
        ],
        "freed": asdict(plan.freed),
        "problems": {f"{s.run}/{s.id}": text for s, text in plan.problems.items()},
    }


def _fate(choice: PruneChoice) -> Text:
    colour = "red" if choice.decision.goes else "yellow" if choice.drops else "green"
    return Text(clean(fate_of(choice)), colour)
