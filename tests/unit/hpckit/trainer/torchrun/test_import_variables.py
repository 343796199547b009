"""Variables that a program sets after torch has read them."""

from __future__ import annotations

from hpckit.trainer.torchrun.import_variables import READ_AT_IMPORT, ineffective_settings


def test_what_is_set_or_changed_later_is_ineffective() -> None:
    at_import = dict.fromkeys(READ_AT_IMPORT) | {"OMP_NUM_THREADS": "1", "TORCH_LOGS": "+dynamo"}
    now = {"OMP_NUM_THREADS": "4", "TORCH_LOGS": "+dynamo", "PYTORCH_JIT": "0", "MY_OWN": "2"}
    assert ineffective_settings(at_import, now) == {"OMP_NUM_THREADS": "4", "PYTORCH_JIT": "0"}


def test_what_is_unset_later_is_not_reported() -> None:
    assert ineffective_settings({"OMP_NUM_THREADS": "1"}, {}) == {}
