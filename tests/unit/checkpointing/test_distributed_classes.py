"""torch's distributed classes are recognised without an import of their modules."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Replicate
from torch.testing._internal.distributed.fake_pg import FakeStore

from checkpointing.distributed_classes import dtensor_class, has_flat_parameters, is_dtensor


@pytest.fixture
def one_rank() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_a_dtensor_is_recognised(one_rank: None) -> None:
    mesh = init_device_mesh("cpu", (1,))
    tensor = DTensor.from_local(torch.zeros(2), mesh, [Replicate()], run_check=False)
    assert is_dtensor(tensor)
    assert is_dtensor(nn.Parameter(tensor))
    assert not is_dtensor(tensor.to_local())
    assert dtensor_class() is DTensor


def test_nothing_is_a_dtensor_before_its_module_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.distributed.tensor")
    assert dtensor_class() is None
    assert not is_dtensor(torch.zeros(1))
    # as another thread sees it while it is imported
    unfinished = ModuleType("torch.distributed.tensor")
    monkeypatch.setitem(sys.modules, "torch.distributed.tensor", unfinished)
    assert not is_dtensor(torch.zeros(1))


def test_a_module_with_flat_parameters_is_recognised_inside_another() -> None:
    wrapped = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    nn.Module.__init__(wrapped)
    outer = nn.Sequential()
    assert not has_flat_parameters(outer)
    outer._modules["0"] = wrapped  # as it has no content, it has no attributes to look at
    assert has_flat_parameters(outer)
