"""A process with a loader ends: no reader thread keeps it alive, whatever the loader was doing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import data
from data import pack_folder

ROOT = Path(data.__file__).parents[1]

BEGIN = """
import sys, threading
from data import Loader, open_dataset
loader = Loader(open_dataset(sys.argv[1]), global_batch=4, threads=4, prefetch=8)
iterator = iter(loader)
next(iterator)
"""

ENDINGS = {
    "closed": "loader.close(); assert threading.active_count() == 1, threading.enumerate()",
    "still open": "assert threading.active_count() > 1",
    "an exception": "raise SystemExit(0)",
    "in a cycle": "iterator.self = iterator; del iterator, loader",
    "never begun": "loader.close(); loader = Loader(open_dataset(sys.argv[1]), global_batch=4)",
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS.keys())
def test_a_process_ends(tmp_path: Path, ending: str) -> None:
    source = tmp_path / "src"
    source.mkdir()
    for i in range(40):
        (source / f"{i}.txt").write_bytes(b"x")
    pack_folder(source, tmp_path / "out")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BEGIN + ending, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_data_is_light() -> None:
    """No torch, no webdataset: the package is to be usable alone and on a login node."""
    code = "import data, sys; print([m for m in ('torch', 'webdataset') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout == "[]\n"
