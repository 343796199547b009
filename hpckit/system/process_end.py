"""The end of a process that others wait for."""

from __future__ import annotations

import atexit
import gc
import io
import logging
import os
import sys
import threading
from _io import _IOBase
from collections.abc import Iterator
from typing import Any, NoReturn, TextIO

log = logging.getLogger(__name__)

UNWRITTEN = 120
"""Exit status if output could not be written, as of the interpreter (`Py_RunMain`)."""

_WRITERS = (
    ("zipfile", "ZipFile"),
    ("tempfile", "_TemporaryFileCloser"),
    ("h5py", "File"),
    ("pyarrow.parquet", "ParquetWriter"),
)
"""Modules and classes of objects that finish a file, or remove it, when the interpreter destroys
them, though they are no files themselves."""


def end_process(status: int) -> NoReturn:
    """Ends this process with an exit status, as `sys.exit` does, but leaves its memory to the
    kernel: an interpreter that has imported torch takes itself down for 0.3 s of processor time,
    and one without torch for 0.1 s. Functions that are registered with atexit are called, `logging`
    and `multiprocessing` among them. Threads are not waited for, and files that are still open lose
    what they hold in Python's buffers.

    A status of 0 becomes `UNWRITTEN` if standard output or error cannot be written.
    """
    try:
        atexit._run_exitfuncs()
        is_output_written, is_error_written = _flush(sys.stdout), _flush(sys.stderr)
        if not (is_output_written and is_error_written):
            status = status or UNWRITTEN
    finally:
        os._exit(status)


def _flush(stream: TextIO | None) -> bool:
    """Writes what the stream holds, and returns whether nothing of it is lost."""
    if stream is None or stream.closed:
        return True
    try:
        stream.flush()
    except OSError:
        return False
    return True


def finish_program() -> None:
    """Does what an interpreter does at its end (`Py_FinalizeEx`), as far as others see it: waits
    for threads that are no daemons, calls the functions that are registered with atexit, and writes
    what open files hold. For a fork that then ends with `os._exit`, and for a program some of whose
    objects are kept from being destroyed.

    Nothing is destroyed: this takes an interpreter with torch 0.3 s, and the last reference to a
    DistributedDataParallel can wait for ever (https://github.com/pytorch/pytorch/issues/56297).
    """
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    write_open_files()
    for file in _objects(_IOBase):
        if type(file).__module__ not in ("_io", "io"):  # as gzip's, which has an end to write
            _finish(file, file.close)
    for module, name in _WRITERS:
        if (kind := getattr(sys.modules.get(module), name, None)) is not None:
            for writer in _objects(kind):
                _finish(writer, getattr(writer, "close", None) or writer.cleanup)
    write_open_files()  # of the files that those have written to


def write_open_files() -> None:
    """Writes what the files that this process has open hold in Python's buffers. Files from before
    `gc.freeze` are left out: in a fork that has called it, they are its parent's."""
    for kind in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
        for file in _objects(kind):
            if not file.closed:
                _finish(file, file.flush)


def _objects(kind: type) -> Iterator[Any]:
    """The objects of a class. Asks `type`, as the `__class__` of a proxy may import a module."""
    return (one for one in gc.get_objects() if issubclass(type(one), kind))


def _finish(file: object, finish: Any) -> None:
    try:
        finish()
    except (OSError, ValueError) as error:
        log.warning("what was written last to %r is lost: %s", file, error)
