"""What a submission would run, as text."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from data import TokenFiles, open_dataset, pack_folder
from hpckit.agent.workers.torchrun_command import Rendezvous, torchrun_command
from hpckit.ipc.process_environment import NodeEnvironment
from hpckit.planner.memory.decoder_memory import footprint
from hpckit.rundir.directory import RunDir
from hpckit.submit.dry_run import describe_submission
from hpckit.text.quantities import size
from tests.unit.data.token_files import write_flat
from tests.unit.hpckit.specs_and_processes import make_spec


def test_the_layout_and_the_command_of_each_node_are_told(tmp_path: Path) -> None:
    spec = make_spec({"launch.nodes": 2, "launch.nproc_per_node": 4, "train.micro_batch": 2})
    run = RunDir(tmp_path / "with space" / "run")
    text = describe_submission(spec, run, None, earlier=0)
    assert "# layout      2 nodes x 4 workers = 8 ranks on cpu" in text
    assert "16 samples a step = 8 ranks x 2" in text
    assert "to be packed into /data/shards" in text
    for node in range(2):
        at = NodeEnvironment(run, 1, 1, node, 2)
        command = torchrun_command(spec, at, Rendezvous("127.0.0.1", 0, "", "127.0.0.1", node))
        assert shlex.join(command) in text.splitlines()
    assert not tmp_path.joinpath("with space").exists()


def test_the_batch_of_an_entry_of_the_user_is_its_own_where_the_default_does_not_divide(
    tmp_path: Path,
) -> None:
    own = {"entry": "mine:main", "launch.nproc_per_node": 24}
    text = describe_submission(make_spec(own), RunDir(tmp_path), None, earlier=0)
    expected = "16 samples a step do not divide over 24 ranks: mine:main has its own"
    assert f"# batch       {expected}" in text
    own["launch.nproc_per_node"] = 4
    text = describe_submission(make_spec(own), RunDir(tmp_path), None, earlier=0)
    assert "# batch       16 samples a step = 4 ranks x 4\n" in text


def test_shards_that_were_not_looked_into_are_not_to_be_packed(tmp_path: Path) -> None:
    spec = make_spec({"entry": "mine:main", "data.pack": None})
    text = describe_submission(spec, RunDir(tmp_path), None, earlier=0)
    assert "# data        /data/shards, not looked into here" in text


def test_the_next_submission_generation_and_drill_are_told(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.node_logs(4, 0).mkdir(parents=True)
    spec = make_spec({"launch.nodes": 2, "debug.drill.nodes": [1, 2]})
    text = describe_submission(spec, run, None, earlier=2)
    assert "(2 submissions so far)" in text
    assert f"supervise({str(tmp_path)!r}, submission=3)" in text
    assert "# layout      1 node x" in text
    assert f"--rdzv-id={run.name}-g5" in text
    assert text.count("hpckit.trainer.torchrun.forked_workers") == 1


def test_a_packed_dataset_is_counted_in_epochs(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for n in range(10):
        (tmp_path / "texts" / f"{n}.txt").write_text("x")
    pack_folder(tmp_path / "texts", tmp_path / "shards", samples_per_shard=5)
    spec = make_spec({"train.steps": 200})
    text = describe_submission(
        spec, RunDir(tmp_path / "run"), open_dataset(tmp_path / "shards"), earlier=0
    )
    assert "10 samples in 2 shards" in text
    assert "(320.00 epochs)" in text


def test_epochs_of_packed_documents_are_those_of_their_tokens(tmp_path: Path) -> None:
    """A sample of a step is a window of 65 tokens, which has about 13 of the documents."""
    path = write_flat(tmp_path / "tokens.bin", [[1, 2, 3, 4, 0]] * 100)
    dataset = open_dataset(path, token_files=TokenFiles(end_of_text=0))
    own = {"train.steps": 10, "optim.warmup_steps": 1, "data.text": "tokens"}
    spec = make_spec({**own, "data.shards": str(path)})
    text = describe_submission(spec, RunDir(tmp_path / "run"), dataset, earlier=0)
    assert "# data        100 documents in 1 shard\n" in text
    assert "# steps       10  (about 20.80 epochs)\n" in text, "10 x 16 x 65 of 500 tokens"


def test_memory_is_told_and_the_plan_for_a_card_that_is_known(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    lines = describe_submission(make_spec(), run, None, earlier=0).splitlines()
    (memory,) = [line for line in lines if line.startswith("# memory")]
    needed = size(footprint(make_spec(), 1).peak.total)
    assert f"# memory      121 k parameters (ddp); a rank needs {needed} when" in memory
    assert not any(line.startswith("# plan") for line in lines)
    spec = make_spec({"cluster.slurm.gpu_type": "h100", "cluster.device": "cuda"}, "slurm")
    lines = describe_submission(spec, run, None, earlier=0).splitlines()
    (plan,) = [line for line in lines if line.startswith("# plan")]
    assert "H100: fits; " in plan
    assert "tokens/s" in plan


def test_a_model_that_is_not_known_is_not_planned(tmp_path: Path) -> None:
    spec = make_spec({"entry": "mine:main"})
    assert "# memory" not in describe_submission(spec, RunDir(tmp_path), None, earlier=0)


def test_a_model_of_images_has_its_size_and_memory_told(tmp_path: Path) -> None:
    spec = make_spec(model="vit_nano")
    lines = describe_submission(spec, RunDir(tmp_path), None, earlier=0).splitlines()
    (told,) = [line for line in lines if line.startswith("# model")]
    assert "113 k parameters, 10.6 MFLOP a sample" in told
    assert any(line.startswith("# memory") and "113 k parameters" in line for line in lines)


@pytest.mark.parametrize(
    ("steps", "minutes", "told"),
    [(50, None, "every 50 steps"), (None, 2.5, "every 2.5 minutes"), (None, None, "the end only")],
)
def test_how_often_is_saved_is_told(
    tmp_path: Path, steps: int | None, minutes: float | None, told: str
) -> None:
    spec = make_spec({"checkpoint.every_steps": steps, "checkpoint.every_minutes": minutes})
    text = describe_submission(spec, RunDir(tmp_path / "run"), None, earlier=0)
    assert told in text
    assert f"into {tmp_path}/run/checkpoints" in text
