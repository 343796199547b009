"""Losses of windows of documents, with and without gradients, however the model is spread."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from hpckit.config.spec import RunSpec
from hpckit.trainer.batches.token_windows import TokenBatch, TokenWindows, next_token_batch
from hpckit.trainer.language_model import sample_mean
from hpckit.trainer.optim import build_optimizer
from hpckit.trainer.parallel.device_mesh import coordinate_in, make_mesh
from hpckit.trainer.parallel.parallel_model import ParallelModel
from tests.effort import some
from tests.integration.rank_worlds import run_world
from tests.integration.trainer.test_parallel_model import BATCH, DEEP, WORLD, batch, specs_of

STEPS = 2
KINDS = {"gpt_nano": some(["zero2", "interleaved"], ["gpipe_ddp"]), "llama_nano": ["3d"]}


def given() -> TokenBatch:
    """Of all ranks: in each window three documents."""
    tokens = batch()
    places = torch.arange(tokens.shape[1]).expand_as(tokens)
    return next_token_batch(TokenWindows(tokens, (places > 4).long() + (places > 9).long()))


def trained(spec: RunSpec, *, evaluates: bool) -> tuple[list[float], list[list[float]]]:
    """The loss of each step, over all ranks; and those of the tokens before it, by sample."""
    mesh = make_mesh("cpu", spec.parallel)
    place, parallel_model = coordinate_in(mesh), ParallelModel(spec, mesh, torch.device("cpu"))
    optimizer = build_optimizer(parallel_model.module, spec.optim)
    gradients = parallel_model.step_gradients(BATCH // place.data_size, sample_mean)
    mine = [each.chunk(place.data_size)[place.data] for each in given() if each is not None]
    steps, evaluated = [], []
    for _ in range(STEPS):
        if evaluates:
            means = gradients.outputs(*mine).double().mean(1)
            whole = torch.zeros(place.data_size, len(means), dtype=torch.float64)
            whole[place.data] = means
            dist.all_reduce(whole)
            evaluated.append((whole.flatten() / place.copies).tolist())
        optimizer.zero_grad()
        loss = gradients(*mine)
        parallel_model.clip_gradients(spec.optim.grad_clip)
        optimizer.step()
        dist.all_reduce(loss)
        steps.append(float(loss) / dist.get_world_size())
    return steps, evaluated


def both(rank: int, tmp: Path, specs: list[RunSpec]) -> list[tuple[list[float], ...]]:
    found = []
    for spec in specs:
        steps, evaluated = trained(spec, evaluates=True)
        assert trained(spec, evaluates=False)[0] == steps, f"{spec.parallel}: to the last bit"
        found.append((steps, *evaluated))
    return found


@pytest.mark.parametrize("model", KINDS)
def test_they_are_those_of_one_process_and_leave_training_as_it_is(
    tmp_path: Path, model: str
) -> None:
    alone, specs = (specs_of(each, model, DEEP) for each in (["alone"], KINDS[model]))
    ((expected,),) = run_world(1, partial(both, specs=alone), tmp_path)
    ranks = run_world(WORLD, partial(both, specs=specs), tmp_path)
    assert all(found == ranks[0] for found in ranks)
    assert expected[0][-1] < expected[0][0] - 0.01, "it learns"
    for kind, found in zip(KINDS[model], ranks[0], strict=True):
        for values, others in zip(found, expected, strict=True):
            assert values == pytest.approx(others, rel=2e-5), kind
