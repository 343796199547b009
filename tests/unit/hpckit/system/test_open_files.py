"""How many files a process may have open."""

from __future__ import annotations

import resource

import pytest

from hpckit.system.open_files import OpenFilesError, allow_open_files, soft_limit

MANY = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "limit"),
    [
        *((1024, 4096, 3000), (3000, 4096, 3000), (3001, 4096, 3001), (1024, 3000, 3000)),
        *((1024, 2999, None), (1024, MANY, 3000), (MANY, MANY, MANY)),
    ],
)
def test_the_limit_is_raised_only_as_far_as_needed(soft: int, hard: int, limit: int | None) -> None:
    assert soft_limit(soft, hard, 3000) == limit


def test_a_limit_that_is_too_low_is_named() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert hard != MANY
    with pytest.raises(
        OpenFilesError, match=rf"the test needs \d+ open files, .* have {hard} here"
    ):
        allow_open_files(hard + 1, "the test")


def test_more_files_can_be_open_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {resource.RLIMIT_NOFILE: (64, 4096)}
    monkeypatch.setattr(resource, "getrlimit", limits.__getitem__)
    monkeypatch.setattr(resource, "setrlimit", limits.__setitem__)
    allow_open_files(100, "the test")
    assert limits == {resource.RLIMIT_NOFILE: (100, 4096)}
