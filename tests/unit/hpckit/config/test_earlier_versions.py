"""What an earlier release has stored is read by this one, and is the same experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpckit.config import earlier_versions
from hpckit.config.earlier_versions import AddedKey, completed, reduced
from hpckit.config.run_identity import identity
from hpckit.config.spec_parser import parse_spec, read_spec
from tests.unit.hpckit.specs_and_processes import make_spec, make_values

GOLDEN = Path(__file__).parent / "golden"
IDENTITIES = {
    "0.1/gpt": "5f063bea",
    "0.1/llama": "d811c711",
    "0.1/resnet": "4843a49d",
    "0.1/vit": "47c1ef67",
}


@pytest.mark.parametrize(("name", "known"), IDENTITIES.items())
def test_golden_specs(name: str, known: str) -> None:
    """Whoever breaks this has changed what a key means, or added one and not entered it in
    `hpckit.config.earlier_versions`: these files are never written anew."""
    assert identity(read_spec(GOLDEN / f"{name}.yaml")) == known


def without(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    for key in keys:
        *parents, last = key.split(".")
        where = values
        for parent in parents:
            where = where[parent]
        del where[last]
    return values


EMA = AddedKey("optim.ema_decay", None)
LORA = AddedKey("lora", None)
EXPERTS = AddedKey("model.experts", None, kind="gpt")


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if these keys came after what is stored."""
    monkeypatch.setattr(earlier_versions, "ADDED", (EMA, LORA, EXPERTS))


@pytest.mark.usefixtures("later")
def test_a_key_that_came_later_is_as_it_was_before(tmp_path: Path) -> None:
    old = without(make_values(), "optim.ema_decay", "lora", "model.experts")
    spec = parse_spec(old)
    assert spec == make_spec()
    assert "lora" not in old, "it is the caller's"


@pytest.mark.usefixtures("later")
def test_a_key_of_one_kind_is_no_key_of_another() -> None:
    assert parse_spec(make_values(model="resnet_nano")).model.kind == "resnet"


def test_an_experiment_stays_what_it_was_until_the_new_key_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(earlier_versions, "ADDED", (EMA,))
    with_key = identity(make_spec())
    monkeypatch.setattr(earlier_versions, "ADDED", (EMA, LORA))
    assert identity(make_spec(lora="default")) != identity(make_spec()) != with_key
    before = reduced(make_values(), (EMA, LORA))
    assert "lora" not in before
    assert "ema_decay" not in before["optim"]
    assert reduced(make_values({"optim.ema_decay": 0.9}), (EMA,))["optim"]["ema_decay"] == 0.9


def test_a_group_may_get_a_key_that_came_later_still() -> None:
    added = (AddedKey("new", {"a": 1}), AddedKey("new.b", [2]))
    assert completed({}, added) == {"new": {"a": 1, "b": [2]}}
    assert completed({"new": {"a": 5}}, added) == {"new": {"a": 5, "b": [2]}}
    assert completed({"new": None}, added) == {"new": None}
    assert reduced({"new": {"a": 1, "b": [2]}}, added) == {}
    assert reduced({"new": {"a": 1, "b": [3]}}, added) == {"new": {"a": 1, "b": [3]}}
    assert completed({}, added)["new"]["b"] is not added[1].value
