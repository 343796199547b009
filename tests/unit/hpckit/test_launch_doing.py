"""What is said of a supervisor that fails."""

from __future__ import annotations

from hpckit.launch.doing import describe_failure, doing


def test_it_is_said_what_was_being_done() -> None:
    try:
        with doing("start the run"), doing("make a folder"):
            raise OSError(28, "No space left on device", "/runs/x")
    except OSError as error:
        told = describe_failure(error)
    assert told == ("cannot make a folder: OSError: [Errno 28] No space left on device: '/runs/x'")


def test_or_where_it_failed() -> None:
    try:
        raise KeyError("x")
    except KeyError as error:
        told = describe_failure(error)
    assert told.startswith("KeyError: 'x' (at test_launch_doing.py:")
