"""`hpckit ckpt follow`, which keeps the weights of the newest step of a run on this node."""

from __future__ import annotations

import json as json_format
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.ckpt.store_location import opened
from hpckit.cli.common.command_output import CommandOutput, count, size, took
from hpckit.cli.common.exit_status import FOUND
from hpckit.cli.common.store_errors import CommandUsageError, guarded
from hpckit.cli.common.store_options import PlaceArg, RunOption
from hpckit.system.store_timeouts import interactive_store_options

if TYPE_CHECKING:
    from checkpointing.follower.follower import FollowedStep, Follower


class FollowOrder(StrEnum):
    newest = "newest"
    each = "each"


class WeightDtype(StrEnum):
    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"


@guarded
def follow(
    place: PlaceArg,
    into: Annotated[
        str,
        typer.Option(
            metavar="shm:NAME|DIR",
            help="The shared memory of this node, for checkpointing.SharedWeights; or a folder for "
            "safetensors files.",
            show_default=False,
        ),
    ],
    run: RunOption = None,
    every: Annotated[
        int, typer.Option(min=1, metavar="N", help="Fewest steps between two that are taken.")
    ] = 1,
    order: Annotated[
        FollowOrder, typer.Option(help="Of several new steps, take the newest, or each in turn.")
    ] = FollowOrder.newest,
    names: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="Only tensors of these full names, as 'model/*'; may be repeated. By default all "
            "of the item model.",
        ),
    ] = None,
    dtype: Annotated[
        WeightDtype | None, typer.Option(help="Cast floating-point tensors to this dtype.")
    ] = None,
    keep: Annotated[
        int, typer.Option(min=1, metavar="N", help="Safetensors files to keep in DIR.")
    ] = 2,
    once: Annotated[bool, typer.Option("--once", help="Take the newest step, and end.")] = False,
    until_step: Annotated[
        int | None,
        typer.Option(min=0, metavar="STEP", help="End once this step or a later one is taken."),
    ] = None,
    interval: Annotated[
        float, typer.Option(min=0.05, metavar="SECONDS", help="Time between two listings.")
    ] = 5.0,
    give_up: Annotated[
        float,
        typer.Option(
            min=0.0, metavar="SECONDS", help="End if the store is out of reach for so long."
        ),
    ] = 3600.0,
    command: Annotated[
        str | None,
        typer.Option(
            "--exec",
            metavar="COMMAND",
            help="Run this after each step, without a shell, and wait for it; {step} and {file} "
            "are replaced, and HPCKIT_STEP and HPCKIT_WEIGHTS are set.",
        ),
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object for each step, a line each.")
    ] = False,
) -> int:
    """Take the weights of each newly committed step, and read only what has changed.

    Example: hpckit ckpt follow s3://bucket/ckpts/runs/gpt --into shm:gpt
    """
    out = CommandOutput(json)
    argv = None if command is None else _argv(command)
    from checkpointing.follower.follower import Follower

    with opened(place, run, may_be_new=True) as at:
        url, name = at.store.url, at.only_run()
    try:
        follower = Follower(
            url,
            run=name,
            into=into,
            every=every,
            order=order.value,
            names=names or (),
            dtype=None if dtype is None else dtype.value,
            keep=keep,
            interval_s=interval,
            give_up_s=give_up or 1e-9,
            options=interactive_store_options(),
        )
    except ValueError as error:
        raise CommandUsageError(str(error)) from error
    with follower, _stopping(follower):
        if follower.step is not None:
            out.note(f"{into} holds step {follower.step} already")
        return _follow(follower, out, once, until_step, argv, into)


def _follow(
    follower: Follower,
    out: CommandOutput,
    once: bool,
    until_step: int | None,
    argv: Sequence[str] | None,
    into: str,
) -> int:
    """Take steps until it is time to end; return the exit status."""
    status = 0
    if once:
        taken = follower.poll()
        if taken is None and follower.step is None:
            raise CommandUsageError(
                f"run {follower.options.run} has no checkpoint whose weights can be taken"
            )
        return 0 if taken is None else _report(taken, out, argv, into)
    if _is_reached(follower.step, until_step):
        return 0
    for taken in follower.steps():
        status = _report(taken, out, argv, into)
        if _is_reached(taken.step, until_step):
            break
    return status


def _is_reached(step: int | None, until_step: int | None) -> bool:
    return step is not None and until_step is not None and step >= until_step


def _report(taken: FollowedStep, out: CommandOutput, argv: Sequence[str] | None, into: str) -> int:
    """Print what was taken and run the command; return the exit status."""
    share = taken.bytes / max(taken.full_bytes, 1)
    out.line(
        f"step {taken.step}: {size(taken.bytes)} read, {share:.2%} of {size(taken.full_bytes)}; "
        f"{count(len(taken.changed), 'tensor')} changed; published {took(taken.age_s)} after the "
        f"commit, reading took {took(taken.seconds)}"
    )
    if out.as_json:
        print(json_format.dumps(_plain(taken)), flush=True)
    if argv is None:
        return 0
    file = "" if taken.file is None else str(taken.file)
    words = [word.replace("{step}", str(taken.step)).replace("{file}", file) for word in argv]
    env = {**os.environ, "HPCKIT_STEP": str(taken.step), "HPCKIT_WEIGHTS": file or into}
    code = subprocess.run(words, env=env, check=False).returncode
    if code:
        out.note(f"step {taken.step}: {words[0]} ended with status {code}")
    return FOUND if code else 0


def _plain(taken: FollowedStep) -> dict[str, object]:
    return {
        "run": taken.run,
        "step": taken.step,
        "id": taken.id,
        "bytes": taken.bytes,
        "full_bytes": taken.full_bytes,
        "chunks": taken.chunks,
        "fetched": taken.fetched,
        "changed": len(taken.changed),
        "seconds": taken.seconds,
        "age_s": taken.age_s,
        "file": None if taken.file is None else str(taken.file),
    }


def _argv(command: str) -> list[str]:
    """Return the words of a command.

    Raises:
        CommandUsageError: there is no such program.
    """
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise CommandUsageError(f"--exec {command!r}: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise CommandUsageError(
            f"--exec {command!r}: {words[0] if words else 'it'} is not a program on this machine"
        )
    return words


@contextmanager
def _stopping(follower: Follower) -> Iterator[None]:
    """Let the first SIGINT or SIGTERM end the command after the present step."""
    former: dict[int, signal.Handlers | Callable[[int, FrameType | None], object] | int | None] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        follower.stop()
        for each, handler in former.items():
            signal.signal(each, handler)

    for number in (signal.SIGINT, signal.SIGTERM):
        former[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)
