"""The end of a process that others wait for."""

from __future__ import annotations

import atexit
import gc
import io
import logging
import os
import sys
import threading
import traceback
from _io import _IOBase
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, TextIO

log = logging.getLogger(__name__)

UNWRITTEN = 120
"""Exit status if output could not be written, as of the interpreter (`Py_RunMain`)."""

END_S = 120.0
"""Seconds for the end of a program that has failed. A thread of its own that waits for ever would
otherwise keep its rank, and with it all others, from starting again."""
_BUFFERED = (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)
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


_inherited = 0  # objects that `leave_open_files` has left to the parent


def leave_open_files() -> None:
    """Leaves what is open in this fork to its parent, which writes the buffers itself, and keeps
    the garbage collection from writing to pages that both share."""
    global _inherited
    gc.freeze()
    _inherited = gc.get_freeze_count()


def run_to_end(main: Callable[[], int], end_s: float = END_S) -> int:
    """Calls `main` as an interpreter runs a program, and returns the exit status. An exception is
    first shown by `sys.excepthook`, by which trackers learn that a program has failed; then follows
    what `finish_program` does, such as the end of those trackers. That takes `end_s` seconds at
    most after an exception: this process ends then."""
    try:
        return main()
    except Exception as error:  # noqa: BLE001 - whatever it is: it is shown, as by an interpreter
        overdue = threading.Timer(end_s, os._exit, (1,))
        overdue.daemon = True
        overdue.start()
        # the frames of an exception hold what may not be destroyed (see below)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        try:
            sys.excepthook(type(error), error, error.__traceback__)
        except Exception:  # noqa: BLE001 - the program's own, after `error`, which is shown with it
            traceback.print_exc()
        return 1
    finally:
        finish_program()


@contextmanager
def forks_ended() -> Iterator[None]:
    """Ends forks of this process that leave the block as an interpreter ends them, with the exit
    status and the traceback that they leave it with. What follows the block is for this process
    alone."""
    process, found = os.getpid(), None
    try:
        yield
    except BaseException as error:
        if os.getpid() == process:
            raise
        found = error
    if os.getpid() != process:
        os._exit(_end_of_fork(found))


def _end_of_fork(error: BaseException | None) -> int:
    """Does what an interpreter does when a program ends by `error`, and returns the exit status."""

    def leave() -> int:
        if error is not None:
            raise error
        return 0

    try:
        return run_to_end(leave)
    except SystemExit as end:
        return exit_status(end)
    except BaseException:  # noqa: BLE001 - as KeyboardInterrupt, whatever it is: it is shown
        traceback.print_exc()
    return 1


def exit_status(end: SystemExit) -> int:
    """Returns the exit status of a program that ends by `end`, and prints the message that it may
    have instead of one, as an interpreter does."""
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)
    return 1


def finish_program() -> None:
    """Does what an interpreter does at its end (`Py_FinalizeEx`), as far as others see it: waits
    for threads that are no daemons, calls the functions that are registered with atexit, and writes
    what open files hold, those of C too. For a fork that then ends with `os._exit`, and for a
    program some of whose objects are kept from being destroyed.

    Nothing is destroyed: this takes an interpreter with torch 0.3 s, and the last reference to a
    DistributedDataParallel can wait for ever (https://github.com/pytorch/pytorch/issues/56297).
    """
    import ctypes  # which commands do without

    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    kinds = (getattr(sys.modules.get(module), name, None) for module, name in _WRITERS)
    found = _objects((_IOBase, *(kind for kind in kinds if kind is not None)))
    files = [one for one in found if issubclass(type(one), _IOBase)]
    others = [one for one in found if not issubclass(type(one), _IOBase)]
    written = _write(files)
    streams = {id(stream) for stream in _standard_streams()}
    for file in files:
        if type(file).__module__ not in ("_io", "io") and id(file) not in streams:
            _attempt(file, _finalizer(type(file)))  # as gzip's, which has an end to write
    for other in others:
        _attempt(other, _finalizer(type(other)))
    _write(written)  # of the files that those have written to
    _write_frozen()
    ctypes.CDLL(None).fflush(None)


def write_open_files() -> None:
    """Writes what the files that this process has open hold in Python's buffers, except those of
    `leave_open_files`."""
    _write(_objects(_BUFFERED))
    _write_frozen()


def _write_frozen() -> None:
    """Writes files from before a `gc.freeze` of the program itself. Those of the parent are among
    them; their buffers are empty, as it had no reason to write just before the fork."""
    if gc.get_freeze_count() > _inherited:
        gc.unfreeze()
        _write(_objects(_BUFFERED))


def _write(files: list[Any]) -> list[Any]:
    """Writes what those of these files that are buffered and the standard streams hold. Returns the
    files with which that succeeded."""
    for stream in _standard_streams():
        _attempt(stream, "flush")
    buffered = [file for file in files if issubclass(type(file), _BUFFERED) and _is_open(file)]
    return [file for file in buffered if _attempt(file, "flush")]


def _standard_streams() -> list[Any]:
    """The standard streams that are open. In a fork they may be those of the parent, and a program
    may have put any object with a method `write` in their places."""
    known = (sys.__stdout__, sys.__stderr__, sys.stdout, sys.stderr)
    return [stream for stream in known if hasattr(stream, "flush") and _is_open(stream)]


def _is_open(file: Any) -> bool:
    try:
        return not getattr(file, "closed", False)
    except ValueError:  # its buffer was detached, or it was never initialised
        return False


def _objects(kinds: tuple[type, ...]) -> list[Any]:
    """The objects of some classes. Asks `type`, as the `__class__` of a proxy may import a module;
    by its `id`, as not every class can be hashed; and each class once, of millions of objects."""
    objects = gc.get_objects()
    classes = {id(kind): kind for kind in map(type, objects)}
    wanted = {number for number, kind in classes.items() if issubclass(kind, kinds)}
    return [one for one in objects if id(type(one)) in wanted]


def _finalizer(kind: type) -> str:
    """The name of the method that Python calls when it destroys an object: the class's own
    `__del__`, which may leave a file to others open, or else `close`, whose errors the `__del__` of
    files hides."""
    return "close" if getattr(kind, "__del__", None) in (None, _IOBase.__del__) else "__del__"


def _attempt(file: object, method: str) -> bool:
    """Calls a method of a file, which may be of any class, and returns whether it succeeded."""
    try:
        getattr(file, method)()
    except Exception as error:  # noqa: BLE001 - Python would ignore it, too
        log.warning("what was written last to %r is lost: %r", file, error)
        return False
    return True
