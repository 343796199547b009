"""Chromium without a window, in which tests look at pages.

It is driven by the DevTools protocol over two pipes, file descriptors 3 and 4 of its process
(--remote-debugging-pipe): JSON messages that end with a NUL byte. Nothing listens on a port, and
the browser ends when the pipes close, whatever becomes of the tests.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.services.processes import ServiceError, bound, find_tools

TOOLS = {"chromium": "chromium"}
_FLAGS = (
    "--headless",
    "--no-sandbox",  # which root cannot have
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--disable-sync",
    "--disable-extensions",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-breakpad",
    "--no-first-run",
    "--no-default-browser-check",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
_WITHIN_S = 120.0
_FIRST_FREE = 10
"""The least number of the pipes before they get the two numbers that the browser expects."""
_AT_3_AND_4 = (
    "import os, sys\n"
    "os.dup2(int(sys.argv[1]), 3)\n"
    "os.dup2(int(sys.argv[2]), 4)\n"
    "os.execvp(sys.argv[3], sys.argv[3:])\n"
)


class Browser:
    """A running browser with one page."""

    def __init__(self, to: int, of: int) -> None:
        self._to, self._of, self._number = to, of, 0
        self._session: str | None = None
        self._read, self._waiting = b"", deque[dict[str, Any]]()
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
        self._session = str(attached["sessionId"])
        self._tell("Page.enable")

    def open(self, path: Path, width: int, height: int = 800, *, is_dark: bool = False) -> None:
        """Show a file on a screen of so many pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self._tell("Emulation.setDeviceMetricsOverride", **size)
        self._tell("Emulation.setEmulatedMedia", features=[scheme])
        self._waiting.clear()
        begun = self._tell("Page.navigate", url=path.resolve().as_uri())
        if "errorText" in begun:
            raise ServiceError(f"{path}: {begun['errorText']}")
        while not _is_loaded(self._waiting, begun["loaderId"]):
            self._waiting.append(self._next())

    def run(self, script: str) -> Any:
        """Return the value of an expression in the page, as JSON has it.

        Raises:
            ServiceError: the script failed.
        """
        done = self._tell("Runtime.evaluate", expression=script, returnByValue=True)
        if "exceptionDetails" in done:
            raise ServiceError(f"the script failed: {done['exceptionDetails']}")
        return done["result"].get("value")

    def picture(self) -> bytes:
        """Return the whole page, also what is below the screen, as PNG."""
        shot = {"format": "png", "captureBeyondViewport": True}
        return base64.b64decode(self._tell("Page.captureScreenshot", **shot)["data"])

    def _tell(self, method: str, **values: Any) -> dict[str, Any]:
        return self._ask(method, self._session, **values)

    def _ask(self, method: str, session: str | None = None, **values: Any) -> dict[str, Any]:
        """Return the answer; what else the browser says is kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": values}
        message |= {"sessionId": session} if session else {}
        _write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._number:
            self._waiting.append(answer)
        if "error" in answer:
            raise ServiceError(f"{method}: {answer['error']}")
        result: dict[str, Any] = answer["result"]
        return result

    def _next(self) -> dict[str, Any]:
        deadline_s = time.monotonic() + _WITHIN_S
        while b"\0" not in self._read:
            left_s = deadline_s - time.monotonic()
            ready, _, _ = select.select([self._of], [], [], max(0.0, left_s))
            more = os.read(self._of, 1 << 20) if ready else b""
            if not more:
                raise ServiceError("chromium has ended" if ready else "chromium does not answer")
            self._read += more
        message, _, self._read = self._read.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


def _is_loaded(events: Iterable[dict[str, Any]], loader: str) -> bool:
    """Return whether the page that this loader loads is there; an event of the page before it,
    which may still be on its way, does not count."""
    is_shown = False
    for one in events:
        if one.get("method") == "Page.frameNavigated":
            is_shown = one["params"]["frame"]["loaderId"] == loader
        elif is_shown and one.get("method") == "Page.loadEventFired":
            return True
    return False


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A new browser that writes to `folder` alone.

    Raises:
        MissingToolError: it is not installed.
        ServiceError: it did not start.
    """
    chromium = find_tools(TOOLS)["chromium"]
    its_end, mine = _pipe()
    mine_too, its_other = _pipe()
    command = [sys.executable, "-I", "-S", "-c", _AT_3_AND_4, str(its_end), str(its_other)]
    command += [chromium, *_FLAGS, f"--user-data-dir={folder / 'profile'}", "about:blank"]
    with open(folder / "chromium.log", "ab") as log:
        process = subprocess.Popen(
            bound(command),
            pass_fds=(its_end, its_other),
            env=os.environ | {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder / "config")},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    os.close(its_end)
    os.close(its_other)
    try:
        yield Browser(mine, mine_too)
    finally:
        os.close(mine)
        os.close(mine_too)
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait until it has ended, as it does without its pipes; or kill it and its children."""
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _pipe() -> tuple[int, int]:
    """A pipe whose ends have numbers from `_FIRST_FREE` on."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, _FIRST_FREE) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


def _write(handle: int, data: bytes) -> None:
    while data:
        data = data[os.write(handle, data) :]
