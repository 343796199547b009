"""`hpckit ckpt verify`, which checks whether checkpoints are intact."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from checkpointing.format.object_keys import SaveId
from checkpointing.format.replica_differences import summary
from checkpointing.store.catalog import CatalogEntry, committed
from checkpointing.store.deletion.deletion_marks import packs_marked_for_deletion
from checkpointing.store.inspection.integrity_check import (
    IntegrityProblem,
    Level,
    together,
    verify_all,
)
from checkpointing.store.inspection.space_usage import UnneededSpace, measure, unneeded
from hpckit.cli.ckpt.checkpoint_selection import choose_checkpoint
from hpckit.cli.ckpt.read_lease import is_there, read_lease
from hpckit.cli.ckpt.store_location import StoreLocation, opened
from hpckit.cli.common.command_output import CommandOutput, clean, count, decimal, size, speed, took
from hpckit.cli.common.run_argument import JsonOption
from hpckit.cli.common.store_errors import DAMAGED, CommandUsageError, guarded, repair_advice
from hpckit.cli.common.store_options import MaybeStepArg, PlaceArg, RunOption

MOST = 20  # problems of one checkpoint that are printed; --json has all


@dataclass
class VerifiedCheckpoint:
    """The result for one checkpoint."""

    save: SaveId
    bytes: int  # stored
    problems: list[IntegrityProblem]
    is_gone: bool = False  # removed while it was read
    certified: str = ""  # as of `ManifestHeader`


@guarded
def verify_them(
    place: PlaceArg,
    step: MaybeStepArg = None,
    run: RunOption = None,
    level: Annotated[
        Level,
        typer.Option(
            help="quick: the tables of the packs; crc: checksums of all stored bytes; full: decode "
            "everything and compare hashes."
        ),
    ] = "full",
    all_: Annotated[
        bool, typer.Option("--all", help="Verify all checkpoints, as without STEP.")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Read checkpoints again and print all damage by object, tensor and step.

    Example: hpckit ckpt verify s3://bucket/ckpts latest --level crc --run gpt-1a2b3c4d

    Data that no checkpoint needs is not read; without STEP, its size is printed.
    """
    out = CommandOutput(json)
    if step is not None and all_:
        raise CommandUsageError(f"--all and the step {step!r} are both given: leave one out")
    with opened(place, run) as at:
        found, unreadable = _wanted(at, step, out)
        started_s = time.monotonic()
        checked, read = _check_all(at, found, level, out)
        seconds = time.monotonic() - started_s
        left_out = _left_out(at, out) if step is None else None
    broken = [_manifest_problem(save, text) for save, text in unreadable.items()]
    for problem in broken:
        out.line(f"damaged: {problem}")
    _print_sum(out, at, checked, len(broken), level, _speed(level, read, seconds))
    if left_out is not None:
        out.line(left_out_message(left_out))
    body = _plain(at, checked, broken, level, seconds)
    out.document({**body, "left_out": None if left_out is None else asdict(left_out)})
    return DAMAGED if broken or any(one.problems for one in checked) else 0


def _left_out(at: StoreLocation, out: CommandOutput) -> UnneededSpace:
    with out.counting("reading tables", len(at.store.manifests())) as on_checkpoint:
        return unneeded(measure(at.store, on_checkpoint), packs_marked_for_deletion(at.store))


def left_out_message(it: UnneededSpace) -> str:
    """Describe the data of the store that was not checked, because no checkpoint needs it."""
    if not it.bytes:
        return "left out of the check: nothing; checkpoints need every byte of the store's packs"
    waiting = (
        f", {size(it.condemned_bytes)} of these will be deleted by prune"
        if it.condemned_bytes
        else ""
    )
    packs = count(it.packs, "pack")
    parts = [f"{size(it.pack_bytes)} in {packs} of running, unfinished or removed saves{waiting}"]
    parts = parts if it.packs else []
    parts += [f"{size(it.dead_bytes)} inside packs that are needed"] if it.dead_bytes else []
    most = "at most " if it.is_most else ""
    why = " (what damaged checkpoints need is unknown)" if it.is_most else ""
    return (
        f"left out of the check: {most}{size(it.bytes)} that no checkpoint needs{why}: "
        f"{'; '.join(parts)}"
    )


def _wanted(
    at: StoreLocation, step: str | None, out: CommandOutput
) -> tuple[Sequence[CatalogEntry], dict[SaveId, str]]:
    if step is not None:
        return [choose_checkpoint(at, step, out.note).found], {}
    found, unreadable = committed(at.store, at.run)
    return sorted(found, key=lambda f: f.stored.save), unreadable


