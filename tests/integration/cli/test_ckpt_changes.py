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

from checkpointing.store import pins_and_labels
from checkpointing.store.store import Store
from tests.integration.cli.ckpt_commands import (
    KEEP,
    break_chunk,
    break_manifest,
    break_mark,
    ckpt,
    document,
    folder,
    make_store,
    ok,
    refused,
    save_of,
)
from tests.services.s3 import S3Place
from tests.unit.checkpointing.store.tensor_checkpoints import make


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
    done = document("prune", "--yes", store.url, *policies, "--grace", 0)
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
    policy = ("prune", "--yes", store.url, "--keep", "last=4")
    left = document(*policy, "--grace", 3600, "--no-wait")["swept"]
    assert (left["condemned"], len(left["waiting"]), left["deleted"]) == (1, 1, 0)
    done = document(*policy, "--grace", 3)["swept"]
    assert (done["waiting"], done["deleted"]) == ({}, 1)
    assert document("du", store.url)["packs"]["garbage_packs"] == 0


def test_prune_counts_no_damaged_checkpoint(store: Store) -> None:
    break_manifest(store, 400, at=-1)
    body = document("prune", "--yes", store.url, *KEEP, "--grace", 0, exit_code=1)
    assert sorted(int(id_[:10]) for id_ in body["removed"]) == [100, 200]
    assert list(body["damaged"]) == [save_of(store, 400).id]
    assert {i["step"] for i in document("ls", store.url)["checkpoints"]} == {300, 400}


def test_prune_deletes_no_pack_beside_an_unreadable_manifest(store: Store) -> None:
    break_manifest(store, 300)
    body = document("prune", "--yes", store.url, *KEEP, "--grace", 0, exit_code=1)
    assert body["swept"]["unreadable"]
    assert body["swept"]["deleted"] == 0


def test_pins_survive_a_prune_and_show(store: Store) -> None:
    ok("pin", store.url, 100, "--why", "figure 3")
    assert document("ls", store.url)["checkpoints"][0]["marks"] == ["pinned"]
    assert "figure 3" in ok("show", store.url, 100)
    ok("prune", "--yes", store.url, *KEEP, "--grace", 0)
    assert {i["step"] for i in document("ls", store.url)["checkpoints"]} == {100, 400}
    assert "unpinned" in ok("unpin", store.url, 100)
    assert "was not pinned" in ok("unpin", store.url, 100)
    ok("prune", "--yes", store.url, *KEEP, "--grace", 0)
    assert {i["step"] for i in document("ls", store.url)["checkpoints"]} == {400}


def test_pinning_again_keeps_the_reason_or_replaces_it(store: Store) -> None:
    def why() -> str:
        return pins_and_labels.pins(store, "demo")[save_of(store, 100).id]

    assert "already" not in ok("pin", store.url, 100, "--why", "figure 3")
    assert "already pinned: reason 'figure 3' stays" in ok("pin", store.url, 100)
    assert why() == "pinned: figure 3"
    text = ok("pin", store.url, 100, "--why", "table 1")
    assert "reason 'table 1' replaces 'figure 3'" in text
    assert why() == "pinned: table 1"
    body = document("pin", store.url, 100)
    assert (body["why"], body["was"]) == ("table 1", "table 1")
    assert "no reason replaces 'table 1'" in ok("pin", store.url, 100, "--why", "")
    assert why() == "pinned"
    assert "it now has reason 'x'" in ok("pin", store.url, 100, "--why", "x")
    break_mark(store, 100)
    assert "its reason is lost" in ckpt("pin", store.url, 100).stderr
    assert why() == "pinned"


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


@pytest.fixture
def mirror(store: Store, tmp_path: Path) -> Path:
    return shutil.copytree(folder(store), tmp_path / "mirror")


def steps(store: Store) -> list[int]:
    return [info["step"] for info in document("ls", store.url)["checkpoints"]]


def files(store: Store) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder(store).rglob("*") if path.is_file()}


def test_repair_brings_a_lost_manifest_back(store: Store, mirror: Path) -> None:
    save = save_of(store, 300)
    (folder(store) / save.manifest()).unlink()
    ok("repair", store.url)
    text = ok("repair", store.url, "--from", mirror, "--dry-run")
    assert f"would be repaired: {save.manifest()}: the manifest does not exist; from" in text
    assert steps(store) == [100, 200, 400]
    ok("repair", store.url, "--from", mirror)
    assert "all whole" in ok("verify", store.url)
    found = document("diff", store.url, save.id, save.id, "--with", mirror)
    assert {row["kind"] for row in [*found["tensors"], *found["values"]]} == {"same"}
    assert "nothing to repair" in ok("repair", store.url, 300, "--from", mirror)


def test_what_was_pruned_comes_back_when_it_is_named(store: Store, mirror: Path) -> None:
    alone = np.random.default_rng(9).standard_normal(500).astype("f4")
    save = make(Store.open(mirror), 50, {"model/alone": ("float32", alone)})
    told = ckpt("repair", store.url, "--from", mirror).stderr
    assert "in the store of --from but not in this one, probably pruned: step 50 (" in told
    assert f"hpckit ckpt repair {store.url} {save.id}" in told
    assert "nothing to repair" in ok("repair", store.url, "latest", "--from", mirror)
    assert steps(store) == [100, 200, 300, 400]
    before = files(store)
    plan = document("repair", store.url, 50, "--from", mirror, "--dry-run")["checkpoints"]
    assert files(store) == before
    assert (len(plan), plan[0]["id"], plan[0]["key"], plan[0]["lost"]) == (1, save.id, None, [])
    assert len(plan[0]["healed"]) == 2  # the manifest, and the chunk
    done = document("repair", store.url, save.id, "--from", mirror)["checkpoints"]
    assert done == [{**plan[0], "key": save.manifest(1)}]
    assert "all whole" in ok("verify", store.url)
    assert steps(store) == [50, 100, 200, 300, 400]


