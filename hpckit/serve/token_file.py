"""The token of a server: a new one for each start, or one that is kept in a file."""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from hpckit.serve.access_rules import LEAST_TOKEN

_MOST_BYTES = 4096
_BYTES = 32


class TokenFileError(RuntimeError):
    """Raised if the file of a token must not be used; the message says why and what to do."""


def new_token() -> str:
    """Return a random token."""
    return secrets.token_urlsafe(_BYTES)


def read_token(path: Path) -> str:
    """Return the token in the file at `path`, which is made with a new one, and with its folder, if
    it does not exist.

    Raises:
        TokenFileError: it cannot be read, is not this user's alone, or holds no token.
        OSError: it cannot be made.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return _make(path)
    except OSError as error:
        raise TokenFileError(f"{path}: {error.strerror}; name a file of your own") from None
    if problem := _problem(os.fstat(handle)):
        os.close(handle)
        raise TokenFileError(f"{path} {problem}")
    with os.fdopen(handle, "rb") as file:
        text = file.read(_MOST_BYTES).decode("ascii", "replace").strip()
    if len(text) < LEAST_TOKEN or not (text.isascii() and text.isprintable()) or " " in text:
        raise TokenFileError(
            f"{path} has to hold one line of at least {LEAST_TOKEN} ASCII characters without "
            "spaces; remove it, and a new one is made"
        )
    return text


def _problem(found: os.stat_result) -> str | None:
    if not stat.S_ISREG(found.st_mode):
        return "is not a regular file; name a file of your own"
    if found.st_uid != os.getuid():
        return f"belongs to user {found.st_uid}; name a file of your own"
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        return "can be read by other users: chmod 600 it, after writing another token to it"
    return None


def _make(path: Path) -> str:
    token = new_token()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(f"{token}\n")
    return token
