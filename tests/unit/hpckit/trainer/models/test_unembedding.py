"""Losses in chunks are those of all positions at once, without all logits at once."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hpckit.trainer.batches.byte_text import PADDING
from hpckit.trainer.models.unembedding import Unembedding, token_losses
from tests.effort import times

WIDTH, VOCAB = 8, 64


class Largest(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Cells of the largest tensor that is made."""

    cells = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.cells = max(self.cells, out.numel())
        return out


def computed(chunks: int, batch: int, time: int) -> tuple[Tensor, Tensor, Tensor, int]:
    """Losses, the gradients of features and weight, and the size of the largest tensor."""
    generator = torch.Generator().manual_seed(batch * 100 + time)
    x = torch.randn(batch, time, WIDTH, generator=generator, requires_grad=True)
    weight = torch.randn(VOCAB, WIDTH, generator=generator, requires_grad=True)
    targets = torch.randint(0, VOCAB, (batch, time), generator=generator)
    targets[:, -1] = PADDING
    layer = Unembedding()
    layer.chunks = chunks
    with Largest() as largest:  # type: ignore[no-untyped-call]
        losses = layer(x, weight, targets)
        (losses * torch.arange(time)).sum().backward()
    assert x.grad is not None
    assert weight.grad is not None
    return losses.detach(), x.grad, weight.grad, largest.cells


@settings(max_examples=times(20), deadline=None)
@given(chunks=st.integers(2, 9), batch=st.integers(1, 3), time=st.integers(2, 20))
def test_chunks_change_nothing(chunks: int, batch: int, time: int) -> None:
    chunks = min(chunks, time)
    *whole, _ = computed(1, batch, time)
    *parts, _ = computed(chunks, batch, time)
    assert torch.equal(whole[0][:, -1], torch.zeros(batch)), "padding counts for nothing"
    for one, other in zip(whole, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_logits_of_all_positions_never_exist() -> None:
    batch, time = 4, 64
    *_, most = computed(1, batch, time)
    *_, fewer = computed(8, batch, time)
    assert most == batch * time * VOCAB
    assert fewer == batch * time * VOCAB // 8


def test_without_targets_there_are_logits() -> None:
    x, weight = torch.randn(2, 3, WIDTH), torch.randn(VOCAB, WIDTH)
    targets = torch.randint(0, VOCAB, (2, 3))
    logits = Unembedding()(x, weight)
    assert logits.shape == (2, 3, VOCAB)
    assert torch.equal(Unembedding()(x, weight, targets), token_losses(logits, targets))
