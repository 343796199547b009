"""What a worker calls, and which of its errors no further attempt can mend."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch.distributed

from checkpointing import DamagedError, SaveError, ServiceError, StoreFullError
from data import DataError
from hpckit.config.spec_parser import SpecError
from hpckit.trainer.worker import find_entry, is_passing, is_permanent


def caused(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def test_the_entry_is_imported_and_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "entry_of_a_test.py").write_text("def main(cfg): return cfg\nother = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    main: object = find_entry("entry_of_a_test:main")
    assert callable(main)
    assert main("x") == "x"
    for missing in ("entry_of_a_test:none", "entry_of_a_test:other"):
        with pytest.raises(ImportError, match="entry: entry_of_a_test has no function"):
            find_entry(missing)
    with pytest.raises(ImportError):
        find_entry("no_such_module_at_all:main")


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
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ImportError("x"), False),
    ],
)
def test_what_the_network_or_storage_has_caused_may_pass(
    error: BaseException, passing: bool
) -> None:
    assert is_passing(error) is passing
