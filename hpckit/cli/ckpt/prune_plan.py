"""The plan of a prune: what it would remove, and how much space that would free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.text import Text

from checkpointing.format.object_keys import SaveId
from checkpointing.store.deletion.checkpoint_prune import PruneChoice
from checkpointing.store.inspection.space_usage import (
    ChunkReferences,
    FreedSpace,
    ItemOfSave,
    freed,
    measure,
    per_checkpoint,
)
from checkpointing.store.store import Store
from hpckit.cli.common.command_output import CommandOutput, clean, count, size, table


@dataclass(frozen=True)
class PrunePlan:
    """The choice for every checkpoint of a run."""

    choices: Sequence[PruneChoice]  # newest first
    alone: Mapping[SaveId, int]  # bytes that removing or reducing only this checkpoint frees
    freed: FreedSpace  # by the whole prune
    problems: Mapping[SaveId, str]  # checkpoints, of any run, that cannot be read

    def print(self, out: CommandOutput) -> None:
        rows = table(
            "step", "id", "fate", "frees", "why", right=("step", "frees"), folded=("fate", "why")
        )
        for choice in self.choices:
            frees = self.alone.get(choice.found.stored.save, 0)
            rows.add_row(
                str(choice.step),
                choice.id,
                fate(choice),
                size(frees) if touches(choice) else "",
                clean("; ".join(choice.decision.reasons)),
            )
        out.table(rows)
        for save, problem in self.problems.items():
            out.line(f"damaged: run {save.run}, step {save.step} ({save.id}): {problem}")
        if self.problems:
            out.line("what it needs is unknown: less than stated is freed, perhaps nothing")
        out.line(self._sum())

    def _sum(self) -> str:
        goes = sum(choice.decision.goes for choice in self.choices)
        loses = sum(bool(choice.drops) for choice in self.choices)
        if not goes and not loses:
            return f"all {count(len(self.choices), 'checkpoint')} stay"
        what = [count(goes, "checkpoint")] if goes else []
        what += [f"items of {loses:,}"] if loses else []
        rest = self.freed.bytes - self.freed.pack_bytes
        dead = f", {size(rest)} stay dead in other packs until `hpckit ckpt compact`"
        return (
            f"{' and '.join(what)} of {len(self.choices):,} are removed: "
            f"{size(self.freed.pack_bytes)} are freed with {count(self.freed.packs, 'pack')}"
            f"{dead if rest else ''}"
        )

    def plain(self) -> dict[str, Any]:
        return {
            "checkpoints": [
                {
                    "step": choice.step,
                    "id": choice.id,
                    "goes": choice.decision.goes,
                    "drops": list(choice.drops),
                    "reasons": list(choice.decision.reasons),
                    "frees": self.alone.get(choice.found.stored.save, 0),
                }
                for choice in self.choices
            ],
            "freed": asdict(self.freed),
            "problems": {f"{s.run}/{s.id}": text for s, text in self.problems.items()},
        }


def make_plan(store: Store, choices: Sequence[PruneChoice], out: CommandOutput) -> PrunePlan:
    """Read the references of all checkpoints of the store, and compute the space that would be
    freed."""
    with out.counting("reading tables", len(store.manifests())) as on_checkpoint:
        measured = measure(store, on_checkpoint)
    by_save = {choice.found.stored.save: choice for choice in choices}
    costs = {usage.save: usage.cost.alone for usage in per_checkpoint(measured.refs)}
    return PrunePlan(
        choices,
        {s: _alone(measured.refs, c, costs.get(s, 0)) for s, c in by_save.items() if touches(c)},
        freed(measured.refs, lambda owner: goes(owner, by_save.get(owner.save))),
        measured.problems,
    )


def touches(choice: PruneChoice) -> bool:
    return choice.decision.goes or bool(choice.drops)


def goes(owner: ItemOfSave, choice: PruneChoice | None) -> bool:
    """Returns whether this item of this checkpoint is removed."""
    return choice is not None and (choice.decision.goes or owner.item in choice.drops)


def _alone(refs: ChunkReferences, choice: PruneChoice, whole: int) -> int:
    """Return the bytes that would be freed if this choice were the only one."""
    if choice.decision.goes:
        return whole
    save = choice.found.stored.save
    return freed(refs, lambda owner: owner.save == save and goes(owner, choice)).bytes


def fate(choice: PruneChoice) -> Text:
    if choice.decision.goes:
        return Text("goes", "red")
    if choice.drops:
        return Text(f"keeps {', '.join(map(clean, choice.decision.items or ()))}", "yellow")
    return Text("stays", "green")
