"""Rules for evaluations."""

from __future__ import annotations

from typing import Any

import pytest

from hpckit.config.spec_parser import SpecError, parse_spec
from tests.unit.hpckit.specs_and_processes import make_values

ENTRY = {"eval.entry": "mine:evaluate"}


@pytest.mark.parametrize(
    ("changes", "options", "problem"),
    [
        ({"eval.every": 10}, {}, "eval.entry: is required when eval.every=10"),
        ({"eval.metric": "acc"}, {}, "eval.metric: acc is measured by eval.entry"),
        ({**ENTRY, "eval.metric": "acc", "checkpoint.keep.best": "loss"}, {}, "there is one mark"),
        ({**ENTRY, "eval.metric": "a b"}, {}, "eval.metric: must be letters"),
        ({**ENTRY, "eval.item": "optimizer"}, {}, "eval.item: must be model or ema"),
        ({"eval.item": "ema"}, {}, "eval.item: ema is saved only with optim.ema_decay"),
        ({"eval.slurm.options": {"nice": 5}}, {}, "use eval.slurm.nice instead"),
        ({"eval.slurm.options": {"time": "1"}}, {}, "use eval.time_limit instead"),
        ({"eval.slurm.options": {"array": "0-3"}}, {}, "hpckit sets this option itself"),
        (
            {"eval.slurm.options": {"comment": "x"}},
            {},
            "hpckit finds evaluations by their comments",
        ),
        ({**ENTRY, "eval.every": 10}, {"cluster": "site_pyxis"}, "run outside of containers"),
        ({**ENTRY, "eval.every": 10}, {"command": "program"}, "how a program stores"),
    ],
)
def test_what_cannot_be_is_refused(
    changes: dict[str, Any], options: dict[str, str], problem: str
) -> None:
    with pytest.raises(SpecError) as caught:
        parse_spec(make_values(changes, **options))
    assert any(problem in line for line in caught.value.violations), caught.value.violations
