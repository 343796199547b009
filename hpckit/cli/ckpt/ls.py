"""`hpckit ckpt ls`, which lists checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.table import Table
from rich.text import Text

from checkpointing.format.store_records import CheckpointMark
from checkpointing.store.catalog import CheckpointInfo, list_checkpoints
from checkpointing.store.pins_and_labels import (
    labels_by_id,
    readable_marks,
    with_marked_metrics,
)
from hpckit.cli.ckpt.store_location import StoreLocation, opened
from hpckit.cli.common.command_output import (
    CommandOutput,
    clean,
    count,
    number,
    ratio,
    size,
    table,
    when,
)
from hpckit.cli.common.run_argument import JsonOption
from hpckit.cli.common.store_errors import DAMAGED, guarded, repair_advice
from hpckit.cli.common.store_options import PlaceArg, RunOption

COLORS = {"committed": "green", "partial": "yellow", "incomplete": "yellow"}  # others: red
CERTIFIED = "certified"
"""The word in a table for a checkpoint at whose step all ranks computed alike."""
UNUSABLE = ("damaged", "unreadable")
_NUMBERS = ("step", "stored", "raw", "ratio", "ranks", "tensors")

Labels = Mapping[tuple[str, str], list[str]]  # run and id -> the labels of the checkpoint


@guarded
def ls(place: PlaceArg, run: RunOption = None, json: JsonOption = False) -> int:
    """List checkpoints: committed, unfinished and damaged ones, of all runs in a store.

    Example: hpckit ckpt ls runs/gpt-1a2b3c4d

    Exit status 1 means that something is damaged or unreadable; everything else is listed.
    Tensors are not read; use verify for that.
    """
    out = CommandOutput(json)
    with opened(place, run) as at:
        with out.waiting("reading manifests"):
            infos = list_checkpoints(at.store, at.run, refused={})
            found = _read_marks(at, out)
            infos, labels = found.complete(infos), found.labels
            for info in infos:
                if info.certified:
                    labels.setdefault((info.run, info.id), []).append(CERTIFIED)
        _print(out, at, infos, labels)
        out.document(
            {
                "store": at.store.url,
                "checkpoints": [_plain(info, labels) for info in infos],
            }
        )
    is_whole = found.are_whole and not any(info.state in UNUSABLE for info in infos)
    return 0 if is_whole else DAMAGED


@dataclass
class _Marks:
    """The marks of all runs that are listed."""

    by_run: dict[str, Mapping[str, CheckpointMark]] = field(default_factory=dict)
    are_whole: bool = True

    @property
    def labels(self) -> dict[tuple[str, str], list[str]]:
        """The labels of checkpoints; the mark of an evaluation is shown by its metrics."""
        by_run = {run: labels_by_id(named) for run, named in self.by_run.items()}
        return {
            (run, id_): found for run, labels in by_run.items() for id_, found in labels.items()
        }

    def complete(self, infos: list[CheckpointInfo]) -> list[CheckpointInfo]:
        """Return checkpoints with the metrics that marks give them."""
        runs = {info.run: [one for one in infos if one.run == info.run] for info in infos}
        return [
            info
            for run, mine in runs.items()
            for info in with_marked_metrics(mine, self.by_run.get(run, {}))
        ]


def _read_marks(at: StoreLocation, out: CommandOutput) -> _Marks:
    found = _Marks()
    for run in at.runs if at.run is None else (at.run,):
        found.by_run[run], problems = readable_marks(at.store, run)
        found.are_whole = found.are_whole and not problems
        for problem in problems:
            out.note(f"warning: {problem}")
    return found


def _print(
    out: CommandOutput, at: StoreLocation, infos: list[CheckpointInfo], labels: Labels
) -> None:
    if not infos:
        out.line(f"no checkpoints in {at.store.url}")
    for i, run in enumerate(sorted({info.run for info in infos})):
        if i:
            out.line()
        out.line(f"run {run} in {at.store.url}")
        mine = [info for info in infos if info.run == run]
        out.table(_table(mine, labels, out.is_narrow))
        for info in mine:
            if info.problem:
                out.line(f"step {info.step} ({info.id}) is {info.state}: {info.problem}")
            if info.differing:
                what = clean(info.differing)
                out.line(f"step {info.step} ({info.id}): the ranks' replicas differed: {what}")
            if info.source:
                out.line(f"step {info.step} ({info.id}) was imported from {info.source}")
    if any(info.state == "damaged" for info in infos):
        out.line(repair_advice(at.text))
    if any(info.items for info in infos):
        out.dim(
            "stored: what a checkpoint refers to, shared or not, without the bases of its "
            f"differences; `hpckit ckpt du {at.text}` shows what they need together"
        )
    if at.is_guess:
        out.note(f"the store has {count(len(at.runs), 'run')}: --run shows others")


def _table(infos: list[CheckpointInfo], labels: Labels, is_narrow: bool) -> Table:
    is_twice = len({info.step for info in infos}) < len(infos)
    columns = ["step", *(["id"] if is_twice else [])]
    columns += ["saved", "state", "stored", "raw", "ratio", "ranks", "tensors"]
    columns += ["metrics"] if any(info.metrics for info in infos) else []
    columns += ["marks"] if any((info.run, info.id) in labels for info in infos) else []
    if is_narrow and columns[-1] != "tensors":  # metrics and marks need the room
        less = ("raw", "tensors", *(("ratio", "ranks") if is_twice else ()))
        columns = [name for name in columns if name not in less]
    rows = table(*columns, right=_NUMBERS, folded=("metrics", "marks"))
    for info in infos:
        cells = _cells(info) | {"marks": ", ".join(labels.get((info.run, info.id), []))}
        rows.add_row(*(cells[name] for name in columns))
    return rows


def _cells(info: CheckpointInfo) -> dict[str, str | Text]:
    return {
        "step": str(info.step),
        "id": info.id,
        "saved": when(info.created),
        "state": Text(info.state, COLORS.get(info.state, "red")),
        "stored": "" if info.state in UNUSABLE else size(info.bytes),
        "raw": size(info.raw_bytes) if info.raw_bytes else "",
        "ratio": ratio(info.raw_bytes, info.bytes) if info.raw_bytes else "",
        "ranks": str(info.world_size or ""),
        "tensors": str(info.tensors or ""),
        "metrics": clean(
            ", ".join(f"{name} {number(v)}" for name, v in sorted(info.metrics.items()))
        ),
    }


def _plain(info: CheckpointInfo, labels: Labels) -> dict[str, Any]:
    return {**asdict(info), "marks": labels.get((info.run, info.id), [])}
