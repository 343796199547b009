"""A run on a token file that is killed goes on as the run that never was."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from data import python_stdlib
from hpckit.rundir.directory import RunDir
from hpckit.system.atomic_files import read_json
from tests.integration.run.runs import (
    ALONE,
    PACED,
    command,
    complete,
    history,
    kill,
    losses,
    started,
)

END, STEPS = 256, 40
TOKENS = (
    *ALONE,
    "data=tokens",
    f"data.end_of_text={END}",
    f"train.steps={STEPS}",
    "checkpoint.every_steps=5",
)


def write_tokens(path: Path) -> Path:
    """The bytes of some sources as tokens, as nanoGPT's prepare.py would write them."""
    sources = sorted((python_stdlib()[0] / "encodings").glob("*.py"))
    texts = [np.frombuffer(source.read_bytes(), np.uint8).astype(np.uint16) for source in sources]
    np.concatenate([np.append(text, np.uint16(END)) for text in texts]).tofile(path)
    return path


def test_killed_on_a_flat_file(tmp_path: Path) -> None:
    tokens = write_tokens(tmp_path / "train.bin")
    status, output = complete(tmp_path / "a", command(tmp_path / "a", tokens, *TOKENS))
    assert status == 0, output
    reference = RunDir(next((tmp_path / "a").glob("t-*")))
    with started(tmp_path / "b", command(tmp_path / "b", tokens, *TOKENS, PACED)) as it:
        it.wait_for_step(8)
        kill(it.wait_for("worker_started", rank=0)["pid"])
        status, output = it.finish()
        assert status == 0, output
    assert losses(it.run) == losses(reference)
    assert list(losses(it.run)) == list(range(1, STEPS + 1))
    assert len(history(it.run).lives) == 2
    assert read_json(it.run.verdict)["kind"] == "done"
