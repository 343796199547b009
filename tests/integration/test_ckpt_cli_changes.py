"""`hpckit ckpt`: the commands that change a store, or make something of it."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from checkpointing.store.store import Store
from tests.integration.ckpt_commands import (
    KEEP,
    break_chunk,
    break_manifest,
    ckpt,
    document,
    folder,
    make_store,
    ok,
    refused,
    save_of,
)
from tests.unit.checkpointing.store.making import make


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store")


# prune, pin, unpin


def test_prune_does_what_the_dry_run_said(store: Store) -> None:
    policies = ("--keep", "last=1", "--keep", "best=loss:max", "--keep", "model:every=200")
    plan = document("prune", store.url, *policies, "--dry-run")
    fates = {c["step"]: (c["goes"], c["drops"]) for c in plan["checkpoints"]}
    lost = ["optimizer", "rng", "scheduler"]
    assert fates == {400: (False, []), 300: (True, []), 200: (False, lost), 100: (False, [])}
    assert len(document("ls", store.url)["checkpoints"]) == 4
    done = document("prune", store.url, *policies, "--grace", 0)
    assert [int(id_[:10]) for id_ in done["removed"]] == [300]
    assert [int(id_[:10]) for id_ in done["reduced"]] == [200]
    assert done["swept"]["deleted"] == plan["freed"]["packs"]
    after = document("du", store.url)["packs"]
    rest = plan["freed"]["bytes"] - plan["freed"]["pack_bytes"]
    assert (after["dead_bytes"] > 0) == (rest > 0)
    assert after["garbage_bytes"] == 0
    assert "all whole" in ok("verify", store.url)


def test_prune_needs_policies_that_make_sense(store: Store) -> None:
    assert "--keep" in refused("prune", store.url)
    assert "last=N" in refused("prune", store.url, "--keep", "lst=3")
    assert "loss" in refused("prune", store.url, "--keep", "best=lss")
    assert "optimizer" in refused("prune", store.url, "--keep", "modle:last=3")
    assert len(document("ls", store.url)["checkpoints"]) == 4


def test_prune_waits_for_the_grace_period_unless_told_not_to(store: Store) -> None:
    alone = np.random.default_rng(9).standard_normal(500).astype("f4")
    make(store, 50, {"model/alone": ("float32", alone)})
    policy = ("prune", store.url, "--keep", "last=4")
    left = document(*policy, "--grace", 3600, "--no-wait")["swept"]
    assert (left["condemned"], len(left["waiting"]), left["deleted"]) == (1, 1, 0)
    done = document(*policy, "--grace", 3)["swept"]
    assert (done["waiting"], done["deleted"]) == ({}, 1)
    assert document("du", store.url)["packs"]["garbage_packs"] == 0


def test_prune_counts_no_damaged_checkpoint(store: Store) -> None:
    break_manifest(store, 400, at=-1)
    body = document("prune", store.url, *KEEP, "--grace", 0, exit_code=1)
    assert sorted(int(id_[:10]) for id_ in body["removed"]) == [100, 200]
    assert list(body["damaged"]) == [save_of(store, 400).id]
    assert {i["step"] for i in document("ls", store.url)["checkpoints"]} == {300, 400}


def test_prune_deletes_no_pack_beside_an_unreadable_manifest(store: Store) -> None:
    break_manifest(store, 300)
    body = document("prune", store.url, *KEEP, "--grace", 0, exit_code=1)
    assert body["swept"]["unreadable"]
    assert body["swept"]["deleted"] == 0


def test_pins_survive_a_prune_and_show(store: Store) -> None:
    ok("pin", store.url, 100, "--why", "figure 3")
    assert document("ls", store.url)["checkpoints"][0]["marks"] == ["pinned"]
    assert "figure 3" in ok("show", store.url, 100)
    ok("prune", store.url, *KEEP, "--grace", 0)
    assert {i["step"] for i in document("ls", store.url)["checkpoints"]} == {100, 400}
    assert "unpinned" in ok("unpin", store.url, 100)
    assert "was not pinned" in ok("unpin", store.url, 100)
    ok("prune", store.url, *KEEP, "--grace", 0)
    assert {i["step"] for i in document("ls", store.url)["checkpoints"]} == {400}


# repair, flatten, compact


def test_repair_heals_from_another_store(store: Store, tmp_path: Path) -> None:
    shutil.copytree(folder(store), tmp_path / "mirror")
    break_chunk(store, 100, "model/frozen")
    assert ckpt("repair", store.url).exit_code == 1
    body = document("repair", store.url, 400, "--from", tmp_path / "mirror")
    assert body["checkpoints"][0]["healed"]
    ok("repair", store.url, "--from", tmp_path / "mirror")
    assert "all whole" in ok("verify", store.url)


def test_repair_brings_a_manifest_back(store: Store, tmp_path: Path) -> None:
    shutil.copytree(folder(store), tmp_path / "mirror")
    break_manifest(store, 300)
    assert ckpt("repair", store.url, 300).exit_code == 1
    ok("repair", store.url, 300, "--from", tmp_path / "mirror")
    assert document("show", store.url, 300)["step"] == 300


def test_adopt_commits_complete_saves(store: Store) -> None:
    save = make(store, 500, {"model/w": ("float32", np.ones(4, "f4"))}, commits=False)
    assert document("repair", store.url, "--adopt")["adopted"] == [save.id]
    assert document("show", store.url)["id"] == save.id
    refused("repair", store.url, 500, "--adopt")


def test_flatten_leaves_no_bases(store: Store) -> None:
    assert document("flatten", store.url, 400)["run"] == "demo"
    assert {row["depth"] for row in document("show", store.url, 400)["tensors"]} == {0}
    assert "all whole" in ok("verify", store.url, 400)


def test_compact_frees_dead_bytes(store: Store) -> None:
    ok("prune", store.url, "--keep", "model:last=4", "--grace", 0)
    ok("compact", store.url, "--threshold", 0)
    ok("prune", store.url, "--keep", "last=4", "--grace", 0)
    packs = document("du", store.url)["packs"]
    assert (packs["dead_bytes"], packs["garbage_bytes"]) == (0, 0)
    assert "all whole" in ok("verify", store.url)


# export, import


@pytest.mark.parametrize("format_", ["safetensors", "dcp"])
def test_what_was_exported_comes_back_the_same(store: Store, tmp_path: Path, format_: str) -> None:
    out, new = tmp_path / "out", tmp_path / "new"
    ok("export", store.url, 200, out, "--format", format_, "--item", "model")
    arguments = (out, new, "--format", format_, "--step", 5, "--run", "back")
    assert "--create" in refused("import", *arguments)
    assert not new.exists()
    ok("import", *arguments, "--create")
    found = document("diff", store.url, 200, 5, "--with", new, "--tensor", "model/*")["tensors"]
    assert [row["kind"] for row in found] == ["same", "same"]


def test_export_to_torch(store: Store, tmp_path: Path) -> None:
    file = tmp_path / "all.pt"
    body = document("export", store.url, "latest", file, "--format", "torch")
    assert body["paths"] == [str(file)]
    assert file.stat().st_size > body["raw_bytes"]
    assert "already" in refused("export", store.url, "latest", file, "--format", "torch")


def test_a_torch_file_comes_in(store: Store, tmp_path: Path) -> None:
    file, arguments = tmp_path / "all.pt", ("--format", "torch", "--step", 7, "--run", "back")
    ok("export", store.url, 200, file, "--format", "torch")
    ok("import", file, tmp_path / "new", *arguments, "--create")
    found = document("diff", store.url, 200, 7, "--with", tmp_path / "new")["tensors"]
    assert [row["kind"] for row in found] == ["same"] * 3
    assert '{"epoch": 200}' in ok("show", tmp_path / "new", 7)
    file.write_bytes(file.read_bytes()[:-50])
    assert "cut off" in refused("import", file, tmp_path / "new", *arguments, exit_code=1)
    file.write_bytes(b"no zip file")
    assert "no file of torch.save" in refused("import", file, tmp_path / "new", *arguments)
    assert len(document("ls", tmp_path / "new")["checkpoints"]) == 1


def test_export_of_damage_leaves_nothing(store: Store, tmp_path: Path) -> None:
    break_chunk(store, 100, "model/frozen")
    out = tmp_path / "out"
    arguments = ("export", store.url, 400, out, "--format", "safetensors")
    assert "verify" in refused(*arguments, exit_code=1)
    assert not list(out.glob("*"))


def test_export_refuses_what_is_not_there(store: Store, tmp_path: Path) -> None:
    to = (tmp_path / "x", "--format", "safetensors")
    assert "optimizer" in refused("export", store.url, 400, *to, "--item", "modle")
    assert "5GB" in refused("export", store.url, 400, *to, "--max-shard", "big")
    assert "not there" in refused(
        "import", tmp_path / "none", store.url, "--format", "dcp", "--step", 1
    )


def test_on_a_terminal_prune_asks(store: Store) -> None:
    answered = _on_terminal(b"n\n", "prune", store.url, *KEEP, "--grace", "0")
    assert "Remove this?" in answered
    assert len(document("ls", store.url)["checkpoints"]) == 4
    _on_terminal(b"y\n", "prune", store.url, *KEEP, "--grace", "0")
    assert len(document("ls", store.url)["checkpoints"]) == 1


def _on_terminal(answer: bytes, *arguments: str) -> str:
    """What a command writes to a terminal where somebody answers."""
    ours, theirs = pty.openpty()
    code = "from hpckit.cli.main import app; app()"
    command = [sys.executable, "-c", code, "ckpt", *arguments]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        os.write(ours, answer)
        text = b""
        while data := _read(ours):
            text += data
    os.close(ours)
    return text.decode()


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 4096)
    except OSError:  # the other side was closed
        return b""
