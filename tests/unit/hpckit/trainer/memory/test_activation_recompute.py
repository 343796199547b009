"""What is computed again changes neither results nor names, and is what was asked for."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from hpckit.config.spec import GptSpec
from hpckit.trainer.batches.byte_text import VOCAB
from hpckit.trainer.batches.token_windows import shifted
from hpckit.trainer.language_model import sample_mean
from hpckit.trainer.memory.activation_recompute import recompute
from hpckit.trainer.models.model_builder import make

LAYERS, PRODUCTS = 3, 4  # of a block of the GPT
SIZE = GptSpec("gpt", vocab=VOCAB, layers=LAYERS, heads=4, width=32, seq_len=16, experts=None)
How = Literal["none", "selective", "full"]


class Counting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """How often each operation runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))

    @property
    def products(self) -> int:
        return self.seen["aten.mm.default"] + self.seen["aten.addmm.default"]

    @property
    def attentions(self) -> int:
        return self.seen["aten._scaled_dot_product_flash_attention_for_cpu.default"]


def trained(how: How) -> tuple[Tensor, dict[str, Tensor], Counting]:
    """Loss and gradients of one batch, and what the backward pass did."""
    model = make(SIZE, seed=3)
    recompute(model.blocks.values(), how)
    batch = torch.randint(0, VOCAB, (2, 17), generator=torch.Generator().manual_seed(5))
    inputs, targets = shifted(batch)
    loss = sample_mean(model(inputs, targets), targets)
    with Counting() as counting:
        loss.backward()  # type: ignore[no-untyped-call]
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), gradients, counting


@pytest.mark.parametrize(
    ("how", "products", "attentions"), [("full", PRODUCTS, 1), ("selective", PRODUCTS // 2, 0)]
)
def test_losses_and_gradients_are_the_same_to_the_bit(
    how: How, products: int, attentions: int
) -> None:
    loss, gradients, plain = trained("none")
    again, others, counted = trained(how)
    assert torch.equal(loss, again)
    assert gradients.keys() == others.keys() == dict(make(SIZE, 3).named_parameters()).keys()
    assert all(torch.equal(gradients[name], others[name]) for name in gradients)
    # torch stops a block's repetition once it has all that is asked for: the last product is not
    assert LAYERS * (products - 1) <= counted.products - plain.products <= LAYERS * products
    assert (plain.attentions, counted.attentions) == (0, LAYERS * attentions)
