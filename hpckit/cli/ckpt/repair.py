"""`hpckit ckpt repair`, `flatten` and `compact`: checkpoints written anew, from what is there."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from checkpointing.format.names import Save
from checkpointing.store.catalog import committed
from checkpointing.store.store import Store
from hpckit.cli.ckpt.failures import DAMAGED, RefusedError, guarded
from hpckit.cli.ckpt.options import JsonOption, MaybeStepArg, PlaceArg, RunOption, StepArg
from hpckit.cli.ckpt.output import Out, count, size
from hpckit.cli.ckpt.place import Place, opened
from hpckit.cli.ckpt.select import choose, choose_any

if TYPE_CHECKING:
    from checkpointing.store.compact import Compacted

MOST = 20  # healed or lost things of one checkpoint that are printed; --json has all


@guarded
def repair(
    place: PlaceArg,
    step: MaybeStepArg = None,
    run: RunOption = None,
    sources: Annotated[
        list[str] | None,
        typer.Option("--from", metavar="PLACE", help="Another store with copies; repeat."),
    ] = None,
    adopt: Annotated[
        bool, typer.Option("--adopt", help="Only commit saves of which all ranks had finished.")
    ] = False,
    json: JsonOption = False,
) -> int:
    """Heal damaged checkpoints with intact copies, from this store or others.

    Example: hpckit ckpt repair runs/gpt-1a2b3c4d --from s3://bucket/copy

    Each healed one becomes a new revision; what is damaged stays for prune. With --adopt, saves
    that only lacked the commit become checkpoints instead.
    """
    out = Out(json)
    if adopt and (step is not None or sources):
        raise RefusedError("--adopt works on a whole run: give neither STEP nor --from with it")
    with ExitStack() as stack:
        at = stack.enter_context(opened(place, run))
        if adopt:
            return _adopt(at, out)
        others = [stack.enter_context(opened(source)).store for source in sources or ()]
        return _repair(at, step, others, out)


def _adopt(at: Place, out: Out) -> int:
    from checkpointing.store.repair import adopt

    run = at.only_run()
    saves = adopt(at.store, run)
    for save in saves:
        out.line(f"committed step {save.step} ({save.id}) of run {run}")
    if not saves:
        out.line(f"no unfinished save of run {run} has the parts of all its ranks")
    out.document({"run": run, "adopted": [save.id for save in saves]})
    return 0


def _repair(at: Place, step: str | None, others: list[Store], out: Out) -> int:
    from checkpointing.store.repair import repair as heal

    run = at.only_run()
    reports: list[dict[str, Any]] = []
    for save, raw in _wanted(at, run, step, out).items():
        with out.progress(f"step {save.step}", raw) as on_bytes:
            result = heal(at.store, run, save, others, on_bytes)
        _print(out, f"step {save.step} ({save.id})", result.healed, list(map(str, result.lost)))
        lost = [asdict(problem) for problem in result.lost]
        reports.append({"id": save.id, "healed": result.healed, "lost": lost, "key": result.key})
    out.document({"run": run, "checkpoints": reports})
    is_lost = any(report["lost"] for report in reports)
    if is_lost and not others:
        out.line("next: --from names another store that may have what is lost")
    return DAMAGED if is_lost else 0


def _wanted(at: Place, run: str, step: str | None, out: Out) -> dict[Save, int]:
    """What to look at, damaged manifests too, and how many bytes each has, if known."""
    found, unreadable = committed(at.store, run)
    raw = {f.stored.save: sum(i.raw_bytes for i in f.document.items.values()) for f in found}
    raw |= dict.fromkeys(unreadable, 0)
    if step is None:
        return dict(sorted(raw.items()))
    info = choose_any(at, step, out.note)
    if info.save not in raw:
        raise RefusedError(
            f"step {info.step} ({info.id}) is no checkpoint: {info.problem}; --adopt commits it "
            "if all its ranks had finished"
        )
    return {info.save: raw[info.save]}


def _print(out: Out, what: str, healed: list[str], lost: list[str]) -> None:
    if not healed and not lost:
        out.line(f"{what}: nothing to heal")
        return
    out.line(f"{what}: {len(healed):,} healed, {len(lost):,} lost")
    for word, things in (("healed", healed), ("lost", lost)):
        for thing in things[:MOST]:
            out.line(f"  {word}: {thing}")
        if len(things) > MOST:
            out.line(f"  and {len(things) - MOST:,} more {word}: --json lists them")


@guarded
def flatten(
    place: PlaceArg, step: StepArg, run: RunOption = None, json: JsonOption = False
) -> None:
    """Rewrite a checkpoint so that no chunk of it is stored as a difference to another one.

    Example: hpckit ckpt flatten runs/gpt-1a2b3c4d latest
    """
    out = Out(json)
    from checkpointing.store.flatten import flatten as rewrite

    with opened(place, run) as at:
        chosen = choose(at, step, out.note)
        raw = sum(item.raw_bytes for item in chosen.found.document.items.values())
        with out.progress(f"step {chosen.save.step}", raw) as on_bytes:
            key = rewrite(at.store, chosen.run, chosen.found, on_bytes)
        is_new = key != chosen.found.stored.key
        what = f"step {chosen.save.step} ({chosen.save.id}) of run {chosen.run}"
        out.line(f"{what} stands alone now" if is_new else f"{what} stood alone already")
        out.document({"run": chosen.run, "id": chosen.save.id, "key": key, "rewritten": is_new})


@guarded
def compact(
    place: PlaceArg,
    run: RunOption = None,
    threshold: Annotated[
        float,
        typer.Option(
            min=0.0, max=0.99, metavar="SHARE", help="Rewrite packs of which more is dead."
        ),
    ] = 0.3,
    json: JsonOption = False,
) -> None:
    """Copy what is needed out of packs that are mostly dead, so that prune can delete them.

    Example: hpckit ckpt compact s3://bucket/ckpts
    """
    out = Out(json)
    from checkpointing.store.compact import compact as rewrite

    with opened(place, run) as at:
        with out.progress("compacting", None) as on_bytes:
            result = rewrite(at.store, at.run, threshold, on_bytes)
        _print_compacted(out, result)
        out.document(asdict(result))


def _print_compacted(out: Out, result: Compacted) -> None:
    if not result.packs:
        out.line("no pack is so full of dead bytes: nothing was rewritten")
        return
    out.line(
        f"rewrote {count(len(result.packs), 'pack')} of {size(result.freed_bytes)} as "
        f"{size(result.written_bytes)}; {count(len(result.revisions), 'checkpoint')} revised; "
        "the next prune deletes the old ones"
    )
    for id_, why in result.spared.items():
        out.line(f"{id_} still needs old packs: {why}")
