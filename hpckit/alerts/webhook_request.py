"""Sends a document to a webhook by the standard library. Errors do not show the URL, which is a
secret, and nothing that the server has sent."""

from __future__ import annotations

import json
import ssl
from email.message import Message
from http.client import HTTPException
from typing import IO, Any, NoReturn
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import (
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
    build_opener,
)

from hpckit.alerts.alert_errors import AlertError, AlertRejectedError, AlertUnavailableError
from hpckit.alerts.webhook_url import LOOPBACK

TIMEOUT_S = 15.0
_PASSING = (408, 425, 429)
"""Statuses of the client's class after which another try may succeed."""
_MOST_WAIT_S = 600.0


class _NoRedirects(HTTPRedirectHandler):
    """Follows no redirect, as the document would reach another server."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Message, newurl: str
    ) -> None:
        return None


def post(url: str, document: dict[str, Any], timeout_s: float = TIMEOUT_S) -> None:
    """Sends `document` as JSON.

    Args:
        timeout_s: limit of each wait for the server.

    Raises:
        AlertUnavailableError, AlertRejectedError: it was not accepted.
    """
    body = json.dumps(document).encode()
    headers = {"Content-Type": "application/json", "User-Agent": "hpckit"}
    request = Request(url, body, headers, method="POST")
    try:
        with _opener(url).open(request, timeout=timeout_s) as response:
            response.read(1)
    except HTTPError as error:
        with error:
            _raise_for_status(error.code, error.headers.get("Retry-After"))
    except (OSError, HTTPException, ValueError) as error:
        raise _failure(error, timeout_s) from None


def _opener(url: str) -> OpenerDirector:
    """Returns what opens the URL, by the proxy of the environment if it is not of this machine."""
    handlers: list[Any] = [_NoRedirects()]
    if urlsplit(url).hostname in LOOPBACK:
        handlers.append(ProxyHandler({}))
    else:
        handlers.append(HTTPSHandler(context=ssl.create_default_context()))
    return build_opener(*handlers)


def _raise_for_status(status: int, retry_after: str | None) -> NoReturn:
    what = f"it answered with HTTP status {status}"
    if status >= 500 or status in _PASSING:
        is_seconds = retry_after is not None and retry_after.isascii() and retry_after.isdigit()
        after_s = min(float(retry_after), _MOST_WAIT_S) if is_seconds and retry_after else None
        raise AlertUnavailableError(what, after_s)
    if 300 <= status < 400:
        raise AlertRejectedError(f"{what}, a redirect, which is not followed; use its target")
    raise AlertRejectedError(f"{what}; check the URL of the webhook")


def _failure(error: Exception, timeout_s: float) -> AlertError:
    """Returns the error without the URL and the answer of the server."""
    cause = error.reason if isinstance(error, URLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return AlertUnavailableError(f"its certificate is not trusted: {cause.verify_message}")
    if isinstance(cause, TimeoutError):
        return AlertUnavailableError(f"no answer within {timeout_s:g} s")
    if isinstance(cause, OSError) and cause.strerror:
        return AlertUnavailableError(cause.strerror)
    return AlertUnavailableError(f"it did not answer as a web server ({type(cause).__name__})")
