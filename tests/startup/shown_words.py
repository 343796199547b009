"""The command line and the environment that others find of a process in /proc, which the kernel
reads from the memory of the process, where they were as it started."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.startup.fork_request import areas

_PR_SET_MM, _PR_SET_MM_MAP, _PR_SET_MM_MAP_SIZE = 35, 14, 15  # prctl(2)


def show(words: Sequence[str], variables: Mapping[str, str]) -> None:
    """Have others find these of this process, as far as there is room."""
    ends = []
    for text, (begin, end) in zip((_packed(words), _lines(variables)), areas(), strict=True):
        ctypes.memset(begin, 0, end - begin)
        ctypes.memmove(begin, text, size := min(len(text), end - begin))
        ends.append(begin + size)
    _set_memory(_PR_SET_MM_MAP, _memory_map(*ends))


def show_in_forks(variables: Mapping[str, str]) -> None:
    """Have others find these variables of the forks of this process, and none of itself."""
    begin, end = areas()[1]
    text = _lines(variables)
    ctypes.memset(begin, 0, end - begin)
    size = min(len(text), end - begin - 1)
    os.register_at_fork(after_in_child=lambda: ctypes.memmove(begin, text, size))


def is_replaceable() -> bool:
    """Whether the kernel lets a process change them, and where it reads them."""
    try:
        os.close(os.open("/proc/self/mem", os.O_WRONLY))
        _set_memory(_PR_SET_MM_MAP_SIZE, ctypes.c_uint32())
    except OSError:
        return False
    return True


def _lines(variables: Mapping[str, str]) -> bytes:
    return _packed([f"{name}={value}" for name, value in variables.items()])


def _packed(texts: Sequence[str]) -> bytes:
    return b"".join(os.fsencode(text) + b"\0" for text in texts)


class _MemoryMap(ctypes.Structure):
    """`struct prctl_mm_map` of <linux/prctl.h>."""

    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("start_code", "end_code", "start_data", "end_data")),
        *((name, ctypes.c_uint64) for name in ("start_brk", "brk", "start_stack", "arg_start")),
        *((name, ctypes.c_uint64) for name in ("arg_end", "env_start", "env_end", "auxv")),
        *((name, ctypes.c_uint32) for name in ("auxv_size", "exe_fd")),
    )


def _memory_map(end_of_words: int, end_of_variables: int) -> _MemoryMap:
    """That of this process, with other ends of its command line and environment."""
    fields = [0, *map(int, Path("/proc/self/stat").read_text().rpartition(") ")[2].split()[1:])]
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    code, stack, data, heap = fields[23:25], fields[25], fields[42:44], fields[44]
    (words, _), (variables, _) = areas()
    return _MemoryMap(
        *(*code, *data, heap, libc.sbrk(0), stack),
        *(words, end_of_words, variables, end_of_variables, 0, 0),
        exe_fd=0xFFFFFFFF,  # the program stays
    )


def _set_memory(option: int, argument: ctypes.Structure | ctypes.c_uint32) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    size = ctypes.c_ulong(ctypes.sizeof(argument))
    if libc.prctl(_PR_SET_MM, option, ctypes.byref(argument), size, ctypes.c_ulong(0)):
        raise OSError(ctypes.get_errno(), "prctl")
