"""`hpckit ckpt`: the commands that only look. Output, documents and exit statuses."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpointing.errors import StoreAccessError
from checkpointing.storage.posix.posix_storage import PosixStorage
from checkpointing.store import pins_and_labels
from checkpointing.store.catalog import CatalogEntry
from checkpointing.store.inspection.integrity_check import IntegrityProblem
from checkpointing.store.sessions import session_leases
from checkpointing.store.store import Store
from hpckit.cli.ckpt import verify as verifying
from hpckit.config.spec_parser import dump_spec
from hpckit.rundir.directory import RunDir, run_name
from tests.integration.cli.ckpt_commands import (
    KEEP,
    break_chunk,
    break_manifest,
    break_mark,
    ckpt,
    document,
    folder,
    make_at,
    make_store,
    ok,
    refuse_to_read,
    refused,
    save_of,
)
from tests.services.s3 import S3Place
from tests.unit.checkpointing.store.tensor_checkpoints import find, make
from tests.unit.hpckit.specs_and_processes import make_spec


@pytest.fixture(autouse=True)
def _width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store")


# ls


def test_ls_lists_what_there_is(store: Store) -> None:
    pins_and_labels.pin(store, save_of(store, 200), "paper")
    make(store, 500, {"model/w": ("float32", np.ones(4, "f4"))}, commits=False)
    break_manifest(store, 300)
    result = ckpt("ls", store.url)
    assert result.exit_code == 1
    text = result.stdout
    rows = {row.split()[0]: row for row in text.splitlines() if re.match(r" *\d00 ", row)}
    assert list(rows) == ["100", "200", "300", "400", "500"]
    assert "pinned" in rows["200"]
    assert "loss 2" in rows["200"]
    listed = document("ls", store.url, exit_code=1)["checkpoints"]
    states = {i["step"]: i["state"] for i in listed}
    assert states == {
        100: "committed",
        200: "committed",
        300: "damaged",
        400: "committed",
        500: "incomplete",
    }
    assert "step 300" in text
    assert "step 500" in text
    assert f"hpckit ckpt repair {store.url}" in text


def test_ls_of_unfinished_saves_alone_is_well(store: Store) -> None:
    make(store, 500, {"model/w": ("float32", np.ones(4, "f4"))}, commits=False)
    assert "repair" not in ok("ls", store.url)


def test_ls_of_a_damaged_mark(store: Store) -> None:
    pins_and_labels.pin(store, save_of(store, 200), "paper")
    break_mark(store, 200)
    result = ckpt("ls", store.url)
    assert result.exit_code == 1
    assert "the checkpoint marks cannot be read" in result.stderr
    assert len(document("ls", store.url, exit_code=1)["checkpoints"]) == 4


def test_ls_of_a_manifest_that_the_storage_refuses(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_to_read(monkeypatch, save_of(store, 300).manifest())
    result = ckpt("ls", store.url)
    assert result.exit_code == 1
    assert "is unreadable: not yours" in result.stdout
    listed = document("ls", store.url, exit_code=1)["checkpoints"]
    states = {i["step"]: i["state"] for i in listed}
    assert states == {100: "committed", 200: "committed", 300: "unreadable", 400: "committed"}
    assert document("verify", store.url, exit_code=3)["error"] == "not yours"


def test_two_saves_of_one_step_are_told_apart(store: Store) -> None:
    first = save_of(store, 100)
    again = make(store, 100, {"model/w": ("float32", np.ones(4, "f4"))}, created=1.8e9)
    text = ok("ls", store.url)
    assert first.id in text
    assert again.id in text
    assert first.id in ckpt("show", store.url, 100).stderr


def test_ls_and_du_say_the_same_and_why_not(store: Store) -> None:
    stored = {c["id"]: c["bytes"] for c in document("ls", store.url)["checkpoints"]}
    body = document("du", store.url)
    assert {c["id"]: c["stored"] for c in body["checkpoints"]} == stored
    assert any(c["stored"] != c["total"] for c in body["checkpoints"])  # bases
    listed = " ".join(ok("ls", store.url).split())
    assert "without the bases" in listed
    assert f"`hpckit ckpt du {store.url}`" in listed
    assert "stored: as in ls" in ok("du", store.url)


@pytest.mark.parametrize("columns", [80, 120])
def test_tables_fit_the_terminal(
    store: Store, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    pins_and_labels.pin(store, save_of(store, 200), "")
    for command in (["ls"], ["show"], ["du"], ["prune", *KEEP, "--dry-run"]):
        for line in ok(command[0], store.url, *command[1:]).splitlines():
            assert len(line) <= columns or not line.startswith(" "), line


def test_ls_of_several_runs_has_a_table_for_each(store: Store) -> None:
    make(store, 7, {"model/w": ("float32", np.ones(4, "f4"))}, run="other")
    text = ok("ls", store.url)
    assert "run demo in" in text
    assert "run other in" in text
    assert [i["step"] for i in document("ls", store.url, "--run", "other")["checkpoints"]] == [7]


def test_ls_of_an_empty_store(tmp_path: Path) -> None:
    url = Store.open(tmp_path / "new", create=True).url
    assert "no checkpoints" in ok("ls", url)
    assert document("ls", url)["checkpoints"] == []


def test_names_from_disk_do_not_steer_the_terminal(store: Store) -> None:
    for text in (ok("show", store.url), ok("diff", store.url, 100, 200, "--all")):
        assert "\x1b" not in text
        assert "[red]seed" in text


# places


@pytest.mark.parametrize("form", ["{}", "{}/", "file://{}", "{}/runs/demo", "{}/runs/demo/steps"])
def test_places(store: Store, form: str) -> None:
    assert len(document("ls", form.format(store.url))["checkpoints"]) == 4


def test_a_run_directory_is_a_place(store: Store, tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    directory.mkdir()
    folder(store).rename(directory / "checkpoints")
    assert len(document("ls", directory)["checkpoints"]) == 4
    other = Store.open(directory / "checkpoints")
    make(other, 1, {"model/w": ("float32", np.ones(4, "f4"))}, run="demo-old")
    result = ckpt("ls", directory, "--json")
    assert {i["run"] for i in json.loads(result.stdout)["checkpoints"]} == {"demo"}
    assert "2 runs" in result.stderr


def test_a_run_directory_leads_to_a_store_elsewhere(store: Store, tmp_path: Path) -> None:
    spec = make_spec({"checkpoint.url": store.url})
    run = RunDir(tmp_path / "renamed")
    run.submission(1).mkdir(parents=True)
    run.spec(1).write_text(dump_spec(spec))
    make(store, 1, {"model/w": ("float32", np.ones(4, "f4"))}, run=run_name(spec))
    assert [i["step"] for i in document("ls", run.path)["checkpoints"]] == [1]
    run.spec(1).write_text("nothing: of the kind")
    assert "give the store itself" in refused("ls", run.path)


def test_places_that_are_none(store: Store, tmp_path: Path) -> None:
    assert "it does not exist" in refused("ls", tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "file").write_text("")
    assert "is a file" in refused("ls", tmp_path / "file")
    assert "demo" in refused("ls", f"{store.url}/runs/typo")
    assert "demo" in refused("ls", store.url, "--run", "typo")
    assert "--run" in refused("ls", f"{store.url}/runs/demo", "--run", "x")
    assert refused("ls", "")


def test_a_store_out_of_reach_has_its_own_status(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "gopher" in refused("ls", "gopher://nowhere/x", exit_code=3)
    assert document("ls", "gopher://nowhere/x", exit_code=3)["exit"] == 3


# which checkpoint


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("200", 200),
        ("latest", 400),
        ("best", 200),
        ("best:loss", 200),
        ("best:loss:max", 100),
        ("0000000300", 300),
        ("0000000300-", 300),
        ("released", 100),
    ],
)
def test_ways_to_say_which(store: Store, text: str, step: int) -> None:
    pins_and_labels.put_mark(store, save_of(store, 100), "released", "")
    assert document("show", store.url, text)["step"] == step


def test_a_full_id_is_one_checkpoint(store: Store) -> None:
    first = save_of(store, 100)
    again = make(store, 100, {"model/w": ("float32", np.ones(4, "f4"))}, created=1.8e9)
    assert document("show", store.url, first.id)["id"] == first.id
    result = ckpt("show", store.url, 100, "--json")
    assert json.loads(result.stdout)["id"] == again.id
    assert "saved 2 times" in result.stderr
    assert "2 ids" in refused("show", store.url, "0000000100-") or first.id == again.id


def test_refusals_say_what_there_is(store: Store) -> None:
    assert "400, 300, 200, 100" in refused("show", store.url, 150)
    assert "loss" in refused("show", store.url, "best:accuracy")
    make(store, 7, {"model/w": ("float32", np.ones(4, "f4"))}, run="other")
    assert "demo, other" in refused("show", store.url, 100)
    make(store, 500, {"model/w": ("float32", np.ones(4, "f4"))}, commits=False)
    assert "--adopt" in refused("show", store.url, 500, "--run", "demo")


# show


def test_show_has_items_tensors_and_values(store: Store) -> None:
    body = document("show", store.url, 400)
    assert set(body["items"]) == {"model", "optimizer", "rng", "scheduler"}
    rows = {row["name"]: row for row in body["tensors"]}
    assert rows["model/layer.weight"]["shape"] == [200, 400]
    assert rows["model/layer.weight"]["raw_bytes"] == 200 * 400 * 4
    assert body["values"]["scheduler/epoch"] == 400
    assert "200x400" in ok("show", store.url, 400)


def test_show_limits_and_filters(store: Store) -> None:
    text = ok("show", store.url, "--limit", 1)
    assert "2 smaller tensors" in text
    assert "smaller" not in ok("show", store.url, "--limit", 1, "--all")
    body = document("show", store.url, "--tensor", "*frozen", "--tensor", "sched*")
    assert [row["name"] for row in body["tensors"]] == ["model/frozen"]
    assert list(body["values"]) == ["scheduler/epoch"]
    body = document("show", store.url, "--tensor", "sched*")
    assert (body["tensors"], list(body["values"])) == ([], ["scheduler/epoch"])


def test_show_of_damage(store: Store) -> None:
    break_manifest(store, 300)
    assert "repair" in refused("show", store.url, 300, exit_code=1)
    break_manifest(store, 200, at=-1)  # the last section
    result = ckpt("show", store.url, 200)
    assert result.exit_code == 1
    assert "model/layer.weight" in result.stdout
    assert "damaged: " in result.stdout


# du


def test_du_adds_up(store: Store) -> None:
    body = document("du", store.url)
    assert all(c["total"] == c["alone"] + c["shared"] for c in body["checkpoints"])
    packs = body["packs"]
    assert packs["bytes"] == sum(p.stat().st_size for p in folder(store).glob("packs/*/*.pack"))
    assert packs["bytes"] == packs["live_bytes"] + packs["dead_bytes"] + packs["garbage_bytes"]
    assert (packs["dead_bytes"], packs["garbage_bytes"]) == (0, 0)
    assert "alone" in ok("du", store.url)


def test_du_tells_of_missing_packs(store: Store) -> None:
    next(folder(store).glob("packs/*/*.pack")).unlink()
    assert len(document("du", store.url, exit_code=1)["packs"]["missing"]) == 1


# diff


def test_diff_says_by_how_much(store: Store) -> None:
    body = document("diff", store.url, 100, 300)
    rows = {row["name"]: row for row in body["tensors"]}
    assert rows["model/frozen"]["kind"] == "same"
    assert rows["model/layer.weight"]["change"]["max_abs"] == pytest.approx(2, abs=1e-6)
    assert rows["optimizer/state/0/exp_avg"]["change"]["max_abs"] == pytest.approx(4, abs=1e-6)
    values = {row["name"]: row for row in body["values"]}
    assert (values["scheduler/epoch"]["a"], values["scheduler/epoch"]["b"]) == (100, 300)
    assert "1 unchanged, 2 changed" in ok("diff", store.url, 100, 300)
    assert "1 tensor: 1 unchanged" in ok("diff", store.url, 100, 300, "--tensor", "*/frozen")
    assert "nothing in A or B is modle/*" in refused(
        "diff", store.url, 100, 300, "--tensor", "modle/*"
    )


def test_diff_with_another_place_and_run(store: Store, tmp_path: Path) -> None:
    shutil.copytree(folder(store), tmp_path / "copy")
    rows = document("diff", store.url, 200, 200, "--with", tmp_path / "copy")["tensors"]
    assert {row["kind"] for row in rows} == {"same"}
    make(store, 1, {"model/w": ("float32", np.ones(4, "f4"))}, run="other")
    sides = ("--run", "demo", "--with-run", "other")
    kinds = {r["kind"] for r in document("diff", store.url, 200, 1, *sides)["tensors"]}
    assert kinds == {"only_a", "only_b"}


def test_diff_of_damage(store: Store) -> None:
    pack = break_chunk(store, 100, "model/layer.weight")
    body = document("diff", store.url, 100, 400, exit_code=1)
    broken = [row for row in body["tensors"] if row["kind"] == "damaged"]
    assert [row["name"] for row in broken] == ["model/layer.weight"] or len(broken) > 1
    assert pack in broken[0]["problem"]


# verify


@pytest.mark.parametrize("level", ["quick", "crc", "full"])
def test_verify_of_what_is_whole(store: Store, level: str) -> None:
    text = ok("verify", store.url, "--level", level)
    assert "4 checkpoints checked" in text
    assert ("B/s" in text) == (level != "quick")
    assert "0.00" not in text
    assert "left out of the check: nothing" in text
    assert "1 checkpoint checked" in ok("verify", store.url, 100, "--level", level)


def test_verify_names_object_tensor_and_step(store: Store) -> None:
    pack = break_chunk(store, 100, "model/frozen")
    result = ckpt("verify", store.url)
    assert result.exit_code == 1
    assert f"step 100: model/frozen: packs/{pack[:2]}/{pack}.pack" in result.stdout
    body = document("verify", store.url, 100, exit_code=1)
    assert body["checkpoints"][0]["problems"][0]["tensor"] == "model/frozen"
    assert document("verify", store.url, "--level", "quick")["unreadable"] == []


def test_verify_says_what_it_left_out(store: Store) -> None:
    alone = np.random.default_rng(9).standard_normal(500).astype("f4")
    make(store, 50, {"model/alone": ("float32", alone)}, commits=False)
    body = document("verify", store.url)["left_out"]
    assert (body["packs"], body["condemned_bytes"], body["dead_bytes"]) == (1, 0, 0)
    assert (
        body["bytes"] == body["pack_bytes"] == document("du", store.url)["packs"]["garbage_bytes"]
    )
    assert "in 1 pack of running, unfinished or removed saves" in ok("verify", store.url)
    ok("prune", "--yes", store.url, "--keep", "model:last=4", "--grace", 3600, "--no-wait")
    body = document("verify", store.url)["left_out"]
    assert body["condemned_bytes"] > 0
    assert body["dead_bytes"] == document("du", store.url)["packs"]["dead_bytes"]
    assert "will be deleted by prune" in ok("verify", store.url)
    assert document("verify", store.url, 100)["left_out"] is None
    assert "left out" not in ok("verify", store.url, 100)
    break_manifest(store, 300)
    assert "at most" in ckpt("verify", store.url).stdout
    assert document("verify", store.url, exit_code=1)["left_out"]["is_most"]


def test_verify_counts_unreadable_manifests(store: Store) -> None:
    break_manifest(store, 300)
    body = document("verify", store.url, "--all", exit_code=1)
    assert [problem["step"] for problem in body["unreadable"]] == [300]
    assert len(body["checkpoints"]) == 3
    refused("verify", store.url, 100, "--all")


# leases


def test_what_is_read_is_leased_meanwhile(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    leased: list[tuple[str, ...]] = []

    def spy(at: Store, found: Sequence[CatalogEntry], *_: object) -> list[list[object]]:
        held = session_leases.leases(at, session_leases.storage_time(at))
        leased.append(tuple(key for one in held if one.lease for key in one.lease.reading))
        return [[] for _ in found]

    monkeypatch.setattr(verifying, "verify_all", spy)
    ok("verify", store.url, 100)
    assert leased == [(find(store, save_of(store, 100)).stored.key,)]
    assert not list(folder(store).glob("leases/*.lease"))


def test_a_store_that_cannot_be_written_is_read_all_the_same(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StoreAccessError("read-only file system")

    for method in ("put", "create", "replace"):
        monkeypatch.setattr(PosixStorage, method, refuse)
    result = ckpt("verify", store.url, 100)
    assert result.exit_code == 0
    assert "without a lease" in result.stderr
    assert "read-only" in refused("pin", store.url, 100, exit_code=3)


def test_a_checkpoint_that_is_removed_just_now_is_no_damage(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def remove(
        at: Store, found: Sequence[CatalogEntry], *_: object
    ) -> list[list[IntegrityProblem]]:
        at.storage.delete(one.stored.key for one in found)
        return [[IntegrityProblem(100, "", "", "the pack does not exist")]]

    monkeypatch.setattr(verifying, "verify_all", remove)
    result = ckpt("verify", store.url, 100)
    assert result.exit_code == 0
    assert "was removed while it was being read" in result.stderr


# other storage


def test_commands_on_s3(s3_url: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3_url.env.items():
        monkeypatch.setenv(name, value)
    made = make_at(Store.open(s3_url.url, create=True))
    made.close()
    assert len(document("ls", s3_url.url)["checkpoints"]) == 4
    assert len(document("ls", f"{s3_url.url}/runs/demo")["checkpoints"]) == 4
    ok("pin", s3_url.url, 100)
    done = document("prune", "--yes", s3_url.url, *KEEP, "--grace", 0)
    assert sorted(int(id_[:10]) for id_ in done["removed"]) == [200, 300]
    assert "all whole" in ok("verify", s3_url.url)
    assert "hpckit.json" in refused("ls", f"{s3_url.url}/nothing")


# processes


def _run(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    code = "from hpckit.cli.main import app; app()"
    command = [sys.executable, "-c", code, "ckpt", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def test_a_process_has_the_exit_status(store: Store) -> None:
    assert _run("ls", store.url).returncode == 0
    assert _run("show", store.url, "999").returncode == 2
    assert _run("ls").returncode == 2
    break_chunk(store, 100, "model/frozen")
    done = _run("verify", store.url)
    assert (done.returncode, done.stderr) == (1, "")


def test_no_command_imports_torch() -> None:
    code = "import sys, hpckit.cli.main; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_help_waits_for_no_command_of_another_group() -> None:
    slow = ["hpckit.submit", "hpckit.rundir", "data.source", "obstore", "fsspec", "hydra"]
    slow += ["numpy", "checkpointing.store"]
    code = f"import sys, hpckit.cli.main; sys.exit(str([m for m in {slow} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.stderr.strip() == "[]"
