"""Compiled blocks compute the same, and are compiled once for all.

With an effort of 1, this is the one test in which torch's own backend compiles C++.
"""

from __future__ import annotations

import pytest
import torch
import torch._inductor.config
from torch._dynamo.utils import counters

from hpckit.trainer.batches.byte_text import VOCAB
from hpckit.trainer.batches.token_windows import shifted
from hpckit.trainer.device.block_compilation import compile_blocks, lack_of_compiler
from hpckit.trainer.language_model import sample_mean
from hpckit.trainer.memory.activation_recompute import recompute
from hpckit.trainer.models.model_builder import make
from hpckit.trainer.precision.fp8_linear import use_fp8
from tests.effort import EFFORT
from tests.unit.hpckit.trainer.models.test_decoders import gpt

LAYERS = 9  # more than torch recompiles one function for


def trained(*, is_compiled: bool) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model = make(gpt(LAYERS, width=32), seed=3)
    if is_compiled:
        recompute(model.blocks.values(), "selective")
        compile_blocks(model.blocks.values())
    batch = torch.randint(0, VOCAB, (2, 33), generator=torch.Generator().manual_seed(5))
    inputs, targets = shifted(batch)
    loss = sample_mean(model(inputs, targets), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach(), {n: p.grad for n, p in model.named_parameters() if p.grad is not None}


def test_losses_and_gradients_are_the_same_but_for_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if EFFORT <= 1:  # to find out which vector instructions there are takes some seconds
        monkeypatch.setattr(torch._inductor.config.cpp, "vec_isa_ok", False)
    monkeypatch.setattr(torch._inductor.config, "compile_threads", 1)
    loss, gradients = trained(is_compiled=False)
    torch._dynamo.reset()
    counters.clear()
    again, others = trained(is_compiled=True)
    assert counters["stats"]["unique_graphs"] == 1
    assert not counters["graph_break"]
    assert gradients.keys() == others.keys()
    torch.testing.assert_close(again, loss, rtol=1e-5, atol=0)
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, rtol=1e-3, atol=1e-6, msg=name)


def test_blocks_in_fp8_share_their_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of which the front end alone is asked here."""
    model = make(gpt(LAYERS, width=32), seed=3).to(torch.bfloat16)
    use_fp8(model.blocks.values())
    torch._dynamo.reset()
    counters.clear()
    for block in model.blocks.values():
        block.forward = torch.compile(block.forward, backend="eager", fullgraph=True)
    model(torch.zeros(1, 32, dtype=torch.int64)).sum().backward()
    assert counters["stats"]["unique_graphs"] == 1


def test_a_machine_without_a_compiler_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert lack_of_compiler(cpu) is None
    monkeypatch.setattr("torch._inductor.config.cpp.cxx", ("no-such-compiler",))
    assert "C++" in str(lack_of_compiler(cpu))