def _check_all(
    at: StoreLocation, found: Sequence[CatalogEntry], level: Level, out: CommandOutput
) -> tuple[list[VerifiedCheckpoint], int]:
    """Return the results, and how many bytes were checked for all of them."""
    checked: list[VerifiedCheckpoint] = []
    total = 0
    for group in together(found):
        of_group, dealt_with = _check(at, group, level, out)
        checked += of_group
        total += dealt_with
    return checked, total


def _check(
    at: StoreLocation, found: Sequence[CatalogEntry], level: Level, out: CommandOutput
) -> tuple[list[VerifiedCheckpoint], int]:
    done_bytes: list[int] = []
    with ExitStack() as stack:
        there = [one for one in found if _hold(stack, at, one, out)]
        total = sum(one.stored_bytes for one in there)
        advance = stack.enter_context(out.progress(_title(found), total))

        def on_bytes(n: int) -> None:
            done_bytes.append(n)
            advance(n)

        answers = verify_all(at.store, there, level, on_bytes)
    problems = {one.stored.save: texts for one, texts in zip(there, answers, strict=True)}
    return [_checked(at, one, problems.get(one.stored.save), out) for one in found], sum(done_bytes)


def _hold(stack: ExitStack, at: StoreLocation, found: CatalogEntry, out: CommandOutput) -> bool:
    """Take a lease on a checkpoint until the stack ends; return False if it was removed already."""
    try:
        stack.enter_context(read_lease(at.store, found, out.note))
    except CommandUsageError as error:  # it was pruned meanwhile, so it is not damaged
        out.note(str(error))
        return False
    return True


def _title(found: Sequence[CatalogEntry]) -> str:
    first, last = found[0].stored.save.step, found[-1].stored.save.step
    return f"step {first}" if len(found) == 1 else f"steps {first} to {last}"


def _checked(
    at: StoreLocation,
    found: CatalogEntry,
    problems: list[IntegrityProblem] | None,
    out: CommandOutput,
) -> VerifiedCheckpoint:
    """Check one checkpoint and print the result."""
    save, total = found.stored.save, found.stored_bytes
    if problems is None:
        return VerifiedCheckpoint(save, 0, [], is_gone=True)
    if problems and not is_there(at.store, found):
        out.note(f"step {save.step} ({save.id}) was removed while it was being read")
        return VerifiedCheckpoint(save, 0, [], is_gone=True)
    run = f"run {save.run}, " if at.run is None and len(at.runs) > 1 else ""
    verdict = count(len(problems), "problem") if problems else "ok"
    certified = found.document.header.certified
    mark = f", certified ({clean(certified)})" if certified else ""
    out.line(f"{run}step {save.step} ({save.id}): {verdict}, {size(total)}{mark}")
    if (marked := found.document.header.marked) is not None:
        differing = clean(summary(marked))
        out.line(f"  intact, but the ranks' replicas differed when it was saved: {differing}")
    for problem in problems[:MOST]:
        out.line(f"  damaged: {problem}")
    if len(problems) > MOST:
        out.line(f"  and {len(problems) - MOST:,} more: --json lists them")
    return VerifiedCheckpoint(save, total, problems, certified=certified)


def _manifest_problem(save: SaveId, text: str) -> IntegrityProblem:
    return IntegrityProblem(save.step, save.id, "", text)


def _print_sum(
    out: CommandOutput,
    at: StoreLocation,
    checked: Sequence[VerifiedCheckpoint],
    broken: int,
    level: Level,
    speed: str,
) -> None:
    if not checked and not broken:
        out.line(f"no checkpoints in {at.store.url}")
        return
    bad = broken + sum(bool(one.problems) for one in checked)
    looked = count(len(checked) + broken, "checkpoint")
    verdict = f"{bad:,} damaged" if bad else "all whole"
    out.line(f"{looked} checked ({level}): {verdict}{speed}")
    if bad:
        out.line(repair_advice(at.text))


def _speed(level: Level, read: int, seconds: float) -> str:
    if level == "quick":
        return ""
    rate = speed(read, seconds)
    return f", {decimal(read)} in {took(seconds)}: {rate}" if rate else f", {decimal(read)}"


def _plain(
    at: StoreLocation,
    checked: Sequence[VerifiedCheckpoint],
    broken: Sequence[IntegrityProblem],
    level: Level,
    seconds: float,
) -> dict[str, Any]:
    return {
        "store": at.store.url,
        "level": level,
        "seconds": seconds,
        "bytes": sum(one.bytes for one in checked),
        "checkpoints": [
            {
                "run": one.save.run,
                "step": one.save.step,
                "id": one.save.id,
                "bytes": one.bytes,
                "removed_meanwhile": one.is_gone,
                "certified": one.certified,
                "problems": [asdict(problem) for problem in one.problems],
            }
            for one in checked
        ],
        "unreadable": [asdict(problem) for problem in broken],
    }
