import subprocess
import sys

import pytest

TORCH_FREE = ["canonical", "catalog", "durable", "errors", "events", "layout", "manifest"]
TORCH_FREE += ["policy", "pruning", "retention", "structure", "values"]


def test_torch_is_imported_only_for_checkpointer() -> None:
    modules = ", ".join(f"checkpointing.{name}" for name in TORCH_FREE)
    program = (
        f"import sys, checkpointing, {modules}\n"
        "checkpointing.list_checkpoints, checkpointing.Steps(5)\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'torch', 'numpy', 'hpckit', 'data'}, loaded\n"
        "checkpointing.Checkpointer\n"
        "assert 'torch' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_all_is_there() -> None:
    import checkpointing

    assert all(hasattr(checkpointing, name) for name in checkpointing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = checkpointing.nothing
