"""What a Checkpointer takes, and that it gives it back; what one rank says to another."""

from __future__ import annotations

import gc
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from checkpointing import Checkpointer, Steps, StoreError, StructureError
from checkpointing.errors import SaveError, ServiceError
from checkpointing.ranks.rank_network import RankNetwork
from checkpointing.ranks.rank_tree import RankTree
from checkpointing.staging.stager import Stager
from tests.descriptors import links
from tests.integration.checkpoint.single_process_saves import restore_one, save_one
from tests.integration.checkpoint.store_damage import check
from tests.integration.rank_worlds import run_world
from tests.integration.service.running_services import wait_until_ended

SOON_S = 180.0


def model_state() -> dict[str, Any]:
    model = nn.Linear(30, 20)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 30)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


def test_commits_are_reported_to_the_file_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHECKPOINTING_EVENTS", str(tmp_path / "events.jsonl"))
    save_one(tmp_path / "store", 5, model_state())
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").open()]
    assert [e["step"] for e in events if e["kind"] == "checkpoint_committed"] == [5]


# --- what is left -------------------------------------------------------------------------------


def held() -> tuple[set[str], Counter[str]]:
    """Threads of this process, and what its descriptors and mappings are of shared memory."""
    gc.collect()
    threads = {thread.name for thread in threading.enumerate()}
    found: Counter[str] = Counter()
    for link, count in links().items():
        found[link.partition(":[")[0]] += count
    maps = Path("/proc/self/maps").read_text().splitlines()
    found["maps"] = sum("hpckit-" in line for line in maps)
    return threads, Counter({k: n for k, n in found.items() if "hpckit" in k or k in _COUNTED})


_COUNTED = ("socket", "maps", "pipe")


def wait_until_no_more_than(before: tuple[set[str], Counter[str]]) -> None:
    """What tests before this one have left may go meanwhile."""
    deadline_s = time.monotonic() + SOON_S
    while not ((now := held())[0] <= before[0] and now[1] <= before[1]):
        assert time.monotonic() < deadline_s, (now, before)
        gc.collect()  # exceptions refer to frames
        time.sleep(0.05)


@contextmanager
def nothing_left(root: Path) -> Iterator[None]:
    before = held()
    yield
    wait_until_no_more_than(before)
    wait_until_ended(root)
    objects = [path.name for path in root.rglob("*") if path.is_file()]
    assert not [name for name in objects if name.endswith((".tmp", ".lease")) or "clock" in name]


def test_nothing_is_left_after_close(tmp_path: Path) -> None:
    state = model_state()
    with nothing_left(tmp_path):
        ckpt = Checkpointer(tmp_path, run="r")
        assert ckpt.restore(state) is None
        for step in (1, 2):
            ckpt.save(step, state)
            ckpt.wait()
        assert ckpt.restore(state) == 2
        ckpt.save(3, state)
        ckpt.close()
        ckpt.close()
        del ckpt
    assert not state["optimizer"]._optimizer_step_pre_hooks


