"""Memory of samples is used again: an epoch of large ones makes no new pages."""

from __future__ import annotations

import platform
import resource
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from data import pack_folder

SAMPLES, SIZE = 256, 100_000
# In a process of its own: torch, or whoever frees a large array, has the same effect.
EPOCHS = """
import resource, sys
from data import Loader, open_dataset

batches = iter(Loader(open_dataset(sys.argv[1]), global_batch=32))
for epoch in range(9):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(int(sys.argv[2]) // 32):
        next(batches)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other ways")
def test_later_epochs_take_no_pages_from_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    for number in range(SAMPLES):
        (tmp_path / "files" / f"{number:03d}.bin").write_bytes(bytes(SIZE))
    pack_folder(tmp_path / "files", tmp_path / "shards")
    words = [sys.executable, "-c", EPOCHS, str(tmp_path / "shards"), str(SAMPLES)]
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    pages = SAMPLES * SIZE // resource.getpagesize()
    # not each: an epoch in which more is read ahead than before takes new pages for that
    assert statistics.median(map(int, said.split()[1:])) < pages / 20
