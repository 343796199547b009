"""What a worker reports of itself: the stacks of its threads, the collective that its main thread
is in, and the number of collectives that it has entered in each process group.

Torch counts the collectives of each process group itself, so that a worker pays nothing for it
before it is asked. The worker may hang anywhere, an import included, so nothing is imported here
when it is asked, no file is read, and torch is looked up among the loaded modules.
`hpckit.torch_internals` lists what is private of it.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
from collections.abc import Iterator, Mapping
from types import FrameType, ModuleType
from typing import Any

from hpckit.hangs.hang_snapshot import (
    MOST_CHARACTERS,
    MOST_FRAMES,
    MOST_GROUPS,
    MOST_RECORDS,
    compressed,
)

MOST_THREADS = 32
_C10D = "torch.distributed.distributed_c10d"
OPERATIONS = frozenset(
    (
        *("all_reduce", "all_reduce_coalesced", "broadcast", "reduce", "barrier", "scatter"),
        *("all_gather", "all_gather_coalesced", "all_gather_into_tensor", "all_gather_object"),
        *("reduce_scatter", "reduce_scatter_tensor", "gather", "gather_object"),
        *("all_to_all", "all_to_all_single", "monitored_barrier", "scatter_object_list"),
        *("broadcast_object_list", "send", "recv", "isend", "irecv", "batch_isend_irecv"),
        *("send_object_list", "recv_object_list"),
    )
)
"""Functions of torch.distributed that wait for other ranks."""
_RANKS = "checkpointing.ranks"
_OWN_CALLS = {
    (f"{_RANKS}.rank_tree", "all_gather"): "all_gather",
    (f"{_RANKS}.rank_tree", "broadcast"): "broadcast",
    (f"{_RANKS}.lagged_agreement", "collect"): "all_reduce",
    **{(f"{_RANKS}.rank_network", name): "send" for name in ("send", "send_content")},
    **{(f"{_RANKS}.rank_network", name): "recv" for name in ("receive", "receive_content")},
}
"""The same of the ranks' own connections, by module and function, as torch calls them."""
_TENSORS = ("tensor", "input_tensor", "input", "output_tensor", "output", "tensor_list")
_ERRORS = (AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError)
_NAMES = {
    "Float": "float32",
    "Double": "float64",
    "Half": "float16",
    "BFloat16": "bfloat16",
    "Int": "int32",
    "Long": "int64",
    "Byte": "uint8",
    "Char": "int8",
    "Bool": "bool",
}
"""Names of types in torch's flight recorder, as torch's users write them."""


def describe_worker(number: int) -> bytes:
    """Returns the answer of this process to the question with this number, as JSON.

    Every second question is the second look at a hang. Only then is the recorder of NCCL read,
    which asks the GPU how far it is and may itself wait for it.
    """
    return json.dumps(_own_snapshot(is_second_look=number % 2 == 0)).encode()


def _own_snapshot(is_second_look: bool) -> dict[str, Any]:
    frames = sys._current_frames()
    names = {one.ident: one.name for one in threading.enumerate()}
    main, own = threading.main_thread().ident, threading.get_ident()
    threads = [
        {
            "name": str(names.get(ident, ident))[:MOST_CHARACTERS],
            "is_main": ident == main,
            "frames": [list(one) for one in _stack(frame)],
        }
        for ident, frame in frames.items()
        if ident != own
    ]
    threads.sort(key=lambda one: not one["is_main"])
    main_frame = frames.get(main) if main is not None else None
    found: dict[str, Any] = {
        "threads": threads[:MOST_THREADS],
        "call": None,
        "pending": None,
        "groups": None,
        "collections": gc.get_stats()[2]["collections"],
        "error": None,
    }
    c10d = sys.modules.get(_C10D)
    if c10d is None:
        return found
    try:
        found["call"] = _call_in(main_frame, c10d)
        entries = _entries(is_second_look)
        found["groups"] = [*_groups(c10d, entries), *_own_groups()][:MOST_GROUPS]
        found["pending"] = _pending(entries)
    except _ERRORS as error:  # another release of torch; the stacks are known nevertheless
        found["error"] = repr(error)[:MOST_CHARACTERS]
    return found


def _stack(frame: FrameType | None) -> Iterator[tuple[str, int, str]]:
    for _ in range(MOST_FRAMES):
        if frame is None:
            return
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        yield code.co_filename[-MOST_CHARACTERS:], frame.f_lineno or 0, name[:MOST_CHARACTERS]
        frame = frame.f_back


def _call_in(frame: FrameType | None, c10d: ModuleType) -> dict[str, Any] | None:
    """Returns the innermost call of a collective that has not returned."""
    for _ in range(MOST_FRAMES):
        if frame is None:
            return None
        name = frame.f_code.co_name
        if frame.f_code.co_filename == c10d.__file__ and name in OPERATIONS:
            values = frame.f_locals
            return {
                "operation": name,
                "group": _name_of(values.get("group"), c10d),
                "size": _size_of(values),
                "peer": _peer_of(name, values),
            }
        own = _OWN_CALLS.get((frame.f_globals.get("__name__", ""), name))
        if own is not None:
            return _own_call(own, frame.f_locals)
        frame = frame.f_back
    return None


