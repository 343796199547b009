"""Reads the URL of a webhook, which is a secret: whoever knows it can send messages. It is kept in
no record of a run, and no message here shows it."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from hpckit.alerts.alert_errors import AlertRejectedError
from hpckit.config.spec import WebhookSpec

LOOPBACK = ("localhost", "127.0.0.1", "::1")
_MOST_BYTES = 4096


def webhook_url(spec: WebhookSpec, env: Mapping[str, str]) -> str:
    """Returns the URL of a webhook that is configured.

    Raises:
        AlertRejectedError: the URL cannot be read, others could read it, or it is no URL that keeps
            a secret.
    """
    if spec.url_env is not None:
        source = f"the variable {spec.url_env}"
        if not (text := env.get(spec.url_env, "").strip()):
            raise AlertRejectedError(f"{source} is not set; export it with the URL of the webhook")
    else:
        path = Path(spec.url_file or "")
        source, text = str(path), _private_text(path)
    if problem := url_problem(text):
        raise AlertRejectedError(f"{source} {problem}")
    return text


def url_problem(url: str) -> str | None:
    """Returns why `url` is not one to send a message to, without any part of it. Pure."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "does not have a valid URL"
    if any(ord(letter) <= 32 or ord(letter) >= 127 for letter in url):
        return "does not have one URL alone: there is a space or another character within it"
    if parts.scheme not in ("https", "http") or not host:
        return "does not have an https:// URL"
    if parts.username is not None:
        return "has a URL with a user name, which is not supported"
    if parts.scheme == "http" and host not in LOOPBACK:
        return "has an http:// URL, which everyone on the way can read; use https://"
    return None


def _private_text(path: Path) -> str:
    """Returns the content of a file that only this user can read.

    Raises:
        AlertRejectedError: others can, or it cannot be read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise AlertRejectedError(f"cannot read {path}: {error.strerror}") from None
    with open(handle, "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise AlertRejectedError(f"{path} is not a regular file")
        if found.st_uid != os.getuid():
            raise AlertRejectedError(f"{path} belongs to another user ({found.st_uid})")
        if found.st_mode & 0o077:
            raise AlertRejectedError(
                f"other users can access {path}, whose content is a secret (mode "
                f"{stat.S_IMODE(found.st_mode):04o}): chmod 600 {path}"
            )
        try:
            return file.read(_MOST_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
            raise AlertRejectedError(f"cannot read {path}: {reason}") from None
