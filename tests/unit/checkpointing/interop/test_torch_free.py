"""What a command line imports does not import torch before it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.unit.checkpointing.test_torch_free_imports import ENDS_AT_TORCH


def test_importing_imports_no_torch() -> None:
    program = (
        f"{ENDS_AT_TORCH}"
        "from checkpointing.interop import dcp, pickle_reader, safetensors\n"
        "from checkpointing.interop.dcp import folder_metadata\n"
        "from checkpointing.interop.torch_save import file_export, file_import\n"
        "TORCH = 0\n"  # the status
        "dcp.StoreReader, dcp.StoreWriter\n"
        "sys.exit('torch was not imported')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_other_names_are_not_there() -> None:
    from checkpointing.interop import dcp

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = dcp.nothing
