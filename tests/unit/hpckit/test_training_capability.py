"""What a device cannot do is refused when a rank begins, all at once."""

from __future__ import annotations

import pytest
import torch

from hpckit.training.capability import require
from hpckit.training.errors import TrainingError
from tests.unit.hpckit.hpckit_parts import make_spec

CPU = torch.device("cpu")


def test_all_that_a_cpu_lacks_is_said() -> None:
    spec = make_spec({"cluster.device": "auto", "precision.compute": "fp8", "memory.offload": True})
    with pytest.raises(TrainingError) as caught:
        require(spec, CPU)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == ["precision.compute=fp8", "memory.offload"]


def test_what_a_cpu_has_is_let_through() -> None:
    require(make_spec({"memory.recompute": "full", "precision.compute": "bf16"}), CPU)
