"""What can be said of the cases without root and network."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.fresh.__main__ import options_of
from tests.fresh.cases import (
    BUNDLE,
    RELEASES,
    TOO_OLD,
    USERS,
    all_cases,
    complaints,
    environment,
    told_command,
)
from tests.fresh.machine import CHECKOUT, working_tree_files

PASSING = "verdict      done: reached the last step\nsamples  650 of 650 seen, each exactly once"


def test_the_default_is_every_user_on_every_release() -> None:
    options = options_of([])
    names = [case.name for case in all_cases(options.release, options.user)]
    assert names == [f"{release}-{user}" for release in RELEASES for user in USERS]
    assert options.make == ["make", "demo"]


def test_what_is_after_the_dashes_is_for_make() -> None:
    options = options_of(["--target", "setup", "--release", "trixie", "--", "TORCH=cpu"])
    assert options.make == ["make", "setup", "TORCH=cpu"]
    assert [case.name for case in all_cases(["trixie", "trixie"], ["root"])] == ["trixie-root"]


@pytest.mark.parametrize("arguments", [["--release", "sid"], ["--user", "nobody"]])
def test_an_unknown_choice_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        options_of(arguments)
    assert "invalid choice" in capsys.readouterr().err


def test_of_the_host_only_what_leads_to_the_network_is_inside() -> None:
    network = {"https_proxy": "http://proxy:3128", "PIP_INDEX_URL": "https://mirror/simple"}
    own = {"PIP_FIND_LINKS": "/opt/wheels", "PIP_CONSTRAINT": "/c", "PIP_CONFIG_FILE": "/p"}
    own |= {"VIRTUAL_ENV": "/v", "PYTHONPATH": "/p", "HOME": "/home/me", "NO_PROXY": ""}
    inside = environment(USERS["ordinary"], network | own)
    assert network.items() <= inside.items()
    assert not {*own} - {"HOME"} & {*inside}
    assert (inside["HOME"], inside["USER"]) == ("/home/ordinary", "ordinary")


@pytest.mark.parametrize("name", ["PIP_CERT", "SSL_CERT_FILE"])
def test_a_bundle_of_the_host_is_named_where_it_lies_inside(name: str) -> None:
    inside = environment(USERS["root"], {name: "/etc/ssl/site.pem"})
    assert inside["PIP_CERT"] == inside["SSL_CERT_FILE"] == BUNDLE
    assert "PIP_CERT" not in environment(USERS["root"], {})


def test_a_demo_has_to_reach_its_end_and_leave_its_page() -> None:
    assert complaints("demo", 0, PASSING, report=True) == []
    assert complaints("demo", 2, PASSING, report=True) == ["exit status 2"]
    assert len(complaints("demo", 0, "", report=False)) == 3
    assert complaints("setup", 0, "", report=False) == []


def test_what_root_has_to_install_is_run_as_the_makefile_says_it() -> None:
    makefile = (CHECKOUT / "Makefile").read_text("utf-8")
    (said,) = re.findall(r'echo "([^"]*as root, apt[^"]*)"', makefile)
    said = said.replace("$(VENV_PACKAGE)", "python3.12-venv") + "\nmake: *** [demo] Error 1"
    command = "apt-get update && apt-get install -y python3.12-venv"
    assert told_command(said) == (command, "python3.12-venv")
    assert told_command("as root, make services") == ("", "")
    assert TOO_OLD in makefile


def test_each_user_is_told_what_the_release_lacks() -> None:
    asked = {case.name: case.asked for case in all_cases(list(RELEASES), ["root", "ordinary"])}
    assert asked["bookworm-root"] == asked["noble-root"] == asked["jammy-ordinary"] == ""
    assert asked["trixie-ordinary"] == "python3.13-venv"


@pytest.mark.skipif(not (CHECKOUT / ".git").exists(), reason="not a checkout of git")
def test_files_that_git_ignores_are_not_copied() -> None:
    names = working_tree_files()
    assert {"Makefile", "tests/fresh/machine.sh"} <= {*names}
    assert all((CHECKOUT / name).exists() for name in names)
    assert not {".venv", "__pycache__"} & {part for name in names for part in Path(name).parts}