def _own_call(operation: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a call of the ranks' own connections."""
    held = values["self"]
    group = getattr(held, "_tree", held).name
    return {"operation": operation, "group": group, "size": None, "peer": values.get("rank")}


def _own_groups() -> list[dict[str, Any]]:
    """Returns the trees of the ranks' own connections as process groups."""
    module = sys.modules.get(f"{_RANKS}.rank_tree")
    return [
        {
            "name": tree.name,
            "description": "",
            "ranks": compressed(range(tree.world_size)),
            "entered": tree.calls,
            "sequence": tree.calls,
            "records": [],
        }
        for tree in (() if module is None else sorted(module.open_trees, key=lambda one: one.name))
    ]


def _name_of(group: Any, c10d: ModuleType) -> str:
    if group is None:
        group = c10d._world.default_pg
    return str(c10d._world.pg_names.get(group, ""))


def _size_of(values: Mapping[str, Any]) -> str | None:
    found: Any = next((values[name] for name in _TENSORS if values.get(name) is not None), None)
    if isinstance(found, list | tuple) and found:
        found = found[0]
    if not hasattr(found, "shape") or not hasattr(found, "dtype"):
        return None
    return f"{str(found.dtype).removeprefix('torch.')}{list(found.shape)}"[:MOST_CHARACTERS]


def _peer_of(operation: str, values: Mapping[str, Any]) -> int | None:
    """Returns the rank that a call sends to or receives from; None: all, or unknown."""
    if operation not in ("send", "recv"):
        return None
    peer = values.get("dst" if operation == "send" else "src")
    return peer if isinstance(peer, int) else None


def _groups(c10d: ModuleType, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the process groups of this rank."""
    world, found = c10d._world, []
    records = _newest(entries)
    # nothing was dropped yet, so that a group without entries has had no collective
    are_all_there = min((int(one["record_id"]) for one in entries), default=1) == 0
    for group in list(world.pg_map)[:MOST_GROUPS]:
        name = str(world.pg_names.get(group, ""))
        description = str(getattr(group, "group_desc", ""))
        newest, entered = records.get(name, []), _counter(group)
        found.append(
            {
                "name": name,
                "description": "" if description == "undefined" else description,
                "ranks": compressed(world.pg_group_ranks.get(group, {}))[:MOST_GROUPS],
                "entered": entered,
                "sequence": _last(newest, entered, bool(entries), are_all_there),
                "records": newest,
            }
        )
    return found


def _counter(group: Any) -> int | None:
    """Returns the number of collectives that this rank has entered in a group, as torch counts
    them."""
    try:
        return int(group._get_sequence_number_for_group())
    except (AttributeError, RuntimeError):  # this backend does not count
        return None


def _last(
    newest: list[list[Any]], entered: int | None, is_recorded: bool, are_all_there: bool
) -> int | None:
    """Returns the number of the last collective of a group. The counter of gloo counts what is sent
    and received, too, so that it is only used where nothing is recorded."""
    if newest:
        return int(newest[-1][0])
    if not is_recorded:
        return entered
    return 0 if are_all_there or entered == 0 else None


def _entries(is_second_look: bool) -> list[dict[str, Any]]:
    """Returns the newest collectives from torch's flight recorder, oldest first. The recorder's
    files are pickles, which are not read; this is its JSON."""
    native = sys.modules.get("torch._C._distributed_c10d")
    nccl = getattr(native, "_dump_nccl_trace_json", None)
    dump = getattr(native, "_dump_fr_trace_json", None) if nccl is None else nccl
    if dump is None or (nccl is not None and not is_second_look):
        return []
    return list(json.loads(dump(True, False)).get("entries", []))


def _pending(entries: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Returns the newest collective that has not ended; None: there is none, or it is unknown."""
    open_entries = (one for one in reversed(entries) if not (one["is_p2p"] or one["retired"]))
    entry = next(open_entries, None)
    if entry is None:
        return None
    operation = str(entry["profiling_name"]).rpartition(":")[2]
    group, size = str(entry["process_group"][0]), _recorded_size(entry)
    return {"operation": operation, "group": group, "size": size, "peer": None}


def _newest(entries: list[dict[str, Any]]) -> dict[str, list[list[Any]]]:
    found: dict[str, list[list[Any]]] = {}
    for entry in reversed(entries):
        group = found.setdefault(str(entry["process_group"][0]), [])
        if len(group) < MOST_RECORDS and not entry["is_p2p"]:
            operation = str(entry["profiling_name"]).rpartition(":")[2]
            group.insert(0, [int(entry["collective_seq_id"]), operation, _recorded_size(entry)])
    return found


def _recorded_size(entry: Mapping[str, Any]) -> str | None:
    sizes, types = entry.get("input_sizes"), entry.get("input_dtypes")
    if not sizes or not types:
        return None
    return f"{_NAMES.get(types[0], types[0])}{list(sizes[0])}"[:MOST_CHARACTERS]