def test_what_is_gone_comes_back_whole_or_not_at_all(store: Store, mirror: Path) -> None:
    save, other = save_of(store, 400), Store.open(mirror)
    for one in (store, other):
        break_chunk(one, 400, "model/layer.weight")
    (folder(store) / save.manifest()).unlink()
    for more in (["--dry-run"], []):
        result = ckpt("repair", store.url, "--from", mirror, *more)
        assert result.exit_code == 1
        assert "not restored" in result.stdout
        assert "model/layer.weight" in result.stdout
    assert steps(store) == [100, 200, 300]


def test_repair_brings_a_whole_run_back(store: Store, mirror: Path) -> None:
    shutil.rmtree(folder(store) / "runs" / "demo")
    assert "no run 'typo'" in refused("repair", store.url, "--run", "typo", "--from", mirror)
    ok("repair", store.url, "--from", mirror)
    assert steps(store) == [100, 200, 300, 400]
    assert "all whole" in ok("verify", store.url)


def test_repair_from_and_to_s3(
    store: Store, mirror: Path, s3_url: S3Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_url.env.items():
        monkeypatch.setenv(name, value)
    bucket = Store.open(s3_url.url, create=True)
    bucket.close()
    told = ckpt("repair", s3_url.url, "--run", "demo", "--from", mirror).stderr
    assert "step 400" in told
    ok("repair", s3_url.url, 400, "--run", "demo", "--from", mirror)
    assert "all whole" in ok("verify", s3_url.url)
    (folder(store) / save_of(store, 400).manifest()).unlink()
    ok("repair", store.url, 400, "--from", s3_url.url)
    assert steps(store) == [100, 200, 300, 400]


def test_repair_refuses_what_nobody_has(store: Store, mirror: Path, tmp_path: Path) -> None:
    assert "no checkpoint '999'" in refused("repair", store.url, 999, "--from", mirror)
    assert "--dry-run" in refused("repair", store.url, "--adopt", "--dry-run")
    assert "--create" not in refused("repair", tmp_path / "none", "--from", mirror)


def test_a_dry_run_of_repair_writes_nothing(store: Store, mirror: Path) -> None:
    break_chunk(store, 100, "model/frozen")
    before = files(store)
    assert "1 would be repaired" in ok("repair", store.url, 100, "--from", mirror, "--dry-run")
    assert files(store) == before
    assert ckpt("verify", store.url).exit_code == 1


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
    ok("prune", "--yes", store.url, "--keep", "model:last=4", "--grace", 0)
    ok("compact", store.url, "--threshold", 0)
    ok("prune", "--yes", store.url, "--keep", "last=4", "--grace", 0)
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


@pytest.mark.parametrize(("format_", "told"), [("safetensors", "safetensors"), ("dcp", "DCP")])
def test_two_imports_of_one_step_are_told_apart(
    store: Store, tmp_path: Path, format_: str, told: str
) -> None:
    for name, step in (("one", 100), ("two", 200)):
        to = tmp_path / name
        ok("export", store.url, step, to, "--format", format_, "--item", "model")
    new = tmp_path / "new"
    arguments = (new, "--format", format_, "--step", 5, "--run", "back", "--create")
    first = document("import", tmp_path / "one", *arguments)["id"]
    result = ckpt("import", tmp_path / "two", *arguments)
    assert f"{first} (imported from {tmp_path}/one ({told})" in result.stderr
    sources = {i["id"]: i["source"] for i in document("ls", new)["checkpoints"]}
    second = next(id_ for id_ in sources if id_ != first)
    assert sources == {first: f"{tmp_path}/one ({told})", second: f"{tmp_path}/two ({told})"}
    text = ok("ls", new)
    for id_, source in sources.items():
        assert f"step 5 ({id_}) was imported from {source}" in text
        assert f"imported    from {source}" in ok("show", new, id_)
        assert document("show", new, id_)["source"] == source
    newest = ckpt("show", new, 5).stderr
    assert f"using {second} (imported from {tmp_path}/two" in newest
    assert f"also: {first} (imported from {tmp_path}/one" in newest
    ambiguous = refused("show", new, "0000000005-")
    assert f"{tmp_path}/one" in ambiguous
    assert f"{tmp_path}/two" in ambiguous


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
    assert "not a file of torch.save" in refused("import", file, tmp_path / "new", *arguments)
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
    assert "does not exist" in refused(
        "import", tmp_path / "none", store.url, "--format", "dcp", "--step", 1
    )


def test_without_a_terminal_prune_removes_nothing_that_was_not_confirmed(store: Store) -> None:
    assert "give --yes" in refused("prune", store.url, *KEEP, "--grace", 0)
    assert len(document("ls", store.url)["checkpoints"]) == 4


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
