"""A page says what is known of a run, in each format, and nothing that a run is called can act."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from checkpointing import Checkpointer, list_checkpoints
from hpckit.events.event_log import EventLog
from hpckit.report.cost.cost_summary import Prices, read_cost
from hpckit.report.overview import Queue
from hpckit.report.page.content_reader import read_content
from hpckit.report.page.page_file import render
from hpckit.report.page.render.markdown_page import code, plain
from hpckit.report.page.run_comparison import differences
from hpckit.rundir.directory import RunDir
from hpckit.rundir.fork_record import ForkRecord
from hpckit.rundir.lock import RunLock
from tests.unit.hpckit.report.eventful_runs import EVERY, died, eventful
from tests.unit.hpckit.report.sample_runs import HOSTILE, Page, content, ran, submitted, write

X = torch.randn(9000)
FORMS = ("html", "md", "json")


def told(*runs: RunDir) -> dict[str, str]:
    """The pages, with what HTML escapes as people read it."""
    pages = {form: render([content(run) for run in runs], form) for form in FORMS}
    return {**pages, "html": Page(pages["html"]).text}


def lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def test_key_figures_are_on_the_page_in_each_format(tmp_path: Path) -> None:
    run = ran(tmp_path / "run")
    page = told(run)
    for text in ("10 of 10", "1 preempted", "val_loss 1.1 at step 10", "done: reached the last"):
        assert text in page["html"], text
        assert plain(text) in page["md"], text
    body = json.loads(page["json"])
    assert (body["verdict"]["kind"], body["steps_kept"], len(body["lives"])) == ("done", 10, 2)
    assert body["status"]["state"] == "ended"
    assert body["curves"]["loss"]["points"][0] == [1, 10.0]
    assert [point[0] for point in body["curves"]["validation"]["points"]] == [5, 10]
    assert body["intake"] == {"hits": 30, "misses": 10, "bypasses": 0, "errors": 0, "bound": None}
    assert "75.0% hits (30 hits, 10 misses" in page["html"]
    assert "25.0% of the step time" in page["html"]


def test_the_time_is_parted_as_history_parts_it_and_adds_up(tmp_path: Path) -> None:
    body = json.loads(told(ran(tmp_path / "run"))["json"])
    went, (gap,) = body["went_into"], body["interruptions"]
    assert sum(went.values()) == pytest.approx(body["wall_s"])
    lost = [seconds for name, seconds in went.items() if name.startswith("lost")]
    assert lost == [gap["leave_s"], gap["restart_s"], gap["repeat_s"]] == [2.0, 4.0, 0.0]
    assert went["training: kept steps"] == 10.0


def test_html_is_whole_and_needs_nothing_else(tmp_path: Path) -> None:
    page = render([content(ran(tmp_path / "run"))], "html")
    made = Page(page)
    assert made.tags.isdisjoint({"script", "link", "img", "iframe", "object", "base", "form"})
    assert made.attributes.isdisjoint({"src", "style", "onload", "onclick"})
    assert set(re.findall(r'href="(.)', page)) == {"#"}
    assert "url(" not in page
    assert "@import" not in page
    assert "prefers-color-scheme: dark" in page
    assert page.count("<figure>") == 6
    for picture in re.findall(r"<svg xmlns.*?</svg>(?=</div>|</figure>)", page, re.DOTALL):
        ElementTree.fromstring(picture)


def test_interruptions_are_marked_and_told(tmp_path: Path) -> None:
    page = render([content(ran(tmp_path / "run", lives=3))], "html")
    assert page.count('<line class="mark lost"') == 3 * 2  # on both kinds of loss, and the speed
    assert "end of 1 at step 5: preempted, 6.0 s lost" in page
    assert "2: steps 5 → 10, preempted" in page


def test_many_attempts_share_a_lane_and_a_long_table_is_cut(tmp_path: Path) -> None:
    page = told(ran(tmp_path / "run", lives=220, per_life=1))["html"]
    assert "220 attempts, listed in the table below" in page
    assert "And 20 earlier ones." in page


def saved(run: RunDir, *steps: int) -> None:
    with EventLog(run.events, generation=2, attempt=0) as log:
        checkpointer = Checkpointer(run.checkpoints, run=run.name, on_event=log.emit_kind)
        for step in steps:
            checkpointer.save(step, {"w": torch.randn(1000), "x": X})
            checkpointer.wait()
        checkpointer.close()


def test_checkpoints_are_told_with_what_the_store_had_before(tmp_path: Path) -> None:
    run = ran(tmp_path / "run")
    assert "No checkpoint was committed." in told(run)["html"]
    saved(run, 2, 4)
    (run.checkpoints / list_checkpoints(run.checkpoints)[0].key).unlink()
    page = told(run)
    first, second = json.loads(page["json"])["saved"]
    assert (first["step"], first["state"], first["reuse"]) == (2, "removed", None)
    assert (second["step"], second["state"], second["bytes"]) == (4, "kept", 40_000)
    assert 0.5 < second["reuse"] < 1
    assert "2 committed, 1 kept." in page["html"]
    assert f"{second['reuse']:.0%}" in page["html"]
    (run.checkpoints / "hpckit.json").unlink()
    gone = told(run)
    assert "The checkpoints cannot be read: " in gone["html"]
    assert [one["state"] for one in json.loads(gone["json"])["saved"]] == ["unknown", "unknown"]


def test_a_run_that_never_started_says_so(tmp_path: Path) -> None:
    page = told(submitted(tmp_path / "run"))
    for form in FORMS:
        assert "It has not trained yet" in page[form]
    assert "No checkpoint was committed." in page["html"]


def test_a_run_under_way_says_that_it_is(tmp_path: Path) -> None:
    run = ran(tmp_path / "run")
    run.verdict.unlink()
    kept = [line for line in run.events.read_text().splitlines() if "_ended" not in line]
    run.events.write_text("\n".join(kept) + "\n")
    with RunLock(run.lock, "supervisor"):
        page = told(run)
    assert "It is still running: this page shows it as of" in page["html"]
    assert json.loads(page["json"])["lives"][-1]["end"] == "running"
    assert json.loads(told(run)["json"])["lives"][-1]["end"] == "killed"


def test_damaged_records_are_left_out_and_said(tmp_path: Path) -> None:
    run = ran(tmp_path / "run")
    write(run, '{"time": 1.0, "kind', "[]", {"time": 2.0, "kind": "step", "step": None})
    run.verdict.write_text("[1]")
    run.spec(1).write_text("model: [")
    page = told(run)["html"]
    assert "Left out: 2 lines of events.jsonl" in page
    assert "Left out: 1 event of events.jsonl" in page
    assert f"This may be incomplete: {run.spec(1)}: not valid YAML" in page
    run.spec(1).write_text(submitted(tmp_path / "other").spec(1).read_text())
    assert f"{run.verdict} is damaged" in told(run)["html"]


def test_losses_that_are_no_number_break_the_curve_and_are_counted(tmp_path: Path) -> None:
    run = ran(tmp_path / "run")
    of = {"time": 1009.5, "kind": "step", "generation": 1, "attempt": 0, "step_s": 1.0}
    write(run, {**of, "step": 5, "loss": float("nan")})
    page = told(run)
    assert "1 of 10 losses are not finite: the curve has gaps there." in page["html"]
    assert [5, None] in json.loads(page["json"])["curves"]["loss"]["points"]


def test_findings_of_nodes_are_told(tmp_path: Path) -> None:
    run = ran(tmp_path / "run")
    node: dict[str, Any] = {"time": 1001.0, "kind": "node_unhealthy", "host": "n7", "node": 1}
    write(run, {**node, "problems": ["Xid 79", "ECC"]})
    write(run, {"time": 1002.0, "kind": "degraded", "what": "no spare node"})
    page = told(run)
    for text in ("unhealthy node", "n7", "Xid 79; ECC", "no spare node"):
        assert text in page["html"]
        assert text in page["md"]
    assert [one["where"] for one in json.loads(page["json"])["findings"]] == ["n7", ""]


def test_spikes_are_told_with_their_cure_and_the_loss_around_them(tmp_path: Path) -> None:
    run = eventful(tmp_path / "run")
    page, drawn = told(run), render([content(run)], "html")
    for text in ("went back and left its samples out", "its update was left out"):
        assert text in page["html"]
        assert text in page["md"]
    assert "--skipped" in page["html"]
    assert "loss from step 280,000 to 530,000" in page["html"]
    assert drawn.count('<line class="mark cure"') == 2 * 2 + 2 + 2  # both losses, norm, closely
    assert '<path class="line train behind"' in drawn
    assert '<path class="line valid"' in drawn
    assert '<path class="line eval"' in drawn


def test_a_fork_is_told_with_its_family_and_the_loss_before_it(tmp_path: Path) -> None:
    parent = eventful(tmp_path / "parent")
    record = ForkRecord("parent", str(parent.path), "store", 100 * EVERY, "000000500000-01")
    fork = eventful(tmp_path / "fork", 2, record)
    page, drawn = told(fork), render([content(fork)], "html")
    assert "before the fork" in page["html"]
    assert 'class="line parent"' in drawn
    assert f"hpckit report {parent.path} {fork.path}" in page["html"]
    family = json.loads(page["json"])["family"]
    assert [(one["run"], one["fork_step"]) for one in family] == [
        *(("parent", None), ("fork", 500_000)),
    ]
    shutil.rmtree(parent.path)
    assert f"{parent.path}, which it descends from, no longer exists" in told(fork)["html"]


def test_a_program_is_told_what_to_report(tmp_path: Path) -> None:
    page = told(died(tmp_path / "run"))["html"]
    assert "unknown: the program does not report where the time of a step goes" in page
    assert "client.step(step, data_wait_s=" in page
    assert "samples/s" in page
    assert "Learning rate" not in page


def test_phases_that_a_program_reports_are_used(tmp_path: Path) -> None:
    run = submitted(tmp_path / "run", command="program")
    of = {"generation": 1, "attempt": 0}
    begun = {**of, "step": 0, "world_size": 1, "samples": None}
    write(run, {"time": 1.0, "kind": "training_started", **begun})
    spent = {"step_s": 1.0, "data_wait_s": 0.75, "other_s": 0.25}
    write(run, {"time": 2.0, "kind": "step", **of, "step": 1, **spent})
    body = json.loads(told(run)["json"])
    assert (body["bottleneck"], body["in_steps"]["parts"]["other"]) == ("input", 0.25)


def test_costs_are_by_cause_and_have_a_price_if_it_is_known(tmp_path: Path) -> None:
    run = ran(tmp_path / "run")
    assert "With --gpu-price or --node-price" in told(run)["html"]
    priced = read_content(run, Queue(), lambda overview, events: None, prices=Prices(node=3600.0))
    page = Page(render([priced], "html")).text
    assert priced.cost.money is not None
    assert f"price{priced.cost.money:,.2f}" in page
    assert "lost: preempted" in page
    assert "idle nodes" not in page, "it had none"


def hostile(tmp_path: Path) -> RunDir:
    """Whoever named the folder, the host, a metric and a value of the config meant harm."""
    name = HOSTILE.replace("/", "").replace("\x00", "")
    run = ran(tmp_path / name, {"user_config": {HOSTILE: HOSTILE}})
    node: dict[str, Any] = {"time": 1001.0, "kind": "node_unhealthy", "host": HOSTILE}
    write(run, {**node, "node": 1, "problems": [HOSTILE]})
    write(run, {"time": 1002.0, "kind": "degraded", "what": HOSTILE})
    found = {"generation": 2, "step": 10, f"val_{HOSTILE}": 1.0}
    write(run, {"time": 1003.0, "kind": "validated", **found})
    end = {"generation": 2, "verdict": "crash", "reason": HOSTILE, "step": 10}
    write(run, {"time": 1004.0, "kind": "generation_ended", **end})
    verdict = {"kind": HOSTILE, "reason": HOSTILE, "final": True, "time": 2000.0}
    run.verdict.write_text(json.dumps(verdict))
    return run


def test_hostile_names_are_text_and_nothing_else(tmp_path: Path) -> None:
    run, other = hostile(tmp_path), ran(tmp_path / "other")
    for runs in ([run], [run, other]):
        page = render([content(one) for one in runs], "html")
        made = Page(page)
        assert "script" not in made.tags
        assert "alert('1')" in made.text
        assert not re.search(r"[\x00-\x08\x0b-\x1f]", page)
        text = render([content(one) for one in runs], "md")
        typed = re.sub(r"(?m)^- `.*`$", "", text)  # code, in which nothing means anything
        assert "<script" not in typed.replace("\\<script", "")
        assert "\n# x" not in text
        assert not re.search(r"[\x00-\x08\x0b-\x1f]", text)
        heads = [line.count("|") - line.count("\\|") for line in lines(text) if line[:1] == "|"]
        assert min(heads) > 2
        assert json.loads(render([content(one) for one in runs], "json"))["written_by"]


def test_markdown_of_what_is_typed_ends_where_it_ends() -> None:
    assert code("a `b` c") == "``a `b` c``"
    assert code("`x") == "`` `x ``"
    assert code("a\nb") == "`a b`"


def test_several_runs_are_beside_each_other(tmp_path: Path) -> None:
    one = ran(tmp_path / "one", {"train.steps": 1000})
    two = ran(tmp_path / "two", {"train.steps": 1500}, lives=3)
    runs = [content(one), content(two)]
    assert differences(runs) == {"train.steps": ["1000", "1500"]}
    page = told(one, two)
    assert page["html"].count("Loss over steps") == 0  # names of pictures are no text
    made = render(runs, "html")
    assert made.count("<details ") == 2
    assert '<path class="line run0"' in made
    assert '<path class="line run1"' in made
    assert "| train.steps | 1000 | 1500 |" in page["md"]
    assert "| attempts | 2 | 3 |" in page["md"]
    body = json.loads(page["json"])
    assert (body["names"], body["config"]) == (["one", "two"], {"train.steps": ["1000", "1500"]})
    assert [run["steps_kept"] for run in body["runs"]] == [10, 15]


def test_runs_of_one_name_are_told_apart_and_an_unreadable_config_is_said(tmp_path: Path) -> None:
    one, two = ran(tmp_path / "a" / "run"), ran(tmp_path / "b" / "run")
    two.spec(1).write_text("model: [")
    page = told(one, two)
    assert str(one.path) in page["html"]
    assert "config cannot be read" in page["html"]
    assert json.loads(page["json"])["config"] == {}


def test_an_evaluation_that_runs_costs_as_much_as_hpckit_cost_says(tmp_path: Path) -> None:
    run = ran(tmp_path / "run")
    folder = run.evaluation("0000000010-01234567")
    folder.mkdir(parents=True)
    started = {"step": 10, "id": folder.name, "host": "n1", "pid": 1}
    event = {"time": time.time() - 7200, "kind": "evaluation_started", **started}
    (folder / "events.jsonl").write_text(json.dumps(event) + "\n")
    with RunLock(folder / "lock", "an evaluation"):
        hours = content(run).cost.node_hours["evaluation"]
        assert hours == pytest.approx(2.0, abs=0.2)
        assert hours == pytest.approx(read_cost(run, Prices()).node_hours["evaluation"], abs=0.2)
