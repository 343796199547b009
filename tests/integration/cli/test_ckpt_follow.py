"""`hpckit ckpt follow`: what it prints, where the weights are, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from checkpointing.follower.shared_weights import SharedWeights
from checkpointing.store.store import Store
from tests.integration.cli.ckpt_commands import break_chunk, ckpt, make_store, ok, refused
from tests.unit.checkpointing.follower.followed_stores import written
from tests.unit.checkpointing.store.tensor_checkpoints import make

NOTE = 'import os, sys; open(sys.argv[1], "a").write(" ".join(sys.argv[2:]) + "\\n")'


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store")


def test_the_newest_step_once_and_what_it_cost(store: Store, tmp_path: Path) -> None:
    into = tmp_path / "into"
    text = ok("follow", store.url, "--into", into, "--once")
    assert text.startswith("step 400: ")
    assert "2 tensors changed" in text
    assert sorted(written(into)) == ["frozen", "layer.weight"]
    again = ckpt("follow", store.url, "--into", into, "--once")
    assert (again.exit_code, again.stdout) == (0, "")
    assert f"{into} holds step 400 already" in again.stderr


def test_each_step_as_a_line_of_json_until_a_step(store: Store, tmp_path: Path) -> None:
    into = tmp_path / "into"
    first = ok("follow", f"{store.url}/runs/demo", "--into", into, "--once", "--json")
    assert json.loads(first)["step"] == 400
    for step in (500, 600):
        make(store, step, {"model/layer.weight": ("float32", np.full((200, 400), step, "f4"))})
    options = ("--order", "each", "--until-step", 600, "--interval", 0.05, "--json")
    lines = ok("follow", store.url, "--into", into, *options).splitlines()
    found = [json.loads(line) for line in lines]
    assert [(one["step"], one["full_bytes"]) for one in found] == [(500, 320000), (600, 320000)]
    assert found[-1]["file"] == str(into / "step-600.safetensors")
    assert found[-1]["bytes"] < 5000  # one number alone


def test_a_command_after_each_step(store: Store, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    command = f"{sys.executable} -c '{NOTE}' {notes} {{step}} {{file}} '; rm -rf x'"
    ok("follow", store.url, "--into", tmp_path / "a", "--once", "--exec", command)
    assert notes.read_text() == f"400 {tmp_path}/a/step-400.safetensors ; rm -rf x\n"
    failing = f"{sys.executable} -c 'import os; os._exit(int(os.environ[\"HPCKIT_STEP\"]) % 7)'"
    result = ckpt("follow", store.url, "--into", tmp_path / "b", "--once", "--exec", failing)
    assert result.exit_code == 1
    assert "step 400: " in result.stdout
    assert "ended with status 1" in result.stderr


def test_a_damaged_step_is_skipped(store: Store, tmp_path: Path) -> None:
    break_chunk(store, 400, "model/layer.weight")
    assert ok("follow", store.url, "--into", tmp_path / "into", "--once").startswith("step 300: ")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--into", "shm:a/b", "--once"), "error: name 'a/b': use letters"),
        (("--into", "into", "--once", "--names", "modle/*"), "no tensor that matches 'modle/*'"),
        (("--into", "into", "--exec", "no-such-program"), "is not a program on this machine"),
        (("--into", "into", "--exec", "'"), "No closing quotation"),
        (("--into", "into", "--once", "--run", "other"), "no checkpoint whose weights"),
    ],
)
def test_what_is_wrong_is_refused(
    store: Store,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    text: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert text in refused("follow", store.url, *arguments)


def test_a_place_without_a_store_is_refused(tmp_path: Path) -> None:
    assert "no checkpoint store at" in refused("follow", tmp_path / "x", "--into", tmp_path / "y")


def test_it_ends_after_a_signal(store: Store, tmp_path: Path) -> None:
    name = f"test-{os.getpid()}"
    arguments = ("ckpt", "follow", store.url, "--into", f"shm:{name}", "--json")
    process = subprocess.Popen(
        [sys.executable, "-m", "hpckit", *arguments], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["step"] == 400
        held = SharedWeights(name).latest()
        assert held.step == 400
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        folder = Path("/dev/shm") / f"hpckit-{name}"
    finally:
        process.kill()
        process.wait()
        subprocess.run(["rm", "-rf", f"/dev/shm/hpckit-{name}"], check=True)
    assert not folder.exists()
    assert held.numpy("layer.weight").shape == (200, 400)
