"""A small training run: a byte model of 3.3 million parameters on Python's library."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.nn.utils.parametrize import register_parametrization

from data import python_stdlib
from hpckit.config.rules.model import decoder_of
from hpckit.submit.compose import compose_spec
from hpckit.trainer.batches.token_windows import shifted
from hpckit.trainer.language_model import sample_mean
from hpckit.trainer.models.decoder import DecoderModel
from hpckit.trainer.models.model_builder import make
from hpckit.trainer.optim import build_optimizer, set_lr

BATCH, LENGTH = 4, 128  # windows per step, and tokens in each
WARMUP = 20  # steps


class SmallRun:
    """Trains with AdamW from a warm-up to the end of a cosine decay."""

    def __init__(self, model: DecoderModel, steps: int, lr: float = 1e-3, seed: int = 1) -> None:
        spec = compose_spec([f"optim.lr={lr}", f"optim.warmup_steps={WARMUP}"])
        self._model, self._optim = model, spec.optim
        self._optimizer = build_optimizer(model, spec.optim)
        self._step, self._steps = 0, steps
        self._text = _text()
        self._rng = np.random.default_rng(seed)

    def train(self, steps: int) -> float:
        """Returns the loss of the last step."""
        loss = torch.zeros(())
        for _ in range(steps):
            starts = self._rng.integers(len(self._text) - LENGTH - 1, size=BATCH)
            windows = [self._text[start : start + LENGTH + 1] for start in starts]
            set_lr(self._optimizer, self._optim, self._step, self._steps, scale=1.0)
            self._optimizer.zero_grad()
            inputs, targets = shifted(torch.stack(windows))
            loss = sample_mean(self._model(inputs, targets), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            assert self._optim.grad_clip is not None
            clip_grad_norm_(self._model.parameters(), self._optim.grad_clip)
            self._optimizer.step()
            self._step += 1
        return float(loss)

    def state(self) -> dict[str, Tensor]:
        """Returns all live tensors of model and optimizer by full name."""
        tensors = {f"model/{name}": t.detach() for name, t in self._model.state_dict().items()}
        for name, parameter in self._model.named_parameters():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                tensors[f"optimizer/state.{name}.{key}"] = value
        return tensors


def build_model() -> DecoderModel:
    """Returns the model of the demo, initialised."""
    size = decoder_of(compose_spec(["model=gpt_tiny"]))
    return make(size, seed=1)


class LowRank(nn.Module):
    """W + B A, with A and B of a small rank (Hu et al. 2021); B begins as zeros."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        rows, columns = weight.shape
        generator = torch.Generator().manual_seed(rows + columns)
        self.a = nn.Parameter(torch.randn(rank, columns, generator=generator) / columns**0.5)
        self.b = nn.Parameter(torch.zeros(rows, rank))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.b @ self.a


def add_adapters(model: DecoderModel, rank: int) -> None:
    """Freezes the model and adds trained adapters to the linear layers of its blocks."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    linear = [module for module in model.blocks.modules() if isinstance(module, nn.Linear)]
    for module in linear:
        register_parametrization(module, "weight", LowRank(module.weight, rank))


def trained_share(state: dict[str, Tensor], model: DecoderModel) -> float:
    """Returns the share of the state's bytes that training changes."""
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    frozen = {f"model/{name}" for name, _ in model.named_parameters() if name not in trained}
    total = sum(tensor.nbytes for tensor in state.values())
    return 1 - sum(state[name].nbytes for name in frozen) / total


def _text() -> Tensor:
    folder, left_out = python_stdlib()
    files = sorted(folder.glob("*.py"))
    content = b"".join(path.read_bytes() for path in files if path.name not in left_out)
    return torch.from_numpy(np.frombuffer(content, np.uint8).astype(np.int64))


def series(run: SmallRun, saves: int, every: int) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Yields (step, state) every so many steps; the tensors are valid until the next one."""
    for number in range(1, saves + 1):
        run.train(every)
        yield number * every, run.state()
