"""The estimate of a dry run beside the model itself."""

from __future__ import annotations

import pytest

from hpckit.launch.compose import compose_spec, conf_dir, group_options
from hpckit.launch.memory import describe_memory, largest_share, shapes
from hpckit.training.models.building import build
from tests.unit.hpckit.hpckit_parts import make_spec


@pytest.mark.parametrize("option", group_options(conf_dir())["model"])
def test_the_shapes_are_the_models(option: str) -> None:
    size = compose_spec([f"model={option}"]).model
    model = build(size)
    assert sorted(shapes(size)) == sorted(tuple(p.shape) for p in model.parameters())
    parts = [p.chunk(3, dim=0)[0].numel() for p in model.parameters()]
    assert largest_share(size, 3) == sum(parts)


def test_what_is_not_known_is_not_told() -> None:
    spec = make_spec()
    told = describe_memory(spec, 2)
    assert told is not None
    share = largest_share(spec.model, 2)
    assert f"holds {share * 4 / 2**20:,.1f} MiB of them" in told
    assert f"{share * 8 / 2**20:,.1f} MiB optimizer" in told
    assert describe_memory(make_spec({"entry": "mine:main"}), 2) is None
