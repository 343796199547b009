"""What a device cannot do is refused when a rank begins, all at once."""

from __future__ import annotations

import pytest
import torch

from hpckit.trainer.device.device_capability import require_features
from hpckit.trainer.errors import TrainingError
from tests.unit.hpckit.specs_and_processes import make_spec

CPU = torch.device("cpu")


def test_all_that_a_cpu_lacks_is_said() -> None:
    spec = make_spec(
        {"cluster.device": "auto", "precision.compute": "fp8", "memory.cpu_offload": True}
    )
    with pytest.raises(TrainingError) as caught:
        require_features(spec, CPU)
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == ["precision.compute=fp8", "memory.cpu_offload"]


def test_bf16_is_refused_by_a_gpu_that_emulates_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_supported(including_emulation: bool = True) -> bool:
        return including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", is_supported)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "Tesla V100")
    gpu = torch.device("cuda", 0)
    for master in ("fp32", "bf16"):
        spec = {"cluster.device": "cuda", "precision.compute": "bf16", "precision.master": master}
        with pytest.raises(TrainingError, match=r"^precision.compute=bf16: Tesla V100 has none"):
            require_features(make_spec(spec), gpu)
    require_features(make_spec({"cluster.device": "cuda", "precision.compute": "fp16"}), gpu)


def test_what_a_cpu_has_is_let_through() -> None:
    require_features(
        make_spec({"memory.activation_checkpointing": "full", "precision.compute": "bf16"}), CPU
    )
