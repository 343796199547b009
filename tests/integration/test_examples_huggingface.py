"""The example of Hugging Face's Trainer: killed, started again, the same to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.examples import assert_same_end, beside, kill_service, run

pytest.importorskip("transformers", reason="the dev extra has transformers")
pytest.importorskip("accelerate", reason="the dev extra has accelerate")


def test_killed_it_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    reference, root = tmp_path / "reference", tmp_path / "root"
    with beside("huggingface_trainer", reference) as finished:
        first = run("huggingface_trainer", root, kill_at=17)
        second = run("huggingface_trainer", root, kill_at=45)
        kill_service(root, "huggingface")
        third = run("huggingface_trainer", root)
        whole = finished.result()
    assert sorted(whole.losses) == list(range(1, 81))
    assert min(second.losses) == 15
    assert min(third.losses) <= 43
    for part in (first, second, third):
        assert part.losses.items() <= whole.losses.items()
    assert_same_end(root, reference, "huggingface")
