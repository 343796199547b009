"""The clients of W&B and MLflow themselves, in processes of their own, without their servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

COMMON = """
import json, sys
from pathlib import Path
from hpckit.config.spec import WandbSpec
from hpckit.trainer.trackers.tracker_interface import TrackerUnavailableError, StepRecord
tmp = Path(sys.argv[1])
config = {"model": {"width": 64}, "text": "x" * 9000}
def records(*steps):
    bad = float("nan")
    return [StepRecord("step", at, 1000.0 + at, {"loss": 1 / at, "bad": bad}) for at in steps]
"""
WANDB = """
import struct, wandb
from hpckit.trainer.trackers import weights_and_biases
from wandb.proto.wandb_internal_pb2 import Record as Stored

def attempt(run, url, mode, *steps):
    spec = WandbSpec(project="p", entity=None, url=url, mode=mode)
    it = weights_and_biases.WandbRun(spec, "gpt", run, tmp, config)
    validated = StepRecord("validated", steps[-1], 1.0, {"val_loss": 2.0})
    it.send([*records(*steps), validated])
    it.close(is_done=False)
    return it

def stored(path):  # blocks of 32 KiB, as of LevelDB's log
    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield Stored.FromString(whole)
            whole = b""

weights_and_biases.INIT_S = 5.0
first = attempt(None, "http://127.0.0.1:9", "online", 1, 2)
weights_and_biases.INIT_S = 60.0
second = attempt(first.run, None, "offline", 3)
wandb.teardown()  # as at the end of a process: W&B's own one has written all then
told = []
for path in sorted(tmp.glob("wandb/offline-run-*/*.wandb")):
    for record in stored(path):
        if record.HasField("run"):
            told.append(["run", record.run.run_id])
        if record.HasField("history"):
            items = {(i.key or i.nested_key[0]): i.value_json for i in record.history.item}
            told.append([int(items["_step"]), sorted(k for k in items if k[0] != "_")])
print(json.dumps({"run": first.run, "note": first.note, "second": second.note, "told": told}))
"""
MLFLOW = """
from hpckit.trainer.trackers.mlflow import MlflowRun
def attempt(run, is_done, *steps):
    it = MlflowRun(str(tmp / "files"), "e", "gpt", run, config)
    states = [it._client.get_run(it.run).info.status]
    it.send(records(*steps))
    it.close(is_done)
    return it, [*states, it._client.get_run(it.run).info.status]

first, states = attempt(None, False, 1, 2)
second, more = attempt(first.run, True, 3)
found = second._client.get_run(second.run)
history = second._client.get_metric_history(second.run, "loss")
gone, _ = attempt("0" * 32, True, 1)
try:
    MlflowRun("http://127.0.0.1:9", "e", "gpt", None, config)
    away = ""
except TrackerUnavailableError as error:
    away = str(error)
print(json.dumps({
    "same": first.run == second.run, "other": gone.run != first.run, "states": states + more,
    "history": [[m.step, m.value, m.timestamp] for m in history],
    "width": found.data.params["model.width"], "tags": found.data.tags, "away": away,
}))
"""


def answer_of(program: str, folder: Path, **env: str) -> tuple[dict[str, Any], str]:
    """What it prints last, and all that it says."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB_", "MLFLOW_"))}
    done = subprocess.run(
        [sys.executable, "-c", COMMON + program, str(folder)],
        env={**clean, "HOME": str(folder), **env},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found, done.stdout + done.stderr


def test_wandb_goes_on_offline_as_one_run_and_tells_nobody_the_key(tmp_path: Path) -> None:
    key = "hush5ecret" * 4
    found, output = answer_of(WANDB, tmp_path, WANDB_API_KEY=key)
    assert "kept in files" in found["note"]
    assert found["second"] is None
    assert found["run"].startswith("gpt-")
    assert found["told"] == [
        ["run", found["run"]],
        [1, ["bad", "loss"]],
        [2, ["bad", "loss", "val_loss"]],
        ["run", found["run"]],
        [3, ["bad", "loss", "val_loss"]],
    ]
    assert key not in output + found["note"]
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not [path for path in written if key.encode() in path.read_bytes()]


def test_mlflow_goes_on_with_one_run_of_files_and_says_when_a_server_is_away(
    tmp_path: Path,
) -> None:
    found, _ = answer_of(MLFLOW, tmp_path)
    assert found["same"]
    assert found["other"], "one that is gone begins anew"
    assert found["states"] == ["RUNNING", "KILLED", "RUNNING", "FINISHED"]
    assert found["history"] == [[1, 1.0, 1001000], [2, 0.5, 1002000], [3, 1 / 3, 1003000]]
    assert found["width"] == "64"
    assert found["tags"]["hpckit.rundir"] == "gpt"
    assert "127.0.0.1" in found["away"]
