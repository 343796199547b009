"""The temporary folder of a benchmark."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch(parent: Path | None = None) -> Iterator[Path]:
    """Yields a new folder, which is removed after the block.

    Args:
        parent: a folder on the disk to measure; None: the folder of temporary files.
    """
    folder = Path(tempfile.mkdtemp(prefix="hpckit-benchmark-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
