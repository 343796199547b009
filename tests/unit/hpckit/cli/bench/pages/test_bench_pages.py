"""The pages of `hpckit bench profile`, `precision` and `scaling`, and what their figures say."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from data import open_dataset
from hpckit.cli.bench import measured_runs
from hpckit.cli.bench.measured_workload import (
    TRAINED,
    VALIDATED,
    choose_workload,
    model_name,
    with_images,
)
from hpckit.cli.bench.pages.page_files import check_page, write_page_files
from hpckit.cli.bench.pages.precision_page import precision_page
from hpckit.cli.bench.pages.profile_page import profile_page
from hpckit.cli.bench.pages.scaling_page import scaling_page
from hpckit.cli.bench.precision import default_batch
from hpckit.cli.bench.precision_figures import (
    PrecisionFigures,
    conclusions,
    precision_run,
)
from hpckit.cli.bench.precision_figures import record as precision_record
from hpckit.cli.bench.profile_figures import conclusions as profile_conclusions
from hpckit.cli.bench.profile_figures import profiled_run
from hpckit.cli.bench.profile_figures import record as profile_record
from hpckit.cli.bench.scaling_figures import by_model, explain, records
from hpckit.cli.common.command_errors import CommandError
from hpckit.cli.common.command_output import CommandOutput
from hpckit.cli.main import app
from hpckit.config.spec import RunSpec
from hpckit.config.spec_parser import SpecError
from hpckit.events.event_log import Event
from hpckit.report.page.page_document import PageDocument
from hpckit.report.page.render.html_page import html
from hpckit.report.page.render.markdown_page import markdown
from hpckit.submit.compose import compose_spec
from tests.unit.hpckit.cli.measured_figures import (
    COSTS,
    precisions,
    profiled,
    scaled,
    scaling,
    step,
    trained,
)

precision_command = sys.modules["hpckit.cli.bench.precision"]  # the package has the command


def sections(page: PageDocument) -> list[str]:
    text = html(page)  # each block can be drawn
    assert text.count("<svg") >= 2
    assert markdown(page)
    return [section.title for section in page.sections]


def test_a_profile_is_of_the_steps_before_the_profiler() -> None:
    run = profiled()
    assert (run.step_s, run.samples_per_s) == (0.1, 160.0)
    assert run.phases == {"forward": 0.04, "backward": 0.05}
    assert run.peak_bytes == 300_000_000
    with pytest.raises(ValueError, match="no step from 4 to 8"):
        profiled_run([step(1), step(9)], COSTS, 16)


def test_a_profile_says_what_bounds_the_most_costly_operations() -> None:
    compiled = replace(profiled(), is_compiled=True, step_s=0.05)
    found = dict(profile_conclusions([profiled(), compiled]))
    assert found["operation 1"] == (
        "aten::mm, 56% of the time in operations: 20 ms of CPU, mostly in aten::mm; bound by "
        "compute: 50 GFLOP/s, 50% of the measured peak"
    )
    assert "bound by memory: 5 GB/s, 50% of the measured peak" in found["operation 2"]
    assert (
        "10 GFLOP/s of 100 GFLOP/s, 19.2 FLOP per byte; the roofline bends at 10.0" in found["step"]
    )
    assert found["activations"].startswith("8.0 MiB are kept when the backward pass")
    assert "blocks.0 keeps most, 5.0 MiB" in found["activations"]
    assert found["compiled"].endswith("2.00 times as fast")


def test_a_peak_that_an_operation_exceeds_is_doubted() -> None:
    assert "doubt" not in dict(profile_conclusions([profiled()]))
    slow = replace(COSTS, peaks=replace(COSTS.peaks, flops_per_s=4e10))
    found = dict(profile_conclusions([replace(profiled(), costs=slow)]))
    assert found["doubt"].startswith("aten::mm reaches 50 GFLOP/s, more than the 40 GFLOP/s")


def test_the_page_of_a_profile_has_its_plots_and_numbers() -> None:
    compiled = replace(COSTS, is_compiled=True, operations=COSTS.operations[:2], layers=())
    runs = [profiled(), replace(profiled(), is_compiled=True, costs=compiled)]
    assert sections(profile_page("resnet_nano", runs, "now")) == [
        "Result",
        "Most costly operations",
        "Roofline",
        "Memory of activations by layer",
        "With compiled blocks",
        "How it was measured",
    ]
    found = profile_record(runs[0])
    assert found.keys() == {
        *("compiled", "step_s", "samples_per_s", "phases_s", "peak_bytes", "activation_bytes"),
        *("step", "device", "torch", "threads", "first_step", "steps", "is_compiled", "peaks"),
        *("operations", "layers"),
    }
    assert [one["bound"] for one in found["operations"]] == ["compute", "memory", "memory", None]
    assert found["operations"][0].keys() == {
        *("name", "calls", "cpu_s", "device_s", "kernel", "flops", "bytes", "bound"),
        "share_of_peak",
    }
    assert found["step"].keys() == {"intensity", "reached", "limit", "is_compute_bound", "bound"}
    json.dumps(found)


def test_of_a_run_that_began_anew_the_last_attempt_counts() -> None:
    lost = [step(n, step_s=9.0, loss=9.0) for n in (1, 2, 3)]
    run = precision_run("fp32", [*lost, *(step(n) for n in range(1, 5))], 2, 32)
    assert [epoch.seconds for epoch in run.epochs] == pytest.approx([0.2, 0.2])
    assert [number for number, _ in run.losses] == [1, 2, 3, 4]


def test_a_precision_is_measured_by_epochs() -> None:
    run = trained()
    assert [epoch.seconds for epoch in run.epochs] == pytest.approx([0.6, 0.2, 0.2])
    assert [epoch.accuracy for epoch in run.epochs] == [0.25, 0.5, 0.75]
    assert [run.first_epoch_factor, run.skipped_steps] == pytest.approx([3.0, 1])
    assert [run.step_s, run.samples_per_s] == pytest.approx([0.1, 320.0])
    text = precision_run("bf16", [step(1), step(2)], 2, 32)
    assert (text.first_epoch_factor, text.epochs[0].accuracy, text.skipped_steps) == (None, None, 0)
    with pytest.raises(ValueError, match="bf16: no step was recorded"):
        precision_run("bf16", [], 2, 32)


def test_the_page_of_precisions_has_its_plots_and_numbers() -> None:
    found = precisions()
    assert sections(precision_page("resnet_nano", found, "now")) == [
        "Result",
        "Loss and accuracy",
        "Epochs",
        "Size of the batch",
    ]
    said = dict(conclusions(found))
    assert said["fp16"] == (
        "320.0 samples/s; accuracy 75.0% after 3 epochs; the first epoch takes 3.00 times the "
        "later ones; 1 skipped step; best batch 2, the largest that "
        "fits"
    )
    assert said["bf16"] == "could not be trained: failed"
    numbers = precision_record(found)
    assert numbers.keys() == {"runs", "failures", "batches"}
    assert numbers["runs"][0]["best_batch"] == 2
    assert numbers["runs"][0].keys() == {
        *("precision", "epochs", "step_s", "samples_per_s", "peak_bytes", "is_gpu"),
        *("skipped_steps", "losses", "first_epoch_factor", "best_batch"),
    }
    assert precision_record(PrecisionFigures((), {}, None))["batches"] is None


def test_scaling_says_why_communication_takes_over() -> None:
    points = scaling()
    found = by_model(points)
    small, large = (explain(model, found) for model in ("small", "large"))
    assert small is not None
    assert "on 2 ranks, a rank computes for 40 ms of a step and waits 60 ms for others" in small
    assert "another model moves 100.0 times as many bytes per second" in small
    assert large is not None
    assert "for 1 MB of gradients (16.7 MB/s), which is the fastest" in large
    alone = explain("large", {"large": found["large"]})
    assert alone is not None
    assert "measure a model of another size, too" in alone, "one model shows no limit of links"
    assert explain("one", by_model([scaled("one", 1, 0.0, 1)])) is None
    assert sections(scaling_page(found, "weak scaling", "now", None)) == [
        *("Result", "Speed", "Efficiency", "Synchronisation", "Time to a loss", "Figures"),
    ]
    failed = scaling_page(found, "weak scaling", "now", None, {"large on 1x4": "oom: too large"})
    assert "large on 1x4 was not measured: oom: too large" in html(failed)
    numbers = records(points)
    assert numbers[0]["target_loss"] == pytest.approx(numbers[1]["target_loss"])
    assert numbers[0]["target_s"] == pytest.approx(1.2)
    assert records(points, target=0.001)[0]["target_s"] is None


def test_a_world_that_fails_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def carried(spec: RunSpec, *_: object) -> list[Event]:
        if spec.launch.nproc_per_node == 2 or spec.model != first.model:
            raise CommandError("scaling: oom: it is too large\n    hpckit why PATH")
        return [step(n) for n in range(1, 11)]

    first = compose_spec(["model=gpt_nano"])
    monkeypatch.setattr(measured_runs, "carry_out", carried)
    words = ["--worlds", "1x1,1x2", "--steps", "10", f"root={tmp_path}/runs"]
    words += ["data.shards=.", "--out", f"{tmp_path}/p.html", "--json"]
    monkeypatch.setattr(measured_runs, "check", lambda *_: None)
    done = CliRunner().invoke(app, ["bench", "scaling", "--models", "gpt_nano,gpt_tiny", *words])
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert [(one["model"], one["ranks"]) for one in found["points"]] == [("gpt_nano", 1)]
    assert [*found["failures"]] == ["gpt_nano on 1x2", "gpt_tiny on 1x1", "gpt_tiny on 1x2"]
    none = CliRunner().invoke(app, ["bench", "scaling", "--models", "gpt_tiny", *words])
    assert (none.exit_code, "no run has reached its end" in none.stderr) == (2, True)


def test_a_model_of_images_gets_images_and_a_model_of_text_none(tmp_path: Path) -> None:
    work = choose_workload([])
    assert (work.images is not None, model_name(work)) == (True, "resnet_nano")
    words = with_images(work, tmp_path, is_validated=True)
    spec = compose_spec([*words, "train.validate_every=1"])
    assert spec.entry == "hpckit.training.images:main"
    assert spec.data.validation == str(tmp_path / "validation")
    for name, number in (("images", TRAINED), ("validation", VALIDATED)):
        assert len(open_dataset(tmp_path / name)) == number
    text = choose_workload(["model=gpt_nano"])
    assert (text.images, with_images(text, tmp_path, is_validated=True)) == (
        None,
        ["model=gpt_nano"],
    )
    own = choose_workload(["entry=mine:main"])
    assert (own.images, model_name(own)) == (None, "mine:main")


def test_an_experiment_keeps_its_batch() -> None:
    assert default_batch(["experiment=mine", "model=gpt_nano"]) == ()
    plain = choose_workload([*default_batch([]), "train.global_batch=8"])
    assert (plain.spec.train.global_batch, plain.spec.train.micro_batch) == (8, 32)


@pytest.mark.parametrize("error", [CommandError("it died"), SpecError(["too few ranks"])])
def test_what_was_trained_is_not_lost_if_no_batch_can_be_found(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(measured_runs, "prepared_runs", fail)
    said: list[str] = []
    out = CommandOutput(False)
    monkeypatch.setattr(out, "note", said.append)
    work = choose_workload(["model=gpt_nano"])
    found = precision_command._look_for_batch(work, ["fp32"], 8, 1.0, tmp_path, out)
    assert (found, said) == (None, [f"the best batch is not known: {error}"])


def test_nobody_elses_file_is_replaced_by_a_page_or_its_numbers(tmp_path: Path) -> None:
    page, numbers = tmp_path / "package.html", tmp_path / "package.json"
    for foreign in (numbers, page):
        foreign.write_text("{}")
        words = ["bench", "profile", "--out", str(page), f"root={tmp_path}/runs"]
        done = CliRunner().invoke(app, words)
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
        assert f"{foreign} is not a report of hpckit" in done.stderr
        foreign.unlink()
    write_page_files(CommandOutput(False), profile_page("m", [profiled()], "now"), {}, page)
    check_page(page)  # a page and numbers of hpckit's may be replaced


def test_a_folder_that_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for command, ending in (("precision", "html"), ("scaling", "svg")):
        words = ["bench", command, "--out", f"{tmp_path}/file/p.{ending}", f"root={tmp_path}/runs"]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 2
        assert f"{tmp_path}/file" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_page_ends_with_its_command_and_its_files_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = profile_page("m", [profiled()], "now")
    write_page_files(CommandOutput(False), page, {"a": float("nan")}, tmp_path / "x" / "p.html")
    assert json.loads((tmp_path / "x" / "p.json").read_text()) == {
        "written_by": "hpckit report",
        "a": "nan",
    }
    assert "<h2>Command</h2>" in (tmp_path / "x" / "p.html").read_text()
    *_, named, numbers = capsys.readouterr().out.splitlines()
    assert (named.split(), numbers.split()) == (
        ["page", str(tmp_path / "x" / "p.html")],
        ["numbers", str(tmp_path / "x" / "p.json")],
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["profile", "--out", "p.pdf"], "--out: p.pdf must end in .html"),
        (["profile", "model=resnet_non"], "resnet_non"),
        (["precision", "--precisions", "fp64"], "'fp64' is not one of fp32, fp16, bf16"),
        (["precision", "entry=mine:main"], "mine:main decides itself in which precision"),
        (["precision", "--out", "p.json"], "--out: p.json must end in .html"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_runs(
    words: list[str], said: str, tmp_path: Path
) -> None:
    command, *rest = words
    done = CliRunner().invoke(app, ["bench", command, f"root={tmp_path}/runs", *rest])
    assert done.exit_code == 2
    assert said in done.stderr
    assert not (tmp_path / "runs").exists()
