"""The cases, what each has in its environment, and what is asked of its end."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

BUNDLE = "/usr/local/share/host-ca-bundle.pem"  # inside, where the host has one of its own
_PATH = "/usr/local/bin:/usr/bin:/bin"
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_PASSED = ("PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT", *_PROXIES, *map(str.upper, _PROXIES))
_PREPARED = """
set -e
export DEBIAN_FRONTEND=noninteractive
userdel --remove ubuntu 2>/dev/null || true
useradd --uid 1000 --create-home --shell /bin/bash ordinary
"""
_DEMO_SAYS = ("done: reached the last step", "each exactly once")
TOO_OLD = "hpckit needs Python 3.11 or newer: uv python install"
"""How the line begins that says what to do where Python is too old."""
INTERPRETER = "/opt/python"  # inside, where a machine gets one of the host's
_COMMAND = re.compile(r"as root.*?(apt-get update && apt-get install -y (\S+))$", re.MULTILINE)


@dataclass(frozen=True)
class User:
    """A user inside, and the script by which root prepares the machine for this user."""

    name: str
    uid: int
    home: str
    path: str
    prepared: str = ""


USERS = {
    "root": User("root", 0, "/root", f"/usr/local/sbin:/usr/sbin:/sbin:{_PATH}"),
    "ordinary": User("ordinary", 1000, "/home/ordinary", _PATH, _PREPARED),
}


@dataclass(frozen=True)
class Release:
    """A release of a distribution, by debootstrap's name, and its own Python; empty: that one is
    too old."""

    name: str
    system: str
    python: str


RELEASES = {
    release.name: release
    for release in (
        Release("bookworm", "debian", "python3.11"),  # Debian 12
        Release("trixie", "debian", "python3.13"),  # Debian 13
        Release("jammy", "ubuntu", ""),  # 22.04, with 3.10, and a release candidate of 3.11
        Release("noble", "ubuntu", "python3.12"),  # 24.04
    )
}


@dataclass(frozen=True)
class Case:
    """A release, and who runs the target on it."""

    release: Release
    user: User

    @property
    def name(self) -> str:
        return f"{self.release.name}-{self.user.name}"

    @property
    def asked(self) -> str:
        """The package that the user is told to have root install; empty: none. As root the
        Makefile installs it by itself."""
        return f"{self.release.python}-venv" if self.user.uid and self.release.python else ""

    @property
    def checkout(self) -> str:
        return f"{self.user.home}/hpckit"


def all_cases(releases: Sequence[str], users: Sequence[str]) -> list[Case]:
    """Every user on every release, each case once."""
    each = [(release, user) for release in releases for user in users]
    return [Case(RELEASES[release], USERS[user]) for release, user in dict.fromkeys(each)]


def told_command(output: str) -> tuple[str, str]:
    """The command that root is to run, as the output of a target says it in one line, and the
    package that it installs; empty if there is none."""
    found = _COMMAND.findall(output)
    return found[-1] if found else ("", "")


def ca_bundle(host: Mapping[str, str]) -> str | None:
    """The file of certificates that the host trusts, where its environment names one."""
    return host.get("PIP_CERT") or host.get("SSL_CERT_FILE") or None


def environment(user: User, host: Mapping[str, str]) -> dict[str, str]:
    """What a user has after logging in; of the host's only what leads to the network."""
    inside = {"PATH": user.path, "HOME": user.home, "USER": user.name, "LOGNAME": user.name}
    inside |= {"SHELL": "/bin/bash", "LANG": "C.UTF-8", "TERM": "dumb"}
    inside |= {name: host[name] for name in _PASSED if host.get(name)}
    if ca_bundle(host):
        inside |= {"PIP_CERT": BUNDLE, "SSL_CERT_FILE": BUNDLE}
    return inside


def complaints(target: str, status: int, output: str, *, report: bool) -> list[str]:
    """What is wrong with how `make TARGET` ended; `report` says that it left a page."""
    found = [f"exit status {status}"] if status else []
    if target == "demo":
        found += [f"its output does not say '{text}'" for text in _DEMO_SAYS if text not in output]
        found += [] if report else ["there is no runs/demo-*/report/report.html"]
    return found
