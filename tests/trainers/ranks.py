"""The processes that play: four ranks, of which a group of programs takes as many as it needs."""

from __future__ import annotations

import logging
import os
import pickle
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import torch

from tests.forkserver import fork_server
from tests.integration.service.running_services import kept
from tests.trainers.playing import Group, Played, Player

RANKS = 4
SEEDS = 6
"""Programs of a group."""
_PATIENCE_S = 400.0  # of a group; a rank that takes longer hangs, on a busy machine too
_OTHERS_S = 5.0  # until those that wait for a rank that has failed notice it


class Ranks:
    """Four processes with a store of their own."""

    def __init__(self, folder: Path) -> None:
        self._folder, context = folder, fork_server()
        folder.mkdir(parents=True)
        pipes = [context.Pipe() for _ in range(RANKS)]
        self._pipes = [ours for ours, _ in pipes]
        self._processes = [
            context.Process(target=_serve, args=(rank, folder, theirs, dict(os.environ)))
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()

    def play(self, group: Group) -> list[Played]:
        """What each rank has done.

        Raises:
            AssertionError: something else came back than was saved; the ranks are of no use then.
        """
        for pipe in self._pipes:
            pipe.send_bytes(pickle.dumps(group))
        deadline_s, answers = time.monotonic() + _PATIENCE_S, []
        for rank, pipe in enumerate(self._pipes):
            answers.append(self._answer(rank, pipe, deadline_s))
            if isinstance(answers[-1], str):
                deadline_s = min(deadline_s, time.monotonic() + _OTHERS_S)
        if failed := [one for one in answers if isinstance(one, str)]:
            # those that lost a connection have only heard of it
            told = [one for one in failed if "onnection" not in one] or failed
            raise AssertionError("\n".join(told[:2]))
        return [one for one in answers if isinstance(one, Played)]

    def _answer(self, rank: int, pipe: Any, deadline_s: float) -> Played | str:
        try:
            if pipe.poll(max(0.0, deadline_s - time.monotonic())):
                answer: Played | str = pickle.loads(pipe.recv_bytes())
                return answer
            what = "hangs"
        except (EOFError, ConnectionError):
            what = "is gone"
        at = self._folder / f"at-{rank}"
        return f"rank {rank} {what}: {at.read_text() if at.exists() else 'it did not begin'}"

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()


def play(seeds: Sequence[int], folder: Path, streams: int) -> tuple[list[Played], list[str]]:
    """Play programs by as many groups of ranks at once: what they have done, and what failed."""
    queue: SimpleQueue[Group] = SimpleQueue()
    for number, group in enumerate(groups(seeds)):
        queue.put(Group(number, *group))
    with ThreadPoolExecutor(streams) as pool:
        futures = [pool.submit(_stream, folder / str(n), queue) for n in range(streams)]
        found = [future.result() for future in futures]
    return [one for played, _ in found for one in played], [f for _, told in found for f in told]


def groups(seeds: Sequence[int]) -> list[tuple[int, tuple[int, ...]]]:
    """Settings, each with the seeds of its programs."""
    settings = sorted({seed // SEEDS for seed in seeds})
    return [(one, tuple(seed for seed in seeds if seed // SEEDS == one)) for one in settings]


def _stream(folder: Path, queue: SimpleQueue[Group]) -> tuple[list[Played], list[str]]:
    played: list[Played] = []
    failed: list[str] = []
    number = 0
    while True:
        number += 1
        with _ranks(folder / str(number)) as ranks:
            while True:
                try:
                    group = queue.get_nowait()
                except Empty:
                    return played, failed
                try:
                    played += ranks.play(group)
                except AssertionError as error:
                    failed.append(str(error))
                    print(f"FAILED {error}", flush=True)
                    break


@contextmanager
def _ranks(folder: Path) -> Iterator[Ranks]:
    ranks = Ranks(folder)
    try:
        with kept([folder / "store"]):
            yield ranks
    finally:
        ranks.close()


def _serve(rank: int, folder: Path, pipe: Any, env: Mapping[str, str]) -> None:
    os.environ.clear()  # of who has used the fork server first
    os.environ.update(env)
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    player = Player(rank, folder)
    while True:
        try:
            group = pickle.loads(pipe.recv_bytes())
        except (EOFError, ConnectionError):
            return
        try:
            player.play(group)
        except BaseException as error:  # noqa: BLE001 (whatever it is, it is told, and ends this)
            is_told = isinstance(error, AssertionError) and str(error).startswith("seed")
            pipe.send_bytes(pickle.dumps(str(error) if is_told else traceback.format_exc()))
            os._exit(1)  # its peers notice, which wait for it
        pipe.send_bytes(pickle.dumps(player.played))
        player.played = Played()
