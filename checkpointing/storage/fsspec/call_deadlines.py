"""Calls an fsspec file system with a deadline for each call."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from fsspec import AbstractFileSystem

_GRACE_S = 5.0  # seconds beyond the deadline, for a busy loop

Prepare = Callable[[AbstractFileSystem], Awaitable[None]]


class FsspecCalls:
    """The calls of one file system, which the first call creates, because some drivers connect when
    they are created.

    Asynchronous drivers run on their own loop. Others may not be thread-safe, so their calls are
    serialised, each in a thread that can be abandoned.

    Args:
        make: creates the file system.
        prepare: run once on the loop before the first request.
    """

    def __init__(
        self, make: Callable[[], AbstractFileSystem], prepare: Prepare | None = None
    ) -> None:
        self._make, self._prepare = make, prepare
        self._fs: AbstractFileSystem | None = None
        self._lock = threading.Lock()
        self._turn = threading.Lock()

    def run(self, seconds: float, method: str, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of fs.<method>(...).

        Raises:
            TimeoutError: there was no answer within `seconds`.
            Exception: whatever the driver raises.
        """
        return self.each(seconds, method, [args], **kwargs)[0]

    def each(
        self, seconds: float, method: str, calls: list[tuple[Any, ...]], **kwargs: Any
    ) -> list[Any]:
        """Call `run` for each of `calls`, concurrently where the driver can."""
        fs = self._fs
        if fs is not None and fs.async_impl:
            return self._on_loop(fs, seconds, method, calls, kwargs)
        return self._in_thread(seconds, method, calls, kwargs)

    def close(self) -> None:
        """Drop the file system, whose connections close with it."""
        with self._lock:
            self._fs = None

    def _file_system(self) -> AbstractFileSystem:
        with self._lock:
            if self._fs is None:
                fs = self._make()
                if self._prepare is not None:
                    asyncio.run_coroutine_threadsafe(_to_end(self._prepare(fs)), fs.loop).result()
                self._fs = fs
            return self._fs

    def _on_loop(
        self,
        fs: AbstractFileSystem,
        seconds: float,
        method: str,
        calls: list[tuple[Any, ...]],
        kwargs: dict[str, Any],
    ) -> list[Any]:
        async def run() -> list[Any]:
            function = getattr(fs, f"_{method}")
            found = asyncio.gather(*(function(*args, **kwargs) for args in calls))
            return await asyncio.wait_for(found, seconds)

        future = asyncio.run_coroutine_threadsafe(run(), fs.loop)
        try:
            return future.result(seconds + _GRACE_S)
        except concurrent.futures.TimeoutError as error:
            future.cancel()
            raise TimeoutError(f"no answer in {seconds:.0f} s") from error

    def _in_thread(
        self, seconds: float, method: str, calls: list[tuple[Any, ...]], kwargs: dict[str, Any]
    ) -> list[Any]:
        outcome: concurrent.futures.Future[list[Any]] = concurrent.futures.Future()

        def run() -> None:
            try:
                fs = self._file_system()
                if fs.async_impl:
                    outcome.set_result(self._on_loop(fs, seconds, method, calls, kwargs))
                    return
                with self._turn:
                    function = getattr(fs, method)
                    outcome.set_result([function(*args, **kwargs) for args in calls])
            except BaseException as error:  # noqa: BLE001 - passed to the caller as it is
                outcome.set_exception(error)

        threading.Thread(target=run, name=f"fsspec-{method}", daemon=True).start()
        try:
            return outcome.result(seconds + _GRACE_S)
        except concurrent.futures.TimeoutError as error:
            raise TimeoutError(f"no answer in {seconds:.0f} s") from error


async def _to_end(work: Awaitable[None]) -> None:
    await work
