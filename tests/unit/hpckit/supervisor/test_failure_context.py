"""What is said of a supervisor that fails."""

from __future__ import annotations

from hpckit.supervisor.failure_context import describe_failure, failure_context


def test_it_is_said_what_was_being_done() -> None:
    try:
        with failure_context("start the run"), failure_context("make a folder"):
            raise OSError(28, "No space left on device", "/runs/x")
    except OSError as error:
        told = describe_failure(error)
    assert told == ("cannot make a folder: OSError: [Errno 28] No space left on device: '/runs/x'")


def test_or_where_it_failed() -> None:
    try:
        raise KeyError("x")
    except KeyError as error:
        told = describe_failure(error)
    assert told.startswith("KeyError: 'x' (at test_failure_context.py:")
