"""A snapshot that is copied beside the training is one state, or none."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, wait
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from checkpointing.errors import StageError
from checkpointing.staging import fingerprints, replica_fingerprints
from checkpointing.staging import overlapped_copy as overlap_module
from checkpointing.staging import stager as staging_module
from checkpointing.staging.overlap_guard import StepHooks, Versions, is_counted
from checkpointing.staging.overlapped_copy import Overlap
from checkpointing.staging.slot_layout import StagedSnapshot
from checkpointing.staging.stager import StagePiece, Stager
from checkpointing.staging.tensor_copy import copy_quietly
from tests.unit.checkpointing.silent_process_group import silent_world

PATIENCE_S = 30.0  # before a test that hangs fails


@pytest.fixture(autouse=True)
def _nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what these tests copy is not copied at once."""
    for module in (staging_module, replica_fingerprints):
        monkeypatch.setattr(module, "SMALL_BYTES", 0)


class SlowCopy:
    """Copies the first half of the tensors, and the others when it is told to go on."""

    def __init__(self) -> None:
        self.has_half, self.go_on = threading.Event(), threading.Event()

    def __call__(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        half = len(targets) // 2
        copy_quietly(targets[:half], sources[:half])
        self.has_half.set()
        if not self.go_on.wait(PATIENCE_S):
            raise TimeoutError("nobody let the copy go on")
        copy_quietly(targets[half:], sources[half:])


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowCopy]:
    """Goes on as soon as somebody waits for it."""
    copy = SlowCopy()

    def wait_for_it(futures: Iterable[Future[None]]) -> object:
        copy.go_on.set()
        return wait(futures)

    monkeypatch.setattr(overlap_module, "wait", wait_for_it)
    yield copy
    copy.go_on.set()


class Training:
    """A model whose optimizer has stepped once, so that it has state."""

    def __init__(self, make: Callable[..., Optimizer], **options: Any) -> None:
        torch.manual_seed(0)
        self.last = nn.Linear(50, 3)
        self.model = nn.Sequential(nn.Linear(40, 50), nn.BatchNorm1d(50), self.last)
        self.weight = self.last.weight
        self.optimizer = make(self.model.parameters(), lr=0.1, **options)
        self.step = self.optimizer.step
        self.compute_gradients()
        self.step()

    def compute_gradients(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(8, 40)).square().sum().backward()

    def later(self) -> list[StagePiece]:
        pieces = [StagePiece(name, p) for name, p in self.model.named_parameters()]
        for i, state in enumerate(self.optimizer.state.values()):
            kept = {key: value for key, value in state.items() if isinstance(value, Tensor)}
            pieces += [StagePiece(f"{i}.{key}", value) for key, value in kept.items()]
        return pieces

    def now(self) -> list[StagePiece]:
        return [StagePiece(name, buffer) for name, buffer in self.model.named_buffers()]


def staged_arrays(stager: Stager, staged: StagedSnapshot) -> list[NDArray[np.uint8]]:
    found = []
    for entry in staged.entries:
        size = getattr(torch, entry.dtype).itemsize * int(np.prod(entry.shape))
        found.append(stager.arena.view(staged.start + entry.offset, size).copy())
    return found


def values(pieces: Sequence[StagePiece]) -> list[NDArray[np.uint8]]:
    """The bytes of the tensors now."""
    return [
        np.frombuffer(
            p.tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes(), np.uint8
        )
        for p in pieces
    ]


def assert_equal(found: list[NDArray[np.uint8]], wanted: list[NDArray[np.uint8]]) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert np.array_equal(one, other)


