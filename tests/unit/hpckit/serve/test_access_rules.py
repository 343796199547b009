"""Who is answered: the token, the names of the server, and where a browser is sent."""

from __future__ import annotations

import pytest

from hpckit.serve.access_rules import (
    address_without_token,
    cookie_name,
    has_access,
    is_known_host,
    is_loopback,
)

TOKEN = "a-token-of-some-length"


@pytest.mark.parametrize(
    ("host", "at_loopback", "at_network"),
    [
        ("localhost:8642", True, True),
        ("LOCALHOST.:1", True, True),
        ("127.0.0.1", True, True),
        ("127.9.9.9:80", True, True),
        ("[::1]:8642", True, True),
        ("login1:8642", False, True),
        ("login1.cluster.example", False, True),
        ("10.1.2.3:8642", False, True),
        ("[fe80::1]:80", False, True),
        ("evil.example", False, False),
        ("evil.example:8642", False, False),
        ("127.0.0.1.evil.example", False, False),
        ("localhost.evil.example", False, False),
        ("2130706433", False, False),  # which some programs take for 127.0.0.1
        ("[::1", True, True),
        ("login1@evil.example", False, False),
        ("", False, False),
        (None, False, False),
    ],
)
def test_a_name_that_leads_elsewhere_is_not_known(
    host: str | None, at_loopback: bool, at_network: bool
) -> None:
    names = {"login1", "login1.cluster.example"}
    assert is_known_host(host, names, is_loopback_only=True) is at_loopback
    assert is_known_host(host, names, is_loopback_only=False) is at_network


@pytest.mark.parametrize(
    ("parameter", "cookie", "authorization", "may"),
    [
        (TOKEN, None, None, True),
        (None, TOKEN, None, True),
        (None, None, f"Bearer {TOKEN}", True),
        (None, None, f"bearer  {TOKEN}", True),
        ("wrong", None, f"Bearer {TOKEN}", True),
        (None, None, None, False),
        ("", "", "", False),
        (TOKEN[:-1], TOKEN + "x", f"Basic {TOKEN}", False),
        ("\udcff", "é", "Bearer é", False),
    ],
)
def test_the_token_is_needed(
    parameter: str | None, cookie: str | None, authorization: str | None, may: bool
) -> None:
    cookies = {} if cookie is None else {cookie_name(TOKEN): cookie}
    assert has_access(TOKEN, parameter, cookies, authorization) is may
    assert not has_access(TOKEN, None, {"other": TOKEN}, None)
    assert TOKEN[:8] not in cookie_name(TOKEN)


@pytest.mark.parametrize(
    ("path", "to"),
    [
        ("/", "/"),
        ("/runs/a/report.html", "/runs/a/report.html"),
        ("//evil.example/x", "/evil.example/x"),
        ("/\\evil.example", "/%5Cevil.example"),
        ("/a b\r\nX: y", "/a%20b%0D%0AX%3A%20y"),
    ],
)
def test_a_browser_is_sent_to_the_same_page_of_the_same_server(path: str, to: str) -> None:
    assert address_without_token(path, [("token", TOKEN)]) == to
    parameters = [("a", "1 &"), ("token", TOKEN), ("b", "é")]
    assert address_without_token(path, parameters) == f"{to}?a=1+%26&b=%C3%A9"


def test_addresses_of_this_machine_alone() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "::1", "localhost", "127.1.2.3")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "10.0.0.1", "login1", "")))
