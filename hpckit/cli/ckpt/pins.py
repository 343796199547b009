"""`hpckit ckpt pin` and `unpin`: keep a checkpoint whatever the policies say."""

from __future__ import annotations

from typing import Annotated

import typer

from checkpointing.store import marks
from hpckit.cli.ckpt.failures import guarded
from hpckit.cli.ckpt.options import JsonOption, PlaceArg, RunOption, StepArg
from hpckit.cli.ckpt.output import Out, listing
from hpckit.cli.ckpt.place import opened
from hpckit.cli.ckpt.select import choose


@guarded
def pin(
    place: PlaceArg,
    step: StepArg,
    run: RunOption = None,
    why: Annotated[str, typer.Option(metavar="TEXT", help="For those who wonder later.")] = "",
    json: JsonOption = False,
) -> None:
    """Keep a checkpoint until it is unpinned: no prune removes it or items of it.

    Example: hpckit ckpt pin runs/gpt-1a2b3c4d 1000 --why paper
    """
    out = Out(json)
    with opened(place, run) as at:
        chosen = choose(at, step, out.note)
        marks.pin(at.store, chosen.save, why)
        out.line(f"pinned step {chosen.save.step} ({chosen.save.id}) of run {chosen.run}")
        out.document({"run": chosen.run, "id": chosen.save.id, "pinned": True, "why": why})


@guarded
def unpin(place: PlaceArg, step: StepArg, run: RunOption = None, json: JsonOption = False) -> None:
    """Leave a checkpoint to the policies again.

    Example: hpckit ckpt unpin runs/gpt-1a2b3c4d 1000
    """
    out = Out(json)
    with opened(place, run) as at:
        chosen = choose(at, step, out.note)
        id_ = chosen.save.id
        was_pinned = id_ in marks.pins(at.store, chosen.run)
        marks.unpin(at.store, chosen.save)
        left = marks.marks(at.store, chosen.run).items()
        still = [name for name, mark in left if mark.id == id_ and mark.pinned]
        what = f"step {chosen.save.step} ({id_}) of run {chosen.run}"
        if still:
            out.line(f"{what} is still pinned, by the mark {listing(still)}")
        else:
            out.line(f"unpinned {what}" if was_pinned else f"{what} was not pinned")
        out.document({"run": chosen.run, "id": id_, "pinned": bool(still), "was": was_pinned})
