"""The estimate of a dry run beside the model itself."""

from __future__ import annotations

import pytest
import torch

from hpckit.launch.compose import compose_spec, conf_dir, group_options
from hpckit.launch.memory import VOCAB, describe_memory, largest_share, shapes
from hpckit.training import text
from hpckit.training.gpt import GPT
from tests.unit.hpckit.hpckit_parts import make_spec


@pytest.mark.parametrize("option", group_options(conf_dir())["model"])
def test_the_shapes_are_the_models(option: str) -> None:
    size = compose_spec([f"model={option}"]).model
    with torch.device("meta"):
        model = GPT(
            vocab=text.VOCAB,
            layers=size.layers,
            heads=size.heads,
            width=size.width,
            seq_len=size.seq_len,
        )
    assert list(shapes(size)) == [tuple(p.shape) for p in model.parameters()]
    parts = [p.chunk(3, dim=0)[0].numel() for p in model.parameters()]
    assert largest_share(size, 3) == sum(parts)


def test_what_is_not_known_is_not_told() -> None:
    spec = make_spec()
    assert VOCAB == text.VOCAB
    told = describe_memory(spec, 2)
    assert told is not None
    share = largest_share(spec.model, 2)
    assert f"holds {share * 4 / 2**20:,.1f} MiB of them" in told
    assert f"{share * 8 / 2**20:,.1f} MiB optimizer" in told
    assert describe_memory(make_spec({"entry": "mine:main"}), 2) is None
