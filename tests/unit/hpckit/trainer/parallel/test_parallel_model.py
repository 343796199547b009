"""Parameters are drawn for a new run alone, and as where they are drawn at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from hpckit.config.rules.model import decoder_of
from hpckit.trainer.models.decoder import DecoderModel
from hpckit.trainer.models.lora import is_adapter
from hpckit.trainer.models.model_builder import make
from hpckit.trainer.parallel.device_mesh import make_mesh
from hpckit.trainer.parallel.local_tensor import local
from hpckit.trainer.parallel.parallel_model import ParallelModel
from tests.integration.trainer.test_planned_memory import pretended_world
from tests.unit.hpckit.specs_and_processes import make_spec

CPU = torch.device("cpu")
MODELS = pytest.mark.parametrize("model", ["gpt_nano", "gpt_moe_nano"])


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what is drawn."""
    names: list[str] = []
    draw: Callable[..., None] = DecoderModel.initialize_tensor

    def recorded(self: DecoderModel, name: str, *about: Any) -> None:
        names.append(name)
        draw(self, name, *about)

    monkeypatch.setattr(DecoderModel, "initialize_tensor", recorded)
    return names


def values(parallel_model: ParallelModel) -> dict[str, Tensor]:
    return {name: local(p) for name, p in parallel_model.module.named_parameters()}


@MODELS
def test_nothing_but_buffers_is_drawn_until_a_run_is_known_to_be_new(
    model: str, drawn: list[str]
) -> None:
    spec = make_spec(model=model)
    with pretended_world(1):
        parallel_model = ParallelModel(
            spec, make_mesh("cpu", spec.parallel), CPU, is_initialized=False
        )
        assert drawn == [name for name, _ in parallel_model.module.named_buffers()]
        drawn.clear()
        assert parallel_model.initialize(None) is None
        assert drawn == [name for name, _ in parallel_model.module.named_parameters()]
        found = values(parallel_model)
        expected = dict(make(decoder_of(spec), spec.train.seed).named_parameters())
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        at_once = values(ParallelModel(spec, make_mesh("cpu", spec.parallel), CPU))
        assert all(torch.equal(found[name], at_once[name]) for name in found)


def test_of_a_run_that_starts_with_another_adapters_alone_are_drawn(
    drawn: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = make_spec(lora="default", start="checkpoint")
    monkeypatch.setattr(
        "hpckit.trainer.parallel.parallel_model.load_initial_weights", lambda *_: {"path": "there"}
    )
    with pretended_world(1):
        parallel_model = ParallelModel(
            spec, make_mesh("cpu", spec.parallel), CPU, is_initialized=False
        )
        drawn.clear()
        assert parallel_model.initialize(spec.init_from) == {"path": "there"}
        names = [name for name, _ in parallel_model.module.named_parameters()]
    assert drawn == [name for name in names if is_adapter(name)]
