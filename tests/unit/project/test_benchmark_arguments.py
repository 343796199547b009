"""What benchmarks cannot measure is refused by their arguments."""

from __future__ import annotations

import importlib
import math

import pytest

from benchmarks.scale.growth_table import slope


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("scale.commit_scale --ranks 0", "--ranks: 0 is below 16"),
        ("scale.commit_scale --ranks 16 40", "--ranks: 40 is not a multiple of 16"),
        ("scale.commit_scale --tensors -1", "--tensors: -1 is below 1"),
        ("scale.many_ranks --ranks 1", "--ranks: 1 is below 4"),
        ("scale.many_ranks --ranks 10 7", "--ranks: 7 is not a multiple of 2"),
        ("scale.manifest_reads --ranks 0", "--ranks: 0 is below 1"),
        ("scale.replica_reads --nodes two", "--nodes: 'two' is not a whole number"),
        ("store.store_scale --fsdp 0", "--fsdp: 0 is below 1"),
        ("store.store_speed --gib nan", "--gib: nan is not above 0"),
        ("checkpoint.staging_stall --rounds 0", "--rounds: 0 is below 1"),
        ("device.device_saves --mib 1.5", "--mib: '1.5' is not a whole number"),
    ],
)
def test_a_wrong_number_is_named(
    command: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module, *words = command.split()
    monkeypatch.setattr("sys.argv", [module, *words])
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module(f"benchmarks.{module}").main()
    assert f"error: argument {told}\n" in capsys.readouterr().err


def test_one_size_has_no_slope() -> None:
    assert slope([(10, 1.0), (100, 10.0)]) == pytest.approx(1.0)
    assert math.isnan(slope([(10, 1.0), (10, 2.0)]))
