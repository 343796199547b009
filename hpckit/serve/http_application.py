"""The ASGI application of the web view: decides whom it answers, and sends pages with the headers
that keep other sites out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from dataclasses import dataclass

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from hpckit.serve.access_rules import (
    PARAMETER,
    address_without_token,
    cookie_name,
    has_access,
    is_known_host,
    is_token,
)
from hpckit.serve.site import HTML, PageNotFoundError, RunSite, SitePage

log = logging.getLogger(__name__)

METHODS = ("GET", "HEAD")
_POLICY = (
    "default-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
    "img-src 'self'; "
)
POLICY = f"{_POLICY}style-src 'self'; script-src 'self'; connect-src 'self'"
OWN_STYLE_POLICY = f"{_POLICY}style-src 'unsafe-inline'"
"""Of a report, which holds its style and has no script."""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
NEEDS_TOKEN = (
    "This page needs the token of its server: open the whole address that hpckit serve has "
    "printed, or send the token as Authorization: Bearer TOKEN.\n"
)

UNKNOWN_HOST = (
    "This server is not known by the name in the header Host: open the address that hpckit serve "
    "has printed. A proxy has to send the name localhost.\n"
)


@dataclass(frozen=True)
class ServerAccess:
    """Whom a server answers."""

    token: str
    names: Collection[str]
    """Names of this machine by which it may be asked, in lower case."""
    is_loopback_only: bool

    def __repr__(self) -> str:
        return f"ServerAccess(names={self.names!r}, is_loopback_only={self.is_loopback_only})"


class SiteApplication:
    """Answers requests with the pages of a site."""

    def __init__(self, site: RunSite, access: ServerAccess) -> None:
        self._site, self._access = site, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        response = await self._answer(Request(scope))
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        await response(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        refusal = self._refusal(request)
        if refusal is not None:
            return refusal
        if PARAMETER in request.query_params:
            return self._with_cookie(request)
        try:
            address = str(request.scope["path"]).removeprefix("/")
            page = await run_in_threadpool(self._site.page, address, dict(request.query_params))
        except PageNotFoundError:
            return _plain("No page has this address.\n", 404)
        except asyncio.CancelledError:  # after the time that requests under way may take
            return _plain("The server has ended.\n", 503)
        except Exception:
            log.exception("a page cannot be made")
            return _plain("This page cannot be made: see the output of hpckit serve.\n", 500)
        return _sent(page)

    def _refusal(self, request: Request) -> Response | None:
        access = self._access
        host = request.headers.get("host")
        if not is_known_host(host, access.names, is_loopback_only=access.is_loopback_only):
            return _plain(UNKNOWN_HOST, 400)
        if request.method not in METHODS:
            refused = _plain("This server only shows pages.\n", 405)
            refused.headers["Allow"] = ", ".join(METHODS)
            return refused
        given, authorization = request.query_params, request.headers.get("authorization")
        if not has_access(access.token, given.get(PARAMETER), request.cookies, authorization):
            return _plain(NEEDS_TOKEN, 401)
        return None

    def _with_cookie(self, request: Request) -> Response:
        """Return the way to the same page without the token, which is kept in a cookie if it was
        the right one."""
        to = address_without_token(request.scope["path"], request.query_params.multi_items())
        response = RedirectResponse(to, 303)
        if is_token(request.query_params[PARAMETER], self._access.token):
            response.set_cookie(
                cookie_name(self._access.token), self._access.token, httponly=True, samesite="lax"
            )
        return response


def _sent(page: SitePage) -> Response:
    body = page.text.encode("utf-8", "backslashreplace")
    response = Response(body, media_type=page.media)
    if page.has_own_style:
        response.headers["Content-Security-Policy"] = OWN_STYLE_POLICY
    elif page.media != HTML:
        response.headers["Cache-Control"] = "no-cache"
    return response


def _plain(text: str, status: int) -> Response:
    return Response(text, status, media_type="text/plain")
