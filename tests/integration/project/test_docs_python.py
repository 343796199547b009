"""The Python that pages show runs: the training function of README.md as it stands there."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from checkpointing import Checkpointer, load
from data import open_dataset, pack_folder
from docs.hooks import ROOT
from hpckit.events.event_log import read_events
from hpckit.rundir.directory import RunDir
from tests.integration.run.runs import complete, history
from tests.unit.project.doc_blocks import Block, blocks


def python_of(page: str) -> list[Block]:
    return [block for block in blocks(ROOT / page) if block.kind == "python"]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of texts of 3 to 240 bytes."""
    folder, out = tmp_path_factory.mktemp("texts"), tmp_path_factory.mktemp("packed")
    for number in range(1, 81):
        (folder / f"{number:02d}.txt").write_text("abc" * number)
    pack_folder(folder, out, suffixes=(".txt",), samples_per_shard=20)
    return out


def test_the_function_of_the_readme_trains_by_its_command_and_is_preempted(
    texts: Path, tmp_path: Path
) -> None:
    shown = [block for block in blocks(ROOT / "README.md") if block.kind in ("python", "command")]
    (at,) = [number for number, block in enumerate(shown) if "def main(cfg)" in block.text]
    program, (words,) = shown[at].text, shown[at + 1].commands()
    assert len([line for line in program.splitlines() if line.strip()]) <= 26
    (tmp_path / "mycode").mkdir()
    (tmp_path / "mycode" / "train.py").write_text(program)
    assert words[:2] == ["python", "launch.py"]
    mine = f"{texts}/shard-{{000000..000003}}.tar"
    given = {
        "data.shards=/data/train-{000..127}.tar": f"data.shards={mine}",
        "launch.nproc_per_node=4": "launch.nproc_per_node=1",
        "train.steps=10000": "train.steps=1500",
    }
    assert given.keys() <= {*words}
    words = [given.get(word, word) for word in words]
    root = tmp_path / "runs"
    here = ["name=t", f"root={root}", "cluster.device=cpu", "launch.threads_per_worker=1"]
    drill = [
        "optim.warmup_steps=1",
        "debug=drill",
        "debug.drill.preempt_at=[4]",
        "debug.drill.nodes=[1]",
    ]
    command = [sys.executable, str(ROOT / "launch.py"), *words[2:], *here, *drill]
    status, output = complete(root, command, cwd=tmp_path)
    assert status == 0, output
    run = RunDir(next(root.glob("t-*")))
    story = history(run)
    assert [life.end for life in story.lives] == ["preempted", "done"]
    assert story.steps_kept == 1500
    losses = [event["loss"] for event in read_events(run.events) if event.kind == "step"]
    assert losses[-1] < losses[0]


def test_the_loop_with_checkpoints_of_the_readme_continues(tmp_path: Path) -> None:
    (block,) = [one for one in python_of("README.md") if "Checkpointer(" in one.text]
    code = block.text.replace("s3://bucket/checkpoints", str(tmp_path)).replace(
        "Minutes(10)", "Steps(2)"
    )
    code = code.replace("Last, Minutes", "Last, Steps")
    assert code.count(str(tmp_path)) == 1
    trained: list[int] = []
    for steps in (3, 5):
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        names = {"model": model, "optimizer": optimizer, "steps": steps}
        exec(code, names | {"train_step": lambda: trained.append(1)})
    assert len(trained) == 3 + 2  # saved at 2 and at the end, continued with 4 and 5


def test_the_loader_of_the_readme_continues_from_its_state(texts: Path, tmp_path: Path) -> None:
    (block,) = [one for one in python_of("README.md") if 'open_dataset("s3:' in one.text]
    code = block.text.replace("s3://bucket/text/dataset.index", str(texts / "dataset.index"))
    code = code.replace("/local/me", str(tmp_path / "cache")).replace("=256", "=8")
    assert code.count(str(tmp_path)) == 1
    batches: list[Any] = []
    names = {"rank": 0, "world_size": 2, "decode": lambda sample, context: sample["__key__"]}
    found = names | {"train_step": batches.append}
    exec(code, found)
    assert [len(batch) for batch in batches] == [4] * 10
    assert len({key for batch in batches for key in batch}) == 40
    assert len(str(found["place"])) < 200


def test_the_loader_of_the_data_page_deals_batches(texts: Path, tmp_path: Path) -> None:
    (block,) = python_of("data/README.md")
    code = block.text.replace("s3://bucket/text/dataset.index", str(texts / "dataset.index"))
    code = code.replace("/local/me", str(tmp_path / "cache")).replace("1024", "8")
    assert code.count(str(tmp_path)) == 1
    names: dict[str, Any] = {"rank": 0, "world": 2, "decode": lambda sample, context: sample}
    names["code"] = open_dataset(texts)
    exec(code, names)
    for loader, mine in ((names["loader"], 4), (names["both"], 8)):
        assert len(next(iter(loader)).data) == mine
        loader.close()


def test_caches_are_connected_as_the_page_says(texts: Path, tmp_path: Path) -> None:
    (block,) = [one for one in python_of("docs/tasks/data.md") if "CachePeers" in one.text]
    code = block.text.replace("s3://bucket/text/", str(texts))
    code = code.replace("/local/me/shards", str(tmp_path / "cache"))
    names: dict[str, Any] = {"my_address": "127.0.0.1", "my_node": "node"}
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        exec(code, names)
    finally:
        dist.destroy_process_group()
    assert names["peers"].problem == "there is only one node"
    assert len(names["dataset"]) == 80


def test_parts_of_a_checkpoint_load_as_the_page_says(tmp_path: Path) -> None:
    there = {"w": torch.ones(3), "head": torch.ones(2)}
    for run, step in (("base-7b", 5), ("b", 9000)):
        checkpointer = Checkpointer(tmp_path, run=run)
        checkpointer.save(step, {"model": there})
        checkpointer.close()
    (block,) = [one for one in python_of("checkpointing/README.md") if one.text.startswith("load(")]
    whole, parts = textwrap.dedent(block.text).replace('"s3://bucket/base"', "base").split("\nload")
    full = {name: torch.zeros_like(value) for name, value in there.items()}
    exec(whole, {"load": load, "model": full, "base": tmp_path})
    assert full["w"].sum() == 3
    part = {"encoder.w": torch.zeros(3), "mine": torch.zeros(1)}
    exec(f"load{parts}", {"load": load, "model": part, "base": tmp_path})
    assert [float(value.sum()) for value in part.values()] == [3, 0]


def test_the_core_on_a_page_is_that_of_the_starting_project() -> None:
    (block,) = python_of("docs/tasks/own-training.md")
    starter = (ROOT / "hpckit/init/starter/train.py").read_text(encoding="utf-8")
    lines = iter([line.split("  #")[0].strip() for line in starter.splitlines()])
    shown = [line.strip() for line in block.text.splitlines()]
    assert [line for line in shown if line != "..." and line not in lines] == []
