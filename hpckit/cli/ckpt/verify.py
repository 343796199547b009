"""`hpckit ckpt verify`: whether checkpoints are whole."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer

from checkpointing.format.names import Save
from checkpointing.store.catalog import Found, committed
from checkpointing.store.verify import Level, Problem, verify
from hpckit.cli.ckpt.failures import DAMAGED, RefusedError, guarded
from hpckit.cli.ckpt.holding import held, is_there
from hpckit.cli.ckpt.options import JsonOption, MaybeStepArg, PlaceArg, RunOption
from hpckit.cli.ckpt.output import Out, count, size
from hpckit.cli.ckpt.place import Place, opened
from hpckit.cli.ckpt.select import choose

MOST = 20  # problems of one checkpoint that are printed; --json has all


@dataclass
class Checked:
    """What was found out about one checkpoint."""

    save: Save
    bytes: int  # stored
    problems: list[Problem]
    is_gone: bool = False  # removed while it was read


@guarded
def verify_them(
    place: PlaceArg,
    step: MaybeStepArg = None,
    run: RunOption = None,
    level: Annotated[
        Level,
        typer.Option(
            help="quick: the packs' own tables; crc: checksums of all stored bytes; full: decode "
            "everything and compare hashes."
        ),
    ] = "full",
    all_: Annotated[bool, typer.Option("--all", help="All checkpoints: as no STEP.")] = False,
    json: JsonOption = False,
) -> int:
    """Read checkpoints again and say what is damaged: object, tensor and step."""
    out = Out(json)
    if step is not None and all_:
        raise RefusedError(f"both --all and the step {step!r} are given: leave one out")
    with opened(place, run) as at:
        found, unreadable = _wanted(at, step, out)
        started_s = time.monotonic()
        checked = [_check(at, one, level, out) for one in found]
        seconds = time.monotonic() - started_s
    broken = [_manifest_problem(save, text) for save, text in unreadable.items()]
    for problem in broken:
        out.line(f"damaged: {problem}")
    _print_sum(out, at, checked, len(broken), level, seconds)
    out.document(_plain(at, checked, broken, level, seconds))
    return DAMAGED if broken or any(one.problems for one in checked) else 0


def _wanted(at: Place, step: str | None, out: Out) -> tuple[Sequence[Found], dict[Save, str]]:
    if step is not None:
        return [choose(at, step, out.note).found], {}
    found, unreadable = committed(at.store, at.run)
    return sorted(found, key=lambda f: f.stored.save), unreadable


def _check(at: Place, found: Found, level: Level, out: Out) -> Checked:
    save = found.stored.save
    total = sum(item.stored_bytes for item in found.document.items.values())
    with ExitStack() as stack:
        try:
            stack.enter_context(held(at.store, found, out.note))
        except RefusedError as error:  # prune was faster: nothing is wrong with it
            out.note(str(error))
            return Checked(save, 0, [], is_gone=True)
        on_bytes = stack.enter_context(out.progress(f"step {save.step}", total))
        problems = verify(at.store, found, level, on_bytes)
    if problems and not is_there(at.store, found):
        out.note(f"step {save.step} ({save.id}) was removed while it was read")
        return Checked(save, 0, [], is_gone=True)
    run = f"run {save.run}, " if at.run is None and len(at.runs) > 1 else ""
    verdict = count(len(problems), "problem") if problems else "ok"
    out.line(f"{run}step {save.step} ({save.id}): {verdict}, {size(total)}")
    for problem in problems[:MOST]:
        out.line(f"  damaged: {problem}")
    if len(problems) > MOST:
        out.line(f"  and {len(problems) - MOST:,} more: --json lists them")
    return Checked(save, total, problems)


def _manifest_problem(save: Save, text: str) -> Problem:
    return Problem(save.step, save.id, "", text)


def _print_sum(
    out: Out, at: Place, checked: Sequence[Checked], broken: int, level: Level, seconds: float
) -> None:
    if not checked and not broken:
        out.line(f"no checkpoints in {at.store.url}")
        return
    bad = broken + sum(bool(one.problems) for one in checked)
    total = sum(one.bytes for one in checked)
    read = f", {total / 1e9:.3g} GB in {seconds:.1f} s: {rate(total, seconds)}"
    looked = count(len(checked) + broken, "checkpoint")
    verdict = f"{bad:,} damaged" if bad else "all whole"
    out.line(f"{looked} checked ({level}): {verdict}{'' if level == 'quick' else read}")
    if bad:
        out.line(
            f"next: `hpckit ckpt repair {at.text}` looks for intact copies of what is damaged "
            "(--from names other stores to look in)"
        )


def rate(total: int, seconds: float) -> str:
    """Bytes per second, decimal as people quote it."""
    return f"{total / 1e9 / max(seconds, 1e-9):.2f} GB/s"


def _plain(
    at: Place, checked: Sequence[Checked], broken: Sequence[Problem], level: Level, seconds: float
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
                "problems": [asdict(problem) for problem in one.problems],
            }
            for one in checked
        ],
        "unreadable": [asdict(problem) for problem in broken],
    }
