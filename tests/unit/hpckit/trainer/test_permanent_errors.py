"""Errors that a retry cannot fix."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed

from checkpointing import DamagedError, OtherRankError, SaveError, ServiceError, StoreFullError
from data import DataError
from hpckit.config.spec_parser import SpecError
from hpckit.ipc.heartbeat_table import Heartbeat, WorkerPhase
from hpckit.trainer.permanent_errors import is_before_step, is_passing, is_permanent, is_repeated

RECORD: dict[str, Any] = {
    "type": "AttributeError",
    "message": "no attribute at 0x7f00",
    "is_passing": False,
    "memory": None,
    "is_before_step": True,
}


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "permanent"),
    [
        (SpecError(["x"]), True),
        (DataError("x"), True),
        (DamagedError("x"), True),
        (ImportError("x"), True),
        (SyntaxError("x"), True),
        (RuntimeError("x"), False),
        (OSError("x"), False),
        (SaveError("x"), False),
        (StoreFullError("x"), False),
        (ServiceError("x"), False),
        (OtherRankError("another rank has ended: Connection closed by peer"), False),
        (OtherRankError("rank 1: KeyError: 'x'"), False),
        (KeyboardInterrupt(), False),
        (caused(DataError("x"), OSError("stale handle")), False),
        (caused(DamagedError("x"), caused(ValueError("x"), OSError("i/o"))), False),
        (caused(DataError("x"), ValueError("bad header")), True),
        (caused(DataError("x"), MemoryError()), False),
    ],
)
def test_errors_in_the_input_are_permanent_and_errors_of_storage_are_not(
    error: BaseException, permanent: bool
) -> None:
    assert is_permanent(error) is permanent


@pytest.mark.parametrize(
    ("error", "passing"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer"), True),
        (torch.distributed.DistNetworkError("the server is not there"), True),
        (caused(RuntimeError("x"), OSError("stale handle")), True),
        (StoreFullError("x"), True),
        (OtherRankError("rank 1: RuntimeError: x"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ImportError("x"), False),
    ],
)
def test_what_the_network_or_storage_has_caused_may_pass(
    error: BaseException, passing: bool
) -> None:
    assert is_passing(error) is passing


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ({}, {}, True),
        ({"message": "no attribute at 0x8a11"}, {}, True),
        ({"message": "another"}, {}, False),
        ({"is_before_step": False}, {}, False),
        ({}, {"is_before_step": False}, False),
        ({}, {"is_passing": True}, False),
        ({}, {"memory": "gpu"}, False),
        ({"type": "AcceleratorError"}, {"type": "AcceleratorError"}, False),
        ({"message": "cuDNN error: 8"}, {"message": "cuDNN error: 8"}, False),
    ],
)
def test_an_error_is_repeated_if_the_attempt_before_ended_by_it(
    before: dict[str, Any], now: dict[str, Any], expected: bool
) -> None:
    assert is_repeated(RECORD | before, RECORD | now) is expected


def test_the_first_attempt_repeats_nothing_nor_does_one_after_an_earlier_release() -> None:
    assert not is_repeated(None, RECORD)
    earlier = {key: value for key, value in RECORD.items() if key != "is_before_step"}
    assert not is_repeated(earlier, RECORD)


@pytest.mark.parametrize(
    ("phase", "step", "attempt", "expected"),
    [
        (WorkerPhase.STARTING, 0, 1, True),
        (WorkerPhase.RESUMED, 20, 1, True),
        (WorkerPhase.TRAINING, 21, 1, False),
        (WorkerPhase.SAVING, 20, 1, False),
        (WorkerPhase.FAILED, 40, 0, True),
        (WorkerPhase.RUNNING, 0, 1, True),
        (WorkerPhase.RUNNING, 3, 1, False),
    ],
)
def test_a_heartbeat_of_the_attempt_before_is_none_of_this_one(
    phase: WorkerPhase, step: int, attempt: int, expected: bool
) -> None:
    assert is_before_step(Heartbeat(7, phase, step, 1.0, attempt), attempt=1) is expected
