"""The loss curve is a picture, or is not there at all."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpckit.report.curve import draw_loss_curve
from hpckit.report.history import History, build_history
from hpckit.run.events import Event


def history(losses: list[float | None]) -> History:
    events = [
        Event(0.0, "run_started", {"steps": 10}),
        Event(1.0, "generation_started", {"generation": 1, "nodes": 1}),
    ]
    for life, start in ((1, 0), (2, 2)):
        common: dict[str, Any] = {"generation": life, "attempt": 0}
        at = 10.0 * life
        world = {"step": start, "world_size": life, "samples": 5}
        events.append(Event(at, "training_started", common | world))
        for n, loss in enumerate(losses, start=1):
            record = common | {"step": start + n, "loss": loss, "step_s": 1.0}
            events.append(Event(at + n, "step", record))
        events.append(Event(at + 9, "checkpoint_committed", common | {"step": start + 1}))
        ended = {"generation": life, "verdict": "crash", "reason": "x", "step": start}
        events.append(Event(at + 9, "generation_ended", ended))
    return build_history(events)


def test_a_run_with_losses_gets_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "report" / "loss.png"
    assert draw_loss_curve(history([3.0, 2.0, 1.5, 1.2]), "run [x] $y$", path) is True
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    assert (width, height) == (1080, 540)
    assert len(content) > 10_000


def test_validation_is_in_the_picture(tmp_path: Path) -> None:
    plain = history([3.0, 2.0, 1.5, 1.2])
    found = {2: Event(0.0, "validated", {"step": 2, "val_loss": 2.5})}
    pictures = [tmp_path / "plain.png", tmp_path / "validated.png"]
    for told, path in zip((plain, replace(plain, validated=found)), pictures, strict=True):
        assert draw_loss_curve(told, "run", path)
    one, other = (path.read_bytes() for path in pictures)
    assert one != other


def test_a_loss_that_is_no_number_does_not_spoil_the_picture(tmp_path: Path) -> None:
    assert draw_loss_curve(history([3.0, float("nan"), float("inf")]), "x", tmp_path / "a.png")


def test_without_losses_there_is_no_picture(tmp_path: Path) -> None:
    for case in (history([]), history([None, None])):
        assert draw_loss_curve(case, "x", tmp_path / "report" / "loss.png") is False
    assert list(tmp_path.iterdir()) == []
