"""Shapes of parameters beside the models themselves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.config.config_trees import conf_dir, group_options
from hpckit.config.rules.model import decoder_of
from hpckit.planner.model.parameter_shapes import ParameterShape, block, elements, ends, parameters
from hpckit.submit.compose import compose_spec
from hpckit.trainer.models.decoder import LayerRange
from hpckit.trainer.models.model_builder import build

MODELS = [name for name in group_options(conf_dir())["model"] if name.startswith(("gpt", "llama"))]


@pytest.mark.parametrize("option", MODELS)
def test_the_shapes_are_the_models(option: str) -> None:
    size = decoder_of(compose_spec([f"model={option}"]))
    model = build(size)
    shapes = [one.shape for one in parameters(size)]
    assert sorted(shapes) == sorted(tuple(p.shape) for p in model.parameters())
    parts = [p.chunk(3, dim=0)[0].numel() for p in model.parameters()]
    assert elements(parameters(size), shard=3) == sum(parts)


@pytest.mark.parametrize("option", ["gpt_nano", "llama_nano", "llama_1b"])
def test_the_parts_of_a_pipeline_have_theirs(option: str) -> None:
    size = decoder_of(compose_spec([f"model={option}"]))
    middle = size.layers // 2
    for part in (LayerRange(0, middle, size.layers), LayerRange(middle, size.layers, size.layers)):
        mine = [*ends(size, is_first=part.is_first, is_last=part.is_last)]
        blocks = (part.end - part.begin) * elements(block(size))
        assert elements(mine) + blocks == sum(p.numel() for p in build(size, part).parameters())


@pytest.mark.parametrize("option", ["gpt_nano", "llama_nano"])
def test_what_tensor_parallelism_divides_is_what_the_models_name(option: str) -> None:
    size = decoder_of(compose_spec([f"model={option}"]))
    model = build(size)
    divided = {"columns": 0, "rows": 0}
    for name, parameter in model.blocks["0"].named_parameters():
        layer = name.rpartition(".")[0]
        divided["columns"] += parameter.numel() if layer in model.COLUMNS else 0
        divided["rows"] += parameter.numel() if layer in model.ROWS and parameter.dim() > 1 else 0
    counted = [
        sum(one.elements() for one in block(size) if one.divided == dimension)
        for dimension in (0, 1)
    ]
    assert counted == [divided["columns"], divided["rows"]]


@given(st.integers(1, 97), st.integers(1, 97), st.integers(1, 8), st.integers(1, 8))
def test_nobody_has_more_than_the_rank_that_is_counted(
    rows: int, columns: int, tensor: int, shard: int
) -> None:
    one = ParameterShape((rows, columns), 0)
    most = one.elements(tensor, shard)
    assert most * tensor * shard >= rows * columns
    assert most <= one.elements(tensor) <= one.elements()
