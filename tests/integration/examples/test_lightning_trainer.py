"""The example of Lightning: killed in the middle of epochs, started again, the same to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.examples.example_programs import assert_killed_it_goes_on

pytest.importorskip("lightning", reason="the dev extra has Lightning")


def test_killed_it_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    assert_killed_it_goes_on("lightning", tmp_path)
