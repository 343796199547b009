"""python -m pytest"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from train import NextByte, loss_of

from hpckit.submit.compose import compose_spec
from hpckit.submit.preflight.entry_point import entry_problems

HERE = Path(__file__).resolve().parent


def test_the_model_learns_a_text_by_heart() -> None:
    torch.manual_seed(1)
    model = NextByte(width=32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    text = torch.tensor([list(b"it comes back by itself, at the very next sample")])
    first = float(loss_of(model, text))
    for _ in range(60):
        optimizer.zero_grad()
        loss_of(model, text).backward()
        optimizer.step()
    assert float(loss_of(model, text)) < first / 4


def test_the_experiment_is_one_that_hpckit_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)
    spec = compose_spec(["experiment=first"])
    assert entry_problems(spec.entry or "", HERE) == []
