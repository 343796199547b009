"""The example of Hugging Face's Trainer: killed, started again, the same to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.examples.example_programs import assert_killed_it_goes_on

pytest.importorskip("transformers", reason="the dev extra has transformers")
pytest.importorskip("accelerate", reason="the dev extra has accelerate")


def test_killed_it_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    assert_killed_it_goes_on("huggingface", tmp_path)