OPTIMIZERS: dict[str, Callable[[], Training]] = {
    "foreach": lambda: Training(AdamW, foreach=True),
    "fused": lambda: Training(AdamW, fused=True),
    "plain": lambda: Training(AdamW, foreach=False, fused=False),
    "amsgrad": lambda: Training(Adam, amsgrad=True),
    "momentum": lambda: Training(SGD, momentum=0.9),
    "fused momentum": lambda: Training(SGD, momentum=0.9, fused=True),
    "adagrad": lambda: Training(Adagrad),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_optimizer_waits_for_the_copy(kind: str, slow: SlowCopy) -> None:
    training = OPTIMIZERS[kind]()
    step_beside_a_slow_copy(training, training.step, slow)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_step_waits_for_the_copy(backend: str, slow: SlowCopy) -> None:
    training = OPTIMIZERS["foreach"]()
    step = torch.compile(training.optimizer.step, backend=backend)
    training.compute_gradients()
    step()  # compiled before there is a hook
    step_beside_a_slow_copy(training, step, slow)


def step_beside_a_slow_copy(training: Training, step: Callable[[], object], slow: SlowCopy) -> None:
    stager = Stager(1, optimizers=[training.optimizer], copy_later=slow)
    later, now = training.later(), training.now()
    before = values([*now, *later])
    overlap = stager.stage_overlapped(now, later)
    training.compute_gradients()  # forward and backward go on, and change the buffers
    assert slow.has_half.wait(PATIENCE_S)
    step()
    assert slow.go_on.is_set(), "the optimizer did not wait"
    assert_equal(staged_arrays(stager, overlap.result()), before)
    assert overlap.waited_s > 0
    after = values([*now, *later])
    assert not any(map(np.array_equal, before, after)), "the step has to change all"
    assert_equal(staged_arrays(stager, stager.stage([*now, *later])), after)
    stager.close()


def test_buffers_are_copied_before_it_returns(slow: SlowCopy) -> None:
    training = OPTIMIZERS["plain"]()
    now = training.now()
    stager = Stager(1, copy_later=slow)
    before = values(now)
    overlap = stager.stage_overlapped(now, training.later())
    for piece in now:
        piece.tensor.add_(1)
    slow.go_on.set()
    assert_equal(staged_arrays(stager, overlap.result())[: len(now)], before)
    stager.close()


def test_a_step_after_the_copy_does_not_wait_and_harms_nothing() -> None:
    training = OPTIMIZERS["foreach"]()
    stager = Stager(1, optimizers=[training.optimizer])
    before = values(training.later())
    overlap = stager.stage_overlapped([], training.later())
    stager.settle()
    training.compute_gradients()
    training.step()
    assert_equal(staged_arrays(stager, overlap.result()), before)
    stager.close()


def test_without_a_step_it_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training has ended, or evaluates: nobody comes by."""
    monkeypatch.setattr(overlap_module, "GRACE_S", 0.01)
    training = OPTIMIZERS["plain"]()
    stager = Stager(1)
    overlap = stager.stage_overlapped([], training.later())
    assert_equal(staged_arrays(stager, overlap.result()), values(training.later()))
    stager.close()


# --- torn snapshots -----------------------------------------------------------------------------


@torch.no_grad()
def add_in_place(parameter: Tensor) -> None:
    parameter.add_(1)


@torch.no_grad()
def copy_into(parameter: Tensor) -> None:
    parameter.copy_(torch.zeros_like(parameter))


@torch.no_grad()
def foreach(parameter: Tensor) -> None:
    torch._foreach_mul_([parameter], 2.0)


def through_a_view(parameter: Tensor) -> None:
    parameter.detach()[0].fill_(3)


@pytest.mark.parametrize("write", [add_in_place, copy_into, foreach, through_a_view])
@pytest.mark.parametrize("finish", [Stager.settle, Stager._before_step])
def test_who_writes_without_the_optimizer_spoils_the_snapshot(
    write: Callable[[Tensor], None], finish: Callable[[Stager], None], slow: SlowCopy
) -> None:
    training = OPTIMIZERS["plain"]()
    stager = Stager(1, optimizers=[training.optimizer], copy_later=slow)
    overlap = stager.stage_overlapped([], training.later())
    assert slow.has_half.wait(PATIENCE_S)
    write(training.weight)
    slow.go_on.set()
    finish(stager)
    with pytest.raises(StageError, match=r"'2.weight' changed while .*overlap=False"):
        overlap.result()
    assert_equal(staged_arrays(stager, stager.stage(training.later())), values(training.later()))
    stager.close()


def test_it_is_found_without_the_trainers_help(
    slow: SlowCopy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overlap_module, "GRACE_S", 0.01)
    training = OPTIMIZERS["plain"]()
    stager = Stager(1, copy_later=slow)
    overlap = stager.stage_overlapped([], training.later())
    add_in_place(training.last.weight)
    add_in_place(training.last.bias)
    slow.go_on.set()
    with pytest.raises(StageError, match=r"'2.weight' and 1 more changed"):
        overlap.result()
    stager.close()


def test_an_optimizer_that_the_stager_does_not_know_is_found_out(slow: SlowCopy) -> None:
    training = OPTIMIZERS["foreach"]()
    stager = Stager(1, copy_later=slow)
    overlap = stager.stage_overlapped([], training.later())
    training.compute_gradients()
    training.step()
    slow.go_on.set()
    stager.settle()
    with pytest.raises(StageError, match=r"and \d+ more changed"):
        overlap.result()
    stager.close()


def test_a_state_that_cannot_be_copied_is_told_and_training_goes_on() -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("storage was freed")

    training = OPTIMIZERS["plain"]()
    stager = Stager(1, optimizers=[training.optimizer], copy_later=broken)
    overlap = stager.stage_overlapped([], training.later())
    training.compute_gradients()
    training.step()
    with pytest.raises(StageError, match=r"storage was freed; stage with overlap=False"):
        overlap.result()
    stager.close()


def test_a_new_snapshot_waits_for_the_one_under_way(slow: SlowCopy) -> None:
    pieces = OPTIMIZERS["plain"]().later()
    stager = Stager(2, copy_later=slow)
    overlap = stager.stage_overlapped([], pieces, 0)
    second = stager.stage(pieces, 1)
    assert slow.go_on.is_set()
    assert_equal(staged_arrays(stager, second), staged_arrays(stager, overlap.result()))
    stager.close()


def test_a_write_before_there_is_a_slot_is_detected() -> None:
    """Between the two parts of `stage_overlapped`, where torch does not count it."""
    tensor = torch.zeros(100_000)
    stager = Stager(1)
    sample = stager.sample([], [StagePiece("w", tensor)])
    tensor.data.add_(1)
    overlap = stager.stage_sampled(sample)
    with pytest.raises(StageError, match="'w' changed while the snapshot was copied"):
        overlap.result()
    stager.close()


def test_a_sample_of_other_pieces_than_those_prepared_last_is_refused() -> None:
    stager = Stager(1)
    sample = stager.sample([], [StagePiece("w", torch.zeros(100_000))])
    stager.prepare([StagePiece("w", torch.zeros(50_000))])
    with pytest.raises(ValueError, match="other pieces were prepared after these were sampled"):
        stager.stage_sampled(sample)
    stager.close()


def test_a_sample_is_kept_until_it_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is not written over it, although the copy has ended."""
    go_on, torn = threading.Event(), staging_module._torn

    def slow(*given: Any) -> list[str]:
        assert go_on.wait(PATIENCE_S)
        return torn(*given)

    def wait_for_it(futures: list[Future[Any]]) -> object:
        if futures:
            go_on.set()
        return wait(futures)

    monkeypatch.setattr(staging_module, "_torn", slow)
    monkeypatch.setattr(fingerprints, "wait", wait_for_it)
    stager = Stager(2)
    pieces = [StagePiece("w", torch.zeros(32 << 20))]
    overlap = stager.stage_overlapped([], pieces, 0)
    stager.settle()
    assert not go_on.is_set()
    pieces[0].tensor.add_(1)
    second = stager.stage_overlapped([], pieces, 1)
    assert go_on.is_set()
    for one, value in ((overlap, 0.0), (second, 1.0)):
        assert (staged_arrays(stager, one.result())[0].view(np.float32) == value).all()
    stager.close()


def test_inference_tensors_are_copied_at_once(slow: SlowCopy) -> None:
    """torch does not count their changes."""
    with torch.inference_mode():
        tensor = torch.ones(5)
    stager = Stager(1, copy_later=slow)
    counted = StagePiece("counted", torch.ones(3))
    overlap = stager.stage_overlapped([], [counted, StagePiece("inference", tensor)])
    with torch.inference_mode():
        tensor.add_(1)
    slow.go_on.set()
    found = staged_arrays(stager, overlap.result())
    assert found[1].view(np.float32).tolist() == [1.0] * 5
    stager.close()


# --- the parts ----------------------------------------------------------------------------------


def test_hooks_are_called_before_each_step_until_closed() -> None:
    one, other = OPTIMIZERS["plain"](), OPTIMIZERS["fused"]()
    seen: list[float] = []
    weight = one.weight
    hooks = StepHooks([one.optimizer, other.optimizer], lambda: seen.append(weight[0, 0].item()))
    before = weight[0, 0].item()
    one.step()
    assert seen == [before] != [weight[0, 0].item()]
    other.step()
    assert len(seen) == 2
    hooks.close()
    hooks.close()
    one.step()
    other.step()
    assert len(seen) == 2


def test_a_closed_stager_leaves_no_hook() -> None:
    training = OPTIMIZERS["plain"]()
    stager = Stager(1, optimizers=[training.optimizer])
    assert len(training.optimizer._optimizer_step_pre_hooks) == 1
    stager.close()
    assert not training.optimizer._optimizer_step_pre_hooks


def test_versions_name_what_changed() -> None:
    tensors = {name: torch.zeros(2) for name in "abc"}
    versions = Versions(tensors.items())
    assert versions.changed() == []
    tensors["c"].add_(1)
    tensors["a"].detach().mul_(2)
    assert versions.changed() == ["a", "c"]


def sharded(mesh: DeviceMesh) -> DTensor:
    return distribute_tensor(torch.zeros(4, 4), mesh, [Shard(0)], src_data_rank=None)


def test_a_dtensor_is_watched_outside_and_inside() -> None:
    """Operations on it are counted on it alone, those on its local part on that alone."""
    with silent_world(2, 0) as mesh:
        whole = sharded(mesh)
        assert is_counted(whole)
        outside = Versions([("w", whole)])
        whole.add_(1)
        assert outside.changed() == ["w"]
        inside = Versions([("w", whole)])
        whole.to_local().add_(1)
        assert inside.changed() == ["w"]


def test_what_is_not_counted_is_as_documented() -> None:
    """When torch begins to count these, `Versions` may promise more."""
    training = OPTIMIZERS["fused"]()
    weight = training.weight
    versions = Versions([("w", weight)])
    weight.data.add_(1)
    training.step()
    assert versions.changed() == []
    with silent_world(2, 0) as mesh:
        whole = sharded(mesh)
        versions = Versions([("w", whole)])
        torch._foreach_add_([whole], 1.0)
        assert versions.changed() == []


def test_the_first_verdict_stands() -> None:
    tensor = torch.zeros(3)
    overlap = Overlap(StagedSnapshot(1, 0, 0, (), 0), Versions([("t", tensor)]), None, None)
    overlap.before_step()
    tensor.add_(1)  # what the optimizer does after its hook
    overlap.settle()
    assert overlap.result().slot == 0
