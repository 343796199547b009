"""`hpckit ckpt pin` and `unpin`, which keep a checkpoint independently of the retention policies,
or stop doing so."""

from __future__ import annotations

from typing import Annotated

import typer

from checkpointing.errors import DamagedError, FormatError
from checkpointing.store import pins_and_labels
from checkpointing.store.store import Store
from hpckit.cli.ckpt.checkpoint_selection import SelectedCheckpoint, choose_checkpoint
from hpckit.cli.ckpt.store_location import opened
from hpckit.cli.common.command_output import CommandOutput, listing
from hpckit.cli.common.run_argument import JsonOption
from hpckit.cli.common.store_errors import guarded
from hpckit.cli.common.store_options import PlaceArg, RunOption, StepArg


@guarded
def pin(
    place: PlaceArg,
    step: StepArg,
    run: RunOption = None,
    why: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Reason to record; it replaces an earlier one.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Keep a checkpoint until it is unpinned: no prune removes it or any of its items.

    Example: hpckit ckpt pin runs/gpt-1a2b3c4d 1000 --why paper

    Pinning a pinned checkpoint again without --why keeps its reason.
    """
    out = CommandOutput(json)
    with opened(place, run) as at:
        chosen = choose_checkpoint(at, step, out.note)
        before = _before(at.store, chosen, out)
        reason = why if why is not None else before or ""
        pins_and_labels.pin(at.store, chosen.save, reason)
        what = f"step {chosen.save.step} ({chosen.save.id}) of run {chosen.run}"
        out.line(pin_message(what, before, reason))
        out.document(
            {"run": chosen.run, "id": chosen.save.id, "pinned": True, "why": reason, "was": before}
        )


def _before(store: Store, chosen: SelectedCheckpoint, out: CommandOutput) -> str | None:
    """Return the reason of an earlier pin; None if the checkpoint is not pinned."""
    try:
        mark = pins_and_labels.pin_of(store, chosen.save)
    except (DamagedError, FormatError) as error:
        out.note(f"warning: the earlier pin is replaced, and its reason is lost: {error}")
        return None
    return None if mark is None else mark.why


def pin_message(what: str, before: str | None, reason: str) -> str:
    """Describe what a pin did.

    Args:
        before: the reason of the previous pin; None if there was none.
    """
    now = f"reason {reason!r}" if reason else "no reason"
    if before is None:
        return f"pinned {what}: {reason}" if reason else f"pinned {what}"
    if before == reason:
        return f"{what} was already pinned: {now} stays"
    if not before:
        return f"{what} was already pinned, without a reason: it now has {now}"
    return f"{what} was already pinned: {now} replaces {before!r}"


@guarded
def unpin(place: PlaceArg, step: StepArg, run: RunOption = None, json: JsonOption = False) -> None:
    """Let the retention policies decide about a checkpoint again.

    Example: hpckit ckpt unpin runs/gpt-1a2b3c4d 1000
    """
    out = CommandOutput(json)
    with opened(place, run) as at:
        chosen = choose_checkpoint(at, step, out.note)
        id_ = chosen.save.id
        was_pinned = id_ in pins_and_labels.pins(at.store, chosen.run)
        pins_and_labels.unpin(at.store, chosen.save)
        left = pins_and_labels.marks(at.store, chosen.run).items()
        still = [name for name, mark in left if mark.id == id_ and mark.pinned]
        what = f"step {chosen.save.step} ({id_}) of run {chosen.run}"
        if still:
            out.line(f"{what} is still pinned, by the mark {listing(still)}")
        else:
            out.line(f"unpinned {what}" if was_pinned else f"{what} was not pinned")
        out.document({"run": chosen.run, "id": id_, "pinned": bool(still), "was": was_pinned})
