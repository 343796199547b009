"""Reads the tensors of safetensors files, box by box."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from checkpointing.format.element_types import element
from checkpointing.format.tiles import Box
from checkpointing.interop.atomic_files import InputFile
from checkpointing.interop.box_runs import read_box
from checkpointing.interop.safetensors import header as headers
from checkpointing.interop.safetensors.header import SafetensorsEntry
from checkpointing.interop.safetensors.index import check_index, find_files


class SafetensorsReader:
    """Reads the safetensors files of a model. A context manager."""

    def __init__(self, path: Path) -> None:
        """
        Args:
            path: a file, an index (`*.safetensors.index.json`), or a folder with an index or one
                file.

        Raises:
            FileNotFoundError: there are no such files at `path`.
            DamagedError: a file is damaged, or does not match the index.
            FormatError: a dtype is unknown to this version.
        """
        with ExitStack() as stack:
            files = {file: stack.enter_context(InputFile(file)) for file in find_files(path)}
            found = {file: headers.read(opened) for file, opened in files.items()}
            check_index(path, {file: entries for file, (entries, _) in found.items()})
            self.tensors = {
                n: entry for entries, _ in found.values() for n, entry in entries.items()
            }
            """Tensors by name."""
            self._places: dict[str, tuple[InputFile, int, SafetensorsEntry]] = {
                name: (files[file], start + entry.start, entry)
                for file, (entries, start) in found.items()
                for name, entry in entries.items()
            }
            self._open = stack.pop_all()

    def read(self, name: str, box: Box) -> NDArray[Any]:
        """Returns the raw elements of a box, as `Checkpoint.read` does.

        Raises:
            DamagedError: the file ends before that.
            OSError: reading failed; the message names the file.
        """
        file, at, entry = self._places[name]
        kind = element(entry.dtype)
        data = bytearray(box.count * kind.itemsize)
        read_box(file, at, entry.shape, kind.itemsize, box, memoryview(data))
        return np.frombuffer(data, kind.bits).reshape(box.sizes)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
