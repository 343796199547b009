"""Memory that a checkpoint is read into before the state takes it over."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from checkpointing.format.torch_dtypes import as_bytes
from checkpointing.staging.staging_buffers import StagingBuffers
from tests.unit.checkpointing.staging.test_stager import KNOWN, random_bits

MIB = 1 << 20
SHAPES = [(), (0,), (3, 0), (5,), (2, 3, 4), (5 * MIB,)]


@pytest.mark.parametrize("dtype", KNOWN)
def test_what_is_in_them_comes_back_bit_for_bit(dtype: str) -> None:
    saved = {str(shape): random_bits(dtype, shape, seed=len(shape)) for shape in SHAPES}
    live = {str(shape): random_bits(dtype, shape, seed=9) for shape in SHAPES}
    staging = StagingBuffers()
    for name, buffer in staging.buffers(live).items():
        assert (buffer.shape, buffer.dtype) == (saved[name].shape, saved[name].dtype)
        as_bytes(buffer)[:] = as_bytes(saved[name])
    staging.copy_back(live)
    for name, tensor in saved.items():
        assert bytes(as_bytes(live[name])) == bytes(as_bytes(tensor)), name


def test_released_ones_are_not_used_again() -> None:
    live = {"w": torch.zeros(MIB)}
    staging = StagingBuffers()
    held = staging.buffers(live)["w"]
    assert staging.buffers(live)["w"].data_ptr() == held.data_ptr()
    staging.release()
    assert staging.buffers(live)["w"].data_ptr() != held.data_ptr()


def test_what_is_lent_is_used_as_far_as_it_goes() -> None:
    live = {
        "a": torch.zeros(5),
        "b": torch.zeros(3, 20),
        "c": torch.zeros(100),
        "d": torch.zeros(0),
    }
    memory = np.zeros(400, np.uint8)
    staging = StagingBuffers()
    staging.lend(memory)
    buffers = staging.buffers(live)
    start = memory.__array_interface__["data"][0]
    assert [buffers[name].data_ptr() - start for name in "ab"] == [0, 64]
    assert not start <= buffers["c"].data_ptr() < start + memory.size
    buffers["a"].fill_(1)
    buffers["b"].fill_(2)
    staging.copy_back(live)
    assert live["a"].tolist() == [1] * 5
    assert live["b"].flatten().tolist() == [2] * 60
    staging.release()
    again = staging.buffers(live)["a"]
    assert not start <= again.data_ptr() < start + memory.size
