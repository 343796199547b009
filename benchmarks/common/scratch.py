"""The folder that a benchmark works in."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch(parent: Path | None = None) -> Iterator[Path]:
    """A new folder, which is removed after the block.

    Args:
        parent: on the disk to work on; None: where temporary files go.
    """
    folder = Path(tempfile.mkdtemp(prefix="hpckit-benchmark-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
