"""A deterministic scheduler: actors in threads of their own, of which one runs at a time, from one
operation on the storage to the next."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

_PATIENCE_S = 300.0  # real seconds that an actor may take between two operations


class KilledError(BaseException):
    """What an actor that was killed meets with: nothing that it does reaches the storage."""


@dataclass
class Actor:
    """One process of the model."""

    name: str
    body: Callable[[], None]
    random: random.Random  # of its names, so that a schedule can be repeated
    thread: threading.Thread | None = None
    waiting: deque[tuple[str, threading.Lock]] = field(default_factory=deque)
    steps: int = 0
    ended: bool = False
    killed: bool = False
    frozen: bool = False
    asleep_s: float = 0.0  # virtual seconds that its own clock has not seen
    error: BaseException | None = None

    @property
    def next(self) -> str:
        """The operation that it is about to do: "create runs/..."."""
        return self.waiting[0][0]


class Scheduler:
    """Gives the turn to one actor at a time."""

    def __init__(self) -> None:
        self.actors: list[Actor] = []
        self.log: list[str] = []
        self._news = threading.Semaphore(0)
        self._by_thread: dict[int, Actor] = {}

    def add(self, name: str, body: Callable[[], None], seed: int) -> Actor:
        """A new actor; it begins when the scheduler runs."""
        actor = Actor(name, body, random.Random(f"{name}/{seed}"))
        self.actors.append(actor)
        return actor

    def current(self) -> Actor | None:
        """The actor whose own thread this is."""
        return self._by_thread.get(threading.get_ident())

    def start(self) -> None:
        """Let all new actors go up to their first operation."""
        for actor in self.actors:
            if actor.thread is None:
                actor.thread = threading.Thread(target=self._run, args=(actor,), daemon=True)
                actor.thread.start()
                self._settle(actor)

    def step(self, actor: Actor) -> None:
        """Let an actor do its next operation, and go on up to the one after it."""
        name, gate = actor.waiting.popleft()
        actor.steps += 1
        self.log.append(f"{actor.name}: {name}")
        gate.release()
        self._settle(actor)

    def kill(self, actor: Actor) -> None:
        """The actor does nothing any more."""
        self.log.append(f"{actor.name}: KILLED before {actor.next}")
        actor.killed = True
        while actor.waiting:
            actor.waiting.popleft()[1].release()
        self._settle(actor)

    def operation(self, actor: Actor, name: str) -> None:
        """To be called by the storage, from any thread of an actor, before each operation."""
        if actor.killed:
            raise KilledError
        gate = threading.Lock()
        gate.acquire()
        actor.waiting.append((name, gate))
        self._news.release()
        gate.acquire()
        if actor.killed:
            raise KilledError

    def _settle(self, actor: Actor) -> None:
        while not actor.waiting and not actor.ended:
            assert self._news.acquire(timeout=_PATIENCE_S), f"{actor.name} hangs: {self.log[-5:]}"

    def _run(self, actor: Actor) -> None:
        self._by_thread[threading.get_ident()] = actor
        try:
            actor.body()
        except KilledError:
            pass
        except BaseException as error:  # noqa: BLE001  # the oracle judges it
            actor.error = error
        finally:
            actor.ended = True
            self._news.release()
