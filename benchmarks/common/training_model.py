"""A model and its optimizer, as `Checkpointer` takes them, and their tensors, as its peers do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW

from benchmarks.common.training_state import TrainingState
from hpckit.config.spec import GptSpec
from hpckit.trainer.models.model_builder import make

VOCAB = 256
PER_WEIGHT = 12  # bytes of state: float32, and AdamW's two moments


@dataclass(frozen=True)
class TrainedModel:
    """A model and its optimizer, which a trainer saves."""

    model: nn.Module
    optimizer: AdamW

    @property
    def state(self) -> dict[str, object]:
        """Returns the state as `Checkpointer` takes it."""
        return {"model": self.model, "optimizer": self.optimizer}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Returns all live tensors by name in one flat dict, which peers need not gather."""
        found: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            found[f"model.{name}"] = parameter.detach()
            for key, value in self.optimizer.state[parameter].items():
                found[f"optimizer.{name}.{key}"] = value
        return found

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors.values())


class StillAdamW(AdamW):
    """An AdamW whose step calls its hooks and does nothing else."""

    def step(self, closure: Any = None) -> Any:
        return None


def holding(made: TrainingState, optimizer_class: type[AdamW] = StillAdamW) -> TrainedModel:
    """Returns a model that only holds weights, and its optimizer, of which a step changes nothing.
    They share the memory of `made`: `made.step()` changes them."""
    model = nn.Module()
    moments: dict[Tensor, dict[str, Tensor]] = {}
    for full, array in made.arrays.items():
        if full.startswith("model/"):
            name = full.removeprefix("model/")
            parameter = nn.Parameter(torch.from_numpy(array))
            model.register_parameter(name.replace(".", "_"), parameter)
            of = f"optimizer/state.{name}"
            moments[parameter] = {
                "step": torch.tensor(1.0),
                "exp_avg": torch.from_numpy(made.arrays[f"{of}.exp_avg"]),
                "exp_avg_sq": torch.from_numpy(made.arrays[f"{of}.exp_avg_sq"]),
            }
    optimizer = optimizer_class(model.parameters(), lr=1e-4)
    optimizer.state.update(moments)
    return TrainedModel(model, optimizer)


def unstepped(made: TrainingState) -> TrainedModel:
    """Returns a model of zeros with the parameters of `holding(made)`, and an AdamW that has not
    stepped, as a trainer has them when it starts."""
    model = nn.Module()
    for name, parameter in holding(made).model.named_parameters():
        model.register_parameter(name, nn.Parameter(torch.zeros_like(parameter)))
    return TrainedModel(model, AdamW(model.parameters(), lr=1e-4))


def gpt(nbytes: int, width: int, seq_len: int) -> TrainedModel:
    """Returns a GPT whose state has about so many bytes, before its first step."""
    layers = max(1, nbytes // (PER_WEIGHT * 12 * width * width))
    heads = width // 64
    size = GptSpec(
        "gpt", vocab=VOCAB, layers=layers, heads=heads, width=width, seq_len=seq_len, experts=None
    )
    model = make(size, seed=1)
    return TrainedModel(model, AdamW(model.parameters(), lr=1e-4, fused=True))
