"""What pages of tasks show in Python runs as it stands there."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import data
from checkpointing import Checkpointer
from docs.hooks import ROOT
from tests.unit.project.doc_blocks import blocks


def shown(page: str, word: str) -> str:
    """The one block of Python of a page that has this word."""
    texts = [one.text for one in blocks(ROOT / page) if one.kind == "python"]
    (text,) = [text for text in texts if word in text]
    return text


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards of 80 samples, each with a text and a class."""
    out = tmp_path_factory.mktemp("packed")
    with data.ShardWriter(out / "shard-%06d.tar", max_samples=20) as writer:
        for number in range(80):
            writer.write({"__key__": f"{number:02d}", "txt": "abc", "cls": str(number % 4)})
    return out


def test_attention_of_packed_documents_stays_within_them() -> None:
    code = shown("docs/tasks/data.md", "create_block_mask")
    names: dict[str, Any] = {}
    exec(code, names)
    documents = np.repeat([[0, 1]], 64, axis=1)
    tensors = [torch.randn(1, 1, 128, 16) for _ in range(3)]
    batch = SimpleNamespace(document_ids=documents)
    whole = names["attention"](*tensors, batch)
    tensors[2][:, :, :64] = 0  # values of the first document
    changed = names["attention"](*tensors, batch)
    assert torch.equal(whole[:, :, 64:], changed[:, :, 64:])
    assert not torch.equal(whole[:, :, :64], changed[:, :, :64])


def test_a_loader_has_the_ramp_of_the_page(texts: Path) -> None:
    code = shown("docs/tasks/data.md", "BatchRamp").replace("/data/shards", str(texts))
    names: dict[str, Any] = {}
    exec(code, names)
    assert len(next(iter(names["loader"])).data) == 64


@pytest.mark.filterwarnings("ignore")
def test_a_pipeline_of_webdataset_has_a_state(texts: Path) -> None:
    code = shown("docs/tasks/webdataset.md", "wds.WebDataset").replace('"jpg"', '"txt"')
    names: dict[str, Any] = {"urls": f"{texts}/shard-{{000000..000003}}.tar"}
    exec(code.replace("num_workers=4", "num_workers=0"), names)
    assert len(names["images"]) > 0
    assert names["state"]


def test_an_evaluation_counts_each_sample_once(texts: Path) -> None:
    code = shown("docs/tasks/webdataset.md", "for_evaluation").replace('"shards"', "texts")
    ones = {name: lambda batch: np.ones(len(batch)) for name in ("predict", "labels")}
    correct = 0
    for rank in range(3):
        names: dict[str, Any] = {"rank": rank, "world": 3, "texts": texts, "correct": 0, **ones}
        exec(code, names)
        correct += names["correct"]
    assert correct == 80


def test_weights_are_followed_as_the_page_says(tmp_path: Path) -> None:
    model = torch.nn.Linear(2, 2)
    checkpointer = Checkpointer(tmp_path / "ckpts", run="gpt")
    checkpointer.save(10, {"model": model})
    checkpointer.close()
    served = torch.nn.Linear(2, 2)
    code = shown("docs/tasks/follow.md", "Follower(").replace("print(", "follower.stop(); print(")
    exec(code.replace("s3://bucket/ckpts", str(tmp_path / "ckpts")), {"model": served})
    assert torch.equal(served.weight, model.weight)


def test_a_program_that_reports_its_steps_runs_without_hpckit() -> None:
    exec(shown("docs/tasks/own-script.md", "# after each step"), {"step": 1, "loss": 2.0})
    steps = itertools.count()
    names: dict[str, Any] = {"start": 0, "steps": 3, "train_step": lambda: next(steps)}
    exec(shown("docs/tasks/own-script.md", "checkpointed(step)"), names)
    exec(shown("README.md", "client.step(step"), names)
    assert next(steps) == 6
