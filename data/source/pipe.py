"""Shards that a command writes: `pipe:` URLs, which run only if that is allowed."""

import os
import select
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Literal

from data.source.protocol import FirstTag, ObjectVersion, PermanentSourceError, TransientSourceError

Pipes = Literal["refuse", "exec", "shell"]

_PIECE = 1 << 20  # bytes
_TAIL = 500  # bytes of a command's error output
_SHELL = frozenset("|&;<>$`()")


class PipeSource:
    """A `Backend` of `pipe:` URLs, which can only be read from beginning to end.

    Args:
        pipes: "refuse" runs nothing; "exec" runs one program with its arguments, without a shell;
            "shell" passes the text to /bin/sh, which is only for URLs that you wrote yourself.
        stall_s: how long a command may write nothing.
    """

    def __init__(self, pipes: Pipes, stall_s: float) -> None:
        self._pipes = pipes
        self._stall_s = stall_s

    def stat(self, url: str) -> ObjectVersion:
        self._command(url)
        return ObjectVersion(None, None)

    def read(self, url: str, start: int, size: int, tag: str | FirstTag | None) -> bytes:
        have = bytearray()
        for piece in self.stream(url, start, tag):
            have += piece
            if len(have) >= size:
                return bytes(have[:size])
        raise PermanentSourceError(f"the command wrote {size - len(have)} bytes too few")

    def stream(self, url: str, start: int, tag: str | FirstTag | None) -> Iterator[bytes]:
        command = self._command(url)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise PermanentSourceError(f"cannot start {command[0]}: {error.strerror}") from error
        try:
            yield from self._output(process, start)
        finally:
            _end(process)

    def _command(self, url: str) -> list[str]:
        text = url.removeprefix("pipe:").strip()
        if self._pipes == "refuse":
            raise PermanentSourceError(
                "pipe: URLs run commands and are refused; allow them with pipes='exec' (one"
                " program, no shell) or pipes='shell' if you trust whoever wrote the URLs"
            )
        if self._pipes == "shell":
            return ["/bin/sh", "-c", text]
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise PermanentSourceError(f"not a command: {error}") from error
        if not words:
            raise PermanentSourceError("a pipe: URL without a command")
        lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        if any(set(word) <= _SHELL for word in lexer):
            raise PermanentSourceError(
                "the command needs a shell, which pipes='exec' does not start"
            )
        return words

    def _output(self, process: "subprocess.Popen[bytes]", start: int) -> Iterator[bytes]:
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = process.stdout.fileno(), process.stderr.fileno()
        stderr_tail, open_fds = b"", {out, err}
        quiet_since_s = time.monotonic()
        while out in open_fds:
            left_s = quiet_since_s + self._stall_s - time.monotonic()
            ready = select.select(list(open_fds), [], [], max(0.0, left_s))[0]
            if not ready and left_s <= 0:
                raise TransientSourceError(f"the command wrote nothing for {self._stall_s:g} s")
            for fd in ready:
                piece = os.read(fd, _PIECE)
                if not piece:
                    open_fds.discard(fd)
                elif fd == err:
                    stderr_tail = (stderr_tail + piece)[-_TAIL:]
                else:
                    quiet_since_s = time.monotonic()
                    if start < len(piece):
                        yield piece[start:]
                    start = max(0, start - len(piece))
        _check_end(process, stderr_tail)


def _check_end(process: "subprocess.Popen[bytes]", stderr_tail: bytes) -> None:
    try:
        status = process.wait(timeout=10)
    except subprocess.TimeoutExpired as error:
        raise TransientSourceError("the command closed its output but did not end") from error
    if status != 0:
        text = stderr_tail.decode(errors="replace")
        raise TransientSourceError(f"the command ended with status {status}: {text}")


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.returncode is None:  # not reaped yet, so its process id is still its own
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
