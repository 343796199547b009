"""`hpckit plan`, and the documents that it writes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hpckit.cli.main import app
from hpckit.planner.assumptions import NODE_MTBF_HOURS, STORAGE_GBPS, UTILISATION
from hpckit.planner.gpu_cards import CARDS
from hpckit.planner.run_estimate import Assumptions, RunEstimate, estimate
from hpckit.submit.compose import compose_spec

LARGE = ["model=llama_8b", "precision=bf16", "launch.nodes=2", "launch.nproc_per_node=8"]
LARGE += ["train.micro_batch=1"]
ASSUMED = Assumptions(UTILISATION, None, STORAGE_GBPS)


def typed(*words: str) -> tuple[int, str, str]:
    """`hpckit plan WORDS`: exit status, output, and what went to standard error."""
    done = CliRunner().invoke(app, ["plan", *words], env={"COLUMNS": "80"})
    return done.exit_code, done.stdout, done.stderr


def plan_of(words: Sequence[str], card: str) -> RunEstimate:
    return estimate(compose_spec([*words]), CARDS[card], ASSUMED)


def test_what_fits_is_told_in_lines_of_the_terminals_width() -> None:
    status, out, err = typed(*LARGE, "--card", "h100")
    assert (status, err) == (0, "")
    assert all(len(line) <= 80 for line in out.splitlines())
    for word in ("8.03 G parameters", "16 ranks: fsdp", "tokens/s", "roofline", "parallel=", "40%"):
        assert word in " ".join(out.split())
    assert "whole run" in out
    assert "GPU-hours" in out
    heads, *rows = [line.split() for line in out.splitlines()[-10:]]
    assert heads == ["loss", "backward", "reduced", "optimizer"]
    assert [row[0] for row in rows[-2:]] == ["total", "recomputed"]


def test_what_is_assumed_is_what_was_given() -> None:
    found = json.loads(typed(*LARGE, "--mfu", "0.2", "--storage-gbps", "0.5", "--json")[1])
    speed = found["speed"]
    assert speed["parts_s"]["compute"] == pytest.approx(speed["roofline"]["compute"] / 0.2)
    assert found["goodput"]["durable_s"] == pytest.approx(found["checkpoint"] / 0.5e9)


def test_what_cannot_fit_is_refused_with_what_to_do(tmp_path: Path) -> None:
    report = tmp_path / "plan.html"
    words = [*LARGE, "parallel=ddp", "--card", "A100-40"]
    status, out, err = typed(*words, "--output", str(report))
    assert status == 2
    assert "does not fit" in " ".join(out.split())
    (problem,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "memory: a GPU needs" in problem
    assert "try parallel=" in problem
    assert "--force" in problem
    assert "does not fit" in report.read_text()
    status, _, err = typed(*words, "--force")
    assert status == 0
    assert "memory: a GPU needs" in err


def test_what_fits_without_headroom_is_told_and_never_recommended(tmp_path: Path) -> None:
    """By the estimate, zero1 takes 73.7 of 74.0 GiB."""
    report = tmp_path / "plan.html"
    words = [*LARGE, "--card", "H100", "--output", str(report)]
    for own in ("parallel=fsdp", "parallel=zero1"):
        status, out, _ = typed(*words, own)
        assert status == 0
        text = " ".join(out.split())
        assert "recommended parallel=fsdp: 61.1 GiB, which leaves 12.9 GiB" in text
        assert "the estimate may be 10 % too low" in report.read_text()
        assert "parallel=fsdp: 61.1 GiB" in report.read_text()
        is_tight = "fits only if the estimate is exact, which may be 10 % too low" in text
        assert is_tight is (own == "parallel=zero1")
        found = json.loads(typed(*words, own, "--json")[1])
        assert (found["fits"], found["headroom"], is_tight) == (True, not is_tight, is_tight)
        assert found["memory"]["error"] == 0.1
        assert found["choice"]["words"] == ["parallel=fsdp"]
        assert found["choice"]["peak"] * 1.1 <= found["memory"]["room"]


def test_a_format_that_the_card_has_not_is_refused() -> None:
    status, _, err = typed("model=gpt2", "precision=bf16", "--card", "V100")
    assert status == 2
    assert "the V100 does not support bf16" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--card", "H1000"], "--card: no H1000; there are V100, A100-40,"),
        (["model=gpt_larg"], "model: no option 'gpt_larg'"),
        (["entry=mine:main"], "entry: mine:main has a model of its own"),
        (["--out", "plan.doc"], "plan.doc must end in .html, .md, .pdf, .docx, .xlsx or .pptx"),
    ],
)
def test_what_cannot_be_planned_is_refused(words: list[str], told: str) -> None:
    status, out, err = typed(*words)
    assert (status, out) == (2, "")
    assert told in err


def test_models_of_images_are_planned_by_samples() -> None:
    status, out, _ = typed("experiment=images", "data.shards=/data", "precision=bf16", "--json")
    assert status == 0
    found: dict[str, Any] = json.loads(out)
    assert (found["parameters"], found["unit"]) == (25_557_032, "sample")
    assert found["flops_per_token"] == pytest.approx(6 * 4.09e9, rel=0.01)
    assert found["checkpoint"] == 4 * (2 * 25_557_032 + 53_120)  # parameters, momenta, moments
    assert found["fits"] is True
    assert found["speed"]["tokens"] == found["ranks"] * found["micro_batches"] * found["samples"]
    again = plan_of(
        ["experiment=images", "data.shards=/data", "memory.activation_checkpointing=full"], "H100"
    )
    assert again.speed is not None
    assert 1.2 < again.speed.roofline.compute * 67e12 / again.speed.flops < 4 / 3
    assert "FLOP per sample" in " ".join(typed("experiment=images", "data.shards=/data")[1].split())


def test_programs_get_numbers() -> None:
    status, out, _ = typed(*LARGE, "--card", "H200", "--mtbf-hours", "100", "--json")
    assert status == 0
    found: dict[str, Any] = json.loads(out)
    assert found["parameters"] == 8030261248
    assert found["checkpoint"] == 12 * found["parameters"]
    assert found["fits"] is True
    assert found["goodput"]["mtbf_s"] == 100 * 3600 / 2
    memory = found["memory"]
    moment = memory["moments"][memory["at"]]
    assert memory["peak"] == moment["total"] == sum(moment.values()) - moment["total"]
    assert found["speed"]["step_s"] == pytest.approx(sum(found["speed"]["parts_s"].values()))


def test_failures_are_those_that_are_typed_or_configured_or_usual() -> None:
    def mtbf_s(*words: str) -> float:
        return float(
            json.loads(typed(*LARGE, *words, "--card", "H200", "--json")[1])["goodput"]["mtbf_s"]
        )

    configured = ("checkpoint.every_steps=null", "checkpoint.mtbf_hours=7.0")
    assert mtbf_s() == NODE_MTBF_HOURS * 3600 / 2
    assert mtbf_s(*configured) == 7 * 3600
    assert mtbf_s(*configured, "--mtbf-hours", "100") == 100 * 3600 / 2


def test_the_card_of_the_sites_jobs_is_taken_or_one_assumed_aloud() -> None:
    slurm = ["cluster=slurm", "model=gpt2", "cluster.slurm.gpu_type=a100_40gb", "--json"]
    status, out, err = typed(*slurm)
    assert (status, err) == (0, "")
    assert json.loads(out)["card"]["name"] == "A100-40"
    status, out, err = typed("model=gpt2", "cluster.device=cpu", "--json")
    assert status == 0
    assert json.loads(out)["card"]["name"] == "H100"
    assert "H100 is assumed" in err


def test_saves_as_configured_are_compared_with_what_is_best() -> None:
    often, usual = (plan_of([*LARGE, f"checkpoint.every_steps={n}"], "H100") for n in (1, 100))
    assert often.configured is not None
    assert often.configured.interval_s == often.goodput.durable_s  # it cannot be oftener
    assert often.configured.fraction < often.goodput.fraction
    assert usual.configured is not None
    assert usual.speed is not None
    assert usual.configured.interval_s == 100 * usual.speed.step.total
    timed = plan_of(
        [*LARGE, "checkpoint.every_steps=null", "checkpoint.every_minutes=30.0"], "H100"
    )
    assert timed.configured is not None
    assert timed.configured.interval_s == 1800
    assert plan_of([*LARGE, "checkpoint.every_steps=null"], "H100").configured is None