def test_nothing_is_left_if_it_cannot_be_made(tmp_path: Path) -> None:
    save_one(tmp_path, 1, model_state())
    wait_until_ended(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "open").mkdir(mode=0o755)
    with nothing_left(tmp_path):
        with pytest.raises(StoreError):
            Checkpointer(tmp_path / "file" / "store", run="r")
        with pytest.raises(ValueError, match="slots must be a number of snapshots"):
            Checkpointer(tmp_path, run="r", slots=0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HPCKIT_RUNTIME_DIR", str(tmp_path / "open"))
            with pytest.raises(ServiceError, match="mode 0700"):
                Checkpointer(tmp_path, run="r")


def test_nothing_is_left_if_it_cannot_restore(tmp_path: Path) -> None:
    save_one(tmp_path, 1, model_state())
    wait_until_ended(tmp_path)
    with nothing_left(tmp_path):
        ckpt = Checkpointer(tmp_path, run="r")
        with pytest.raises(StructureError):
            ckpt.restore({"other": torch.zeros(3)})
        with pytest.raises(TypeError):
            ckpt.restore({"other": object()})
        ckpt.close()
        del ckpt


def test_one_that_is_forgotten_lets_go_of_all_but_what_it_staged(tmp_path: Path) -> None:
    state = model_state()
    before = held()
    ckpt = Checkpointer(tmp_path, run="r")
    ckpt.save(1, state)
    del ckpt
    wait_until_no_more_than(before)
    assert not state["optimizer"]._optimizer_step_pre_hooks
    assert restore_one(tmp_path, state) == 1
    assert check(tmp_path) == {1: []}


def test_a_forked_child_neither_holds_the_connection_nor_ends_it(tmp_path: Path) -> None:
    """As DataLoader's workers are forked in the middle of training."""
    ckpt, state = Checkpointer(tmp_path, run="r"), {"w": torch.ones(3)}
    ckpt.save(1, state)
    ckpt.wait()
    link = ckpt._client._link
    assert link is not None
    fd = link._wire._sock.fileno()
    gc.collect()  # in the child, what earlier tests left would be ended without their threads
    if (pid := os.fork()) == 0:
        try:
            os.fstat(fd)
            os._exit(1)  # it is still there
        except OSError:
            del ckpt  # as a child's own cleaning up would do
            gc.collect()
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    ckpt.save(2, state)
    ckpt.wait()
    assert ckpt._client._link is link, "the connection is the one it was"
    ckpt.close()
    assert check(tmp_path) == {1: [], 2: []}


def test_values_that_no_message_holds_are_refused_with_advice(tmp_path: Path) -> None:
    """And cost that save alone."""
    ckpt, state = Checkpointer(tmp_path, run="r"), {"w": torch.ones(3), "seen": list(range(9000))}
    with mock.patch("checkpointing.service.protocol.socket_frames.MAX_FRAME", 1 << 14):
        ckpt.save(1, state)
        with pytest.raises(SaveError, match=r"values in the state are too large.*in tensors"):
            ckpt.wait()
        ckpt.save(2, state | {"seen": []})
        ckpt.wait()
    ckpt.save(3, state)
    ckpt.close()
    assert check(tmp_path) == {2: [], 3: []}


def test_a_step_before_one_that_was_saved_is_refused(tmp_path: Path) -> None:
    """As the number of a step in its epoch: the service would keep the later one, for ever."""
    ckpt, state = Checkpointer(tmp_path, run="r"), {"w": torch.ones(3)}
    ckpt.save(3, state)
    with pytest.raises(ValueError, match="cannot save step 2 after step 3: give the number of all"):
        ckpt.save(2, state)
    ckpt.wait()
    ckpt.save(3, state)
    assert ckpt.restore(state) == 3
    ckpt.save(2, state)
    ckpt.close()
    assert check(tmp_path) == {2: [], 3: []}


def test_an_interrupt_in_a_save_costs_that_save_alone(tmp_path: Path) -> None:
    ckpt, state = Checkpointer(tmp_path, run="r"), {"w": torch.ones(3)}
    with (
        mock.patch.object(Stager, "stage", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        ckpt.save(1, state)
    ckpt.save(1, state)
    ckpt.wait()
    with (
        mock.patch.object(Stager, "stage", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        ckpt.save(2, state)
    ckpt.close()
    assert check(tmp_path) == {1: []}


# --- what ranks say to each other ---------------------------------------------------------------

COLLECTIVES = [
    *("all_gather", "all_gather_object", "all_gather_into_tensor", "all_reduce", "all_to_all"),
    *("barrier", "broadcast", "broadcast_object_list", "gather", "gather_object", "new_group"),
    *("monitored_barrier", "recv", "reduce", "reduce_scatter", "scatter", "send"),
]


@contextmanager
def counted(counts: Counter[str]) -> Iterator[None]:
    """Calls into torch.distributed and of the ranks' own connections, by name."""

    def counting(name: str, do: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            counts[name] += 1
            return do(*args, **options)

        return call

    with ExitStack() as patches:
        for module in (dist, dist.distributed_c10d):
            for name in COLLECTIVES:
                wrapper = counting(name, getattr(module, name))
                patches.enter_context(mock.patch.object(module, name, wrapper))
        for kind, name in ((RankTree, "_submit"), (RankNetwork, "connect")):
            wrapper = counting(name, getattr(kind, name))
            patches.enter_context(mock.patch.object(kind, name, wrapper))
        yield


def count_collectives(rank: int, tmp: Path) -> list[int]:
    """Of each save."""
    state = model_state()
    fully_shard(state["model"])
    state["optimizer"] = torch.optim.AdamW(state["model"].parameters())
    state["buffers"] = {"seen": torch.zeros(100), "n": 0}
    ckpt = Checkpointer(tmp / "store", run="r", every=Steps(1))
    ckpt.restore(state)
    found = []
    for step in (1, 2, 3, 4):
        state["model"](torch.randn(2, 30)).sum().backward()
        state["optimizer"].step()
        state["buffers"]["n"] = step
        if step == 4:
            state["more"] = torch.ones(5)
        counts: Counter[str] = Counter()
        with counted(counts):
            assert ckpt.due(step)
            ckpt.save(step, state)
        found.append(counts.total())
        ckpt.wait()
    ckpt.close()
    return found


def test_ranks_do_not_talk_in_a_save_unless_the_structure_has_changed(tmp_path: Path) -> None:
    for found in run_world(2, count_collectives, tmp_path):
        assert found[:3] == [0, 0, 0]
        assert found[3] > 0, "else nothing is counted"
    assert check(tmp_path / "store") == {1: [], 2: [], 3: [], 4: []}
