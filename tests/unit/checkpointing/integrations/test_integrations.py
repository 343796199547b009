"""What the integrations share, and that none of them brings its framework in by itself."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpointing import FormatError
from checkpointing.format.values.json_values import decode, encode
from checkpointing.integrations.framework_versions import OLDEST, refuse_older, version_problem
from checkpointing.state import rng_state
from checkpointing.state.packed_values import MAX_BYTES, pack, unpack

ROOT = Path(__file__).parents[4]


def through_a_store(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value, "value"))))


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor([1.5, float("nan"), -0.0]),
        torch.tensor(3, dtype=torch.int64),
        torch.empty(0, 3, dtype=torch.bfloat16),
        torch.ones(2, 3, dtype=torch.bfloat16)[:, 1:],
        torch.tensor([True, False]),
    ],
)
def test_tensors_come_back_to_the_bit(value: torch.Tensor) -> None:
    back = unpack(through_a_store(pack({"a": [value]}, "value")))["a"][0]
    assert back.dtype == value.dtype
    assert back.shape == value.shape
    assert (
        back.numpy(force=True).tobytes() == value.numpy(force=True).tobytes()
        if (value.dtype != torch.bfloat16)
        else torch.equal(back, value)
    )


def test_arrays_scalars_and_plain_values_come_back() -> None:
    value: dict[str, Any] = {
        "array": np.arange(6, dtype=np.uint32).reshape(2, 3),
        "scalar": np.float32(0.1),
        "plain": (1, None, [2.5, "x"], {3: True}),
        "tagged": {"$tensor": "of somebody else"},
    }
    back = unpack(through_a_store(pack(value, "value")))
    assert np.array_equal(back["array"], value["array"])
    assert back["array"].dtype == np.uint32
    assert back["scalar"] == np.float32(0.1)
    assert type(back["scalar"]) is np.float32
    assert (back["plain"], back["tagged"]) == (value["plain"], value["tagged"])


def test_what_is_too_large_or_holds_objects_is_refused() -> None:
    with pytest.raises(TypeError, match=r"'state/a/0': a tensor of 1048577 bytes.*buffer"):
        pack({"a": [torch.zeros(MAX_BYTES + 1, dtype=torch.uint8)]}, "state")
    with pytest.raises(TypeError, match="'state': a numpy array of dtype object"):
        pack(np.array([object()]), "state")
    for damaged in ({"$array": ["|O", [1], ""]}, {"$tensor": ["load", [1], ""]}):
        with pytest.raises(FormatError, match="unknown dtype"):
            unpack(damaged)


def test_random_numbers_go_on() -> None:
    def draw() -> list[float]:
        return [random.random(), random.gauss(0, 1), np.random.rand(), torch.rand(()).item()]

    random.gauss(0, 1)  # of a pair; the other one is part of the state
    states = through_a_store(rng_state.capture())
    expected = [draw(), draw()]
    rng_state.restore(states)
    assert [draw(), draw()] == expected


def test_a_framework_is_imported_by_its_integration_alone_and_missed_with_a_hint() -> None:
    program = (
        "import sys, checkpointing, checkpointing.checkpointer, checkpointing.integrations\n"
        "import checkpointing.state.rng_state, checkpointing.integrations.final_save\n"
        "assert not {'lightning', 'transformers', 'accelerate'} & set(sys.modules)\n"
        "sys.modules |= {'lightning': None, 'transformers': None}\n"
        "for name in ('lightning', 'huggingface'):\n"
        "    try:\n"
        "        __import__(f'checkpointing.integrations.{name}')\n"
        "    except ImportError as error:\n"
        "        assert 'pip install' in str(error), error\n"
        "    else:\n"
        "        raise AssertionError(name)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_an_older_framework_is_refused_with_what_to_install() -> None:
    said = version_problem("lightning", "2.4.0")
    assert said is not None
    assert said.startswith("lightning 2.4.0 is installed")
    assert "pip install 'lightning>=2.6'" in said
    installed = ("2.6.0", "2.10.1", "3.0rc1", "nightly")
    assert [version_problem("lightning", text) for text in installed] == [None] * 4
    refuse_older(*OLDEST)


def test_what_is_refused_is_older_than_what_the_extra_installs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = extras["optional-dependencies"]["integrations"]
    assert asked == [f"{name}>={oldest}" for name, oldest in OLDEST.items()]
