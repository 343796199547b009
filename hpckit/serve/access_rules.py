"""Who is answered: by the token, and by the name under which the server is asked. Pure.

The check of the name is against DNS rebinding: a page of another site could otherwise have its own
name resolved to this machine, and read what the server answers.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Collection, Iterable, Mapping
from urllib.parse import quote, urlencode

PARAMETER = "token"
"""The parameter of a URL that has the token."""
LEAST_TOKEN = 16
"""Characters that a token has at least."""
_LOOPBACK = frozenset(("localhost",))


def cookie_name(token: str) -> str:
    """Return the name of the cookie, which differs between servers, as all ports of a machine share
    their cookies."""
    return f"hpckit-serve-{hashlib.sha256(token.encode()).hexdigest()[:8]}"


def is_token(given: str | None, token: str) -> bool:
    """Return whether the given text is the token, in a time that does not depend on where it
    differs."""
    sent = (given or "").encode("utf-8", "surrogateescape")
    return hmac.compare_digest(sent, token.encode())


def has_access(
    token: str,
    parameter: str | None,
    cookies: Mapping[str, str],
    authorization: str | None,
) -> bool:
    """Return whether a request has the token: in its URL, its cookie, or as a bearer."""
    scheme, _, bearer = (authorization or "").partition(" ")
    given = [parameter, cookies.get(cookie_name(token))]
    given += [bearer.strip()] if scheme.lower() == "bearer" else []
    return any(is_token(one, token) for one in given)


def address_without_token(path: str, parameters: Iterable[tuple[str, str]]) -> str:
    """Return where to go on: the same page of this server, without the token."""
    kept = [(name, value) for name, value in parameters if name != PARAMETER]
    place = "/" + quote(path.lstrip("/"), safe="/")  # "//host" would be another server
    return f"{place}?{urlencode(kept)}" if kept else place


def is_loopback(host: str) -> bool:
    """Return whether an address is reached from this machine alone."""
    address = _address(host)
    return host in _LOOPBACK if address is None else address.is_loopback


def is_known_host(header: str | None, names: Collection[str], *, is_loopback_only: bool) -> bool:
    """Return whether the header `Host` of a request names this server. Its port may be another one,
    as it is behind a tunnel of ssh.

    Args:
        names: further names of this machine, in lower case.
        is_loopback_only: whether the server listens at the loopback alone. Otherwise any address is
            known, as only a name can be made to lead to another machine.
    """
    host = _host_of(header or "")
    if is_loopback(host):
        return True
    return not is_loopback_only and (host in names or _address(host) is not None)


def _host_of(header: str) -> str:
    """Return the host in `HOST[:PORT]`, of which an IPv6 address is in brackets."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].removesuffix(".")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None
