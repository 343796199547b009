"""Looking at checkpoints needs no torch."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import checkpointing

TORCH_FREE = ["errors", "events", "retention", "retention_pruner", "runs", "save_policy"]
TORCH_FREE += ["state.structure_comparison"]
TORCH_FREE_PACKAGES = ("codec", "format", "storage", "store")


def torch_free() -> list[str]:
    """All that must not import torch, by full name."""
    found = pkgutil.walk_packages(checkpointing.__path__, "checkpointing.")
    inside = [m.name for m in found if m.name.split(".")[1] in TORCH_FREE_PACKAGES]
    inside.remove("checkpointing.format.torch_dtypes")
    assert len(inside) > len(TORCH_FREE_PACKAGES)
    return [*(f"checkpointing.{name}" for name in TORCH_FREE), *inside]


def test_torch_is_imported_only_for_checkpointer() -> None:
    program = (
        f"import sys, checkpointing, {', '.join(torch_free())}\n"
        "checkpointing.list_checkpoints, checkpointing.Steps(5), checkpointing.Store\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'torch', 'hpckit', 'data'}, loaded\n"
        "checkpointing.Checkpointer\n"
        "assert 'torch' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_store_in_a_folder_needs_no_client_of_another_storage() -> None:
    program = (
        "import sys, checkpointing\n"
        "checkpointing.list_run(sys.argv[1], 'r')\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'torch', 'fsspec', 'obstore', 's3fs', 'botocore'}, loaded\n"
    )
    subprocess.run([sys.executable, "-c", program, "nowhere"], check=True)


def test_all_is_there() -> None:
    assert all(hasattr(checkpointing, name) for name in checkpointing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = checkpointing.nothing
