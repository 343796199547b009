"""Loading parts of any run's checkpoint: weights alone, other names, other heads."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from checkpointing import Checkpointer, StructureError, list_checkpoints
from checkpointing.restore.partial_load import load, renamed
from tests.integration.checkpoint.store_damage import damage_newest


def _model(seed: int, width: int = 3) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, width))


@pytest.fixture
def base(tmp_path: Path) -> nn.Module:
    """Saved at steps 1 and 2 of run "base", with its optimizer."""
    model = _model(1)
    optimizer = torch.optim.AdamW(model.parameters())
    state: dict[str, Any] = {"model": model, "optimizer": optimizer, "run": {"step": 0}}
    ckpt = Checkpointer(tmp_path, run="base")
    for step in (1, 2):
        model(torch.ones(4)).sum().backward()
        optimizer.step()
        state["run"]["step"] = step
        ckpt.save(step, state)
        ckpt.wait()
    ckpt.close()
    return model


def _same(one: nn.Module, other: nn.Module) -> bool:
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_weights_alone_of_the_newest_or_of_a_step(tmp_path: Path, base: nn.Module) -> None:
    model = _model(2)
    loaded = load({"model": model}, tmp_path, run="base")
    assert (loaded.step, loaded.missing, loaded.unexpected) == (2, (), ())
    assert _same(model, base)
    assert load({"model": model}, tmp_path, run="base", step=1).step == 1
    assert not _same(model, base)
    assert len(list_checkpoints(tmp_path)) == 2


def test_values_come_with_their_item(tmp_path: Path, base: nn.Module) -> None:
    state = {"run": {"step": 0}}
    load(state, tmp_path, run="base")
    assert state == {"run": {"step": 2}}


def test_an_optimizer_without_parameters_has_its_options_again(tmp_path: Path) -> None:
    def made(lr: float) -> dict[str, Any]:
        model = _model(1)
        optimizer = torch.optim.SGD([{"params": [], "lr": lr}])
        return {"model": model, "optimizer": optimizer}

    ckpt = Checkpointer(tmp_path, run="base")
    ckpt.save(1, made(0.5))
    ckpt.close()
    state = made(0.1)
    load(state, tmp_path, run="base")
    assert state["optimizer"].param_groups[0]["lr"] == 0.5


def test_under_other_names(tmp_path: Path, base: nn.Module) -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = _model(2)

    wrapped = Wrapped()
    load({"model": wrapped}, tmp_path, run="base", rename={"model/encoder.": "model/"})
    assert _same(wrapped.encoder, base)


def test_a_state_that_does_not_fit_is_told_and_left_alone(tmp_path: Path, base: nn.Module) -> None:
    model = nn.Sequential(*_model(2), nn.Linear(3, 2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(StructureError, match=r"missing in the checkpoint \(2\)(.|\n)*2\.weight"):
        load({"model": model}, tmp_path, run="base")
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    loaded = load({"model": model}, tmp_path, run="base", strict=False)
    assert loaded.missing == ("model/2.bias", "model/2.weight")
    assert _same(model[:2], base)
    assert torch.equal(model.state_dict()["2.weight"], before["2.weight"])


def test_a_load_of_nothing_is_refused_even_if_not_strict(tmp_path: Path, base: nn.Module) -> None:
    """As of a model that is wrapped: it would train from its random weights."""
    wrapped = nn.Sequential(OrderedDict(module=_model(2)))
    before = {name: tensor.clone() for name, tensor in wrapped.state_dict().items()}
    message = r"no tensor of the state is in .* has model/module\.0\.bias, .* has model/0\.bias, "
    with pytest.raises(StructureError, match=message):
        load({"model": wrapped}, tmp_path, run="base", strict=False)
    assert all(torch.equal(before[n], t) for n, t in wrapped.state_dict().items())
    with pytest.raises(StructureError, match="`rename`"):
        load({"modle": _model(2)}, tmp_path, run="base", strict=False)


def test_another_shape_is_refused_even_if_not_strict(tmp_path: Path, base: nn.Module) -> None:
    with pytest.raises(StructureError, match=r"model/1\.weight: float32\[3, 8\]"):
        load({"model": _model(2, width=5)}, tmp_path, run="base", strict=False)


def test_what_is_not_there_is_told_with_what_is(tmp_path: Path, base: nn.Module) -> None:
    with pytest.raises(FileNotFoundError, match=r"step 7 of run 'base'.*steps are \[1, 2\]"):
        load({"model": _model(2)}, tmp_path, run="base", step=7)
    with pytest.raises(FileNotFoundError, match="no checkpoint of run 'other'"):
        load({"model": _model(2)}, tmp_path, run="other")
    with pytest.raises(FileNotFoundError, match="no checkpoint store"):
        load({"model": _model(2)}, tmp_path / "nothing", run="base")


def test_damage_is_never_loaded(tmp_path: Path, base: nn.Module) -> None:
    damage_newest(tmp_path)
    model = _model(2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(Exception, match="packs/"):
        load({"model": model}, tmp_path, run="base", step=2)
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())


def test_the_longest_beginning_counts() -> None:
    rename = {"model/": "a/", "model/head.": "b/"}
    assert renamed("model/head.weight", rename) == "b/weight"
    assert renamed("model/body.weight", rename) == "a/body.weight"
    assert renamed("optimizer/lr", rename) == "optimizer/lr"
