"""Looking at checkpoints needs no torch."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import checkpointing
from checkpointing.torch_internals import version_problem

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


# To import torch takes 2 s of CPU; that it would be imported is enough to know
ENDS_AT_TORCH = (
    "import sys\n"
    "class Torch:\n"
    "    def find_spec(self, name, *_):\n"
    "        if name == 'torch':\n"
    "            sys.exit(TORCH)\n"
    "TORCH = 'too early'\n"
    "sys.meta_path.insert(0, Torch())\n"
)


def test_torch_is_imported_only_for_checkpointer() -> None:
    program = (
        f"{ENDS_AT_TORCH}import checkpointing, {', '.join(torch_free())}\n"
        "checkpointing.list_checkpoints, checkpointing.Steps(5), checkpointing.Store\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'torch', 'hpckit', 'data'}, loaded\n"
        "TORCH = 0\n"  # the status
        "checkpointing.Checkpointer\n"
        "sys.exit('torch was not imported')\n"
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


def test_an_import_without_torch_says_what_to_do() -> None:
    program = (
        "import sys\n"
        "class NoTorch:\n"  # as if it were not installed
        "    def find_spec(self, name, *_):\n"
        "        if name.partition('.')[0] == 'torch':\n"
        "            raise ModuleNotFoundError(name='torch')\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "import checkpointing, data, hpckit\n"
        "for module, name in [(checkpointing, 'Checkpointer'), (hpckit, 'training_run')]:\n"
        "    try:\n"
        "        getattr(module, name)\n"
        "    except ModuleNotFoundError as error:\n"
        "        print(error)\n"
        "data.Loader\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True
    )
    first, second = done.stdout.splitlines()
    assert first.startswith("checkpointing.Checkpointer needs torch, which is not installed in ")
    assert "2.7 or newer. Store and list_checkpoints do without it" in first
    assert second.startswith("hpckit.training_run needs the package torch")
    assert "pip install 'hpckit-torch[launcher]'" in second


@pytest.mark.parametrize("text", ["2.7.0", "2.7.0a0+git1", "2.15.0+cpu", "3.0", "git"])
def test_a_torch_that_is_new_enough_or_has_no_number_is_taken(text: str) -> None:
    assert version_problem(text) is None


def test_an_older_torch_is_refused() -> None:
    wanted = "torch 2.6.0+cu124 is installed, and checkpointing needs 2.7 or newer"
    assert version_problem("2.6.0+cu124") == wanted


def test_all_is_there() -> None:
    assert all(hasattr(checkpointing, name) for name in checkpointing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = checkpointing.nothing


def test_dir_lists_what_can_be_imported() -> None:
    program = (
        "import sys, checkpointing, data, hpckit\n"
        "print(sorted(checkpointing.__all__) == dir(checkpointing), 'client' in dir(hpckit))\n"
        "sys.modules |= {'torch': None, 'webdataset': None}\n"
        "listed = [(m, name) for m in (checkpointing, data) for name in dir(m)]\n"
        "print(all(hasattr(*one) for one in listed))\n"
        "print({*checkpointing.__all__} - {*dir(checkpointing)} == checkpointing._OF_TORCH)\n"
        "print(sorted({*data.__all__} - {*dir(data)}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout.splitlines() == [
        *("True True", "True", "True"),
        "['StreamingDataset', 'StreamingOptions', 'WebLoader', 'from_wds', 'per_sample']",
    ]
