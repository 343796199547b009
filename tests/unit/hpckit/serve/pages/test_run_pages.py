"""Pages about runs: whole, escaped, right, and made without reading more than has changed."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import pytest

from checkpointing.store.store import Store
from hpckit.config.spec_parser import read_spec
from hpckit.events import event_validation
from hpckit.rundir.directory import RunDir
from hpckit.rundir.fork_record import ForkRecord, write_fork
from hpckit.serve import run_reader
from hpckit.serve.pages.lineage_page import families
from hpckit.serve.pages.run_words import small_picture
from hpckit.serve.run_catalog import RunCatalog, ServedRun
from hpckit.serve.run_reader import RunReader, small_curve
from hpckit.serve.site import PageNotFoundError
from hpckit.serve.site_export import ForeignFolderError, export_site
from hpckit.slurm.squeue import QueueError, SlurmJob
from hpckit.suspects.suspect_folder import SuspectFolder
from hpckit.suspects.suspect_record import SuspectRecord
from tests.unit.hpckit.report.sample_runs import Page, ran, submitted
from tests.unit.hpckit.serve.served_runs import (
    HOSTILE,
    STEPS,
    TRACEBACK,
    ServedFolder,
    go_on,
    make_checkpoints,
    make_runs,
)

KEY = "gpt-1a2b3c4d"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> ServedFolder:
    return make_runs(tmp_path_factory.mktemp("served") / "runs")


def text_of(served: ServedFolder, address: str, **query: str) -> str:
    return Page(served.site().page(address, query).text).text


def test_every_page_is_whole_and_shows_hostile_words_as_text(runs: ServedFolder) -> None:
    site, kinds = runs.site(), set()
    for address in site.addresses():
        page = site.page(address, {})
        kinds.add(address.rpartition("/")[2])
        if page.media == "text/html":
            parsed = Page(page.text)
            assert parsed.tags.isdisjoint({"i", "iframe", "object"}), address
            assert not any(name.startswith("on") for name in parsed.attributes)
            assert "alert(1)" not in re.findall(r"<script[^>]*>([^<]*)", page.text)
            if not page.has_own_style:
                assert {"style", "b"}.isdisjoint(parsed.tags | parsed.attributes)
    assert kinds == {
        *("index.html", "lineage.html", "nodes.html", "runs.json", "style.css"),
        *("report.html", "checkpoints.html", "error.html"),
    }
    assert HOSTILE in text_of(runs, "index.html")


def test_all_runs_are_listed_and_damage_is_one_line_of_a_run(runs: ServedFolder) -> None:
    shown = text_of(runs, "index.html")
    assert "6 runs: 4 done, 1 dead, 1 unreadable" in shown
    assert "60 of 60" in shown
    assert "forked from step 20 of gpt-1a2b3c4d" in shown
    assert "events.jsonl: Is a directory" in shown
    assert "left out of events.jsonl: 1 damaged line; " in shown
    assert "spec.yaml does not exist" in shown
    document = json.loads(runs.site().page("runs.json", {}).text)
    found = {one["run"]: one for one in document["runs"]}
    assert len(found) == 6
    assert found["gpt-1a2b3c4d"]["step"] == 60
    assert found["gpt-1a2b3c4d"]["problem"] is None
    assert "Is a directory" in found["broken-00000002"]["problem"]


def test_the_pages_of_a_run(runs: ServedFolder) -> None:
    state = text_of(runs, f"runs/{KEY}/")
    assert "reached its last step" in state
    assert "hpckit report" in state
    error = text_of(runs, f"runs/{KEY}/error.html")
    assert TRACEBACK in error
    assert "errorValueError: bad" in error, "what it is stands before its traceback"
    assert "rank 3" in error
    assert "<i>ended</i>" in error
    report = runs.site().page(f"runs/{KEY}/report.html", {})
    assert 'href="index.html"' in report.text
    assert "Is a directory" in text_of(runs, f"runs/{runs.broken.name}/report.html")


def test_checkpoints_are_listed_compared_and_previewed_and_nothing_is_touched(
    runs: ServedFolder,
) -> None:
    before = sorted((path, path.stat().st_mtime_ns) for path in runs.root.rglob("*"))
    page = runs.site().page(f"runs/{KEY}/checkpoints.html", {})
    ids = dict.fromkeys(re.findall(r'value="(0[0-9a-f-]+)"', page.text))
    assert len(ids) == len(STEPS)
    last = read_spec(runs.trained.spec(1)).checkpoint.keep.last
    assert f"keep last={last}" in Page(page.text).text
    preview = text_of(runs, f"runs/{KEY}/checkpoints.html", keep="last=1 best=loss:max")
    assert "2 checkpoints of 4 are removed" in preview
    assert "no policy keeps it" in preview
    assert f"hpckit ckpt prune {runs.trained.path} --keep last=1" in preview
    newest, *_, oldest = ids
    for address in runs.site().addresses():
        runs.site().page(address, {})
    difference = text_of(runs, f"runs/{KEY}/diff.html", a=oldest, b=newest)
    assert "2 tensors: 1 unchanged, 1 changed" in difference
    assert "1 value: 0 unchanged, 1 changed" in difference
    after = sorted((path, path.stat().st_mtime_ns) for path in runs.root.rglob("*"))
    assert before == after


def test_a_prune_by_the_policies_of_a_run_has_those_of_its_evaluations(tmp_path: Path) -> None:
    changes = {"eval.entry": "mine:evaluate", "eval.metric": "accuracy", "eval.mode": "max"}
    run = ran(tmp_path / "runs" / "gpt-1", {**changes, "eval.every": 100, "eval.keep_hours": 6})
    make_checkpoints(run)
    served = ServedFolder(tmp_path / "runs", *[run] * 6)
    page = served.site().page("runs/gpt-1/checkpoints.html", {}).text
    assert "best=eval_accuracy:max" in page
    assert "1 checkpoint of 4 is removed" in Page(page).text, "though none has the metric yet"
    assert "that wait for an evaluation, for 6 h" in page


@pytest.mark.parametrize(
    ("address", "query", "words"),
    [
        ("checkpoints.html", {"keep": "lst=3"}, "cannot keep 'lst=3'"),
        ("checkpoints.html", {"keep": ""}, "give what to keep"),
        ("checkpoints.html", {"keep": "best=accuracy"}, "has a metric 'accuracy'"),
        ("diff.html", {"a": "../x", "b": "<b>"}, "no readable checkpoint '../x'"),
        ("diff.html", {}, "no readable checkpoint ''"),
    ],
)
def test_wrong_parameters_are_explained(
    runs: ServedFolder, address: str, query: dict[str, str], words: str
) -> None:
    assert words in text_of(runs, f"runs/{KEY}/{address}", **query)


def test_large_checkpoints_are_compared_by_their_tables_alone(
    runs: ServedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpckit.serve.checkpoint_reader.MEASURED_BYTES", 100)
    monkeypatch.setattr("hpckit.serve.checkpoint_reader.measured", None)
    with_store = Store.open(runs.trained.checkpoints)
    a, b = (stored.save.id for stored in with_store.manifests()[:2])
    with_store.close()
    shown = text_of(runs, f"runs/{KEY}/diff.html", a=a, b=b)
    assert f"hpckit ckpt diff {runs.trained.path} {a} {b}" in shown
    assert "1 unchanged, 1 changed" in shown


@pytest.mark.parametrize(
    "address",
    [
        *("nothing.html", "runs", "runs/", "runs/none/index.html", f"runs/{KEY}/events.jsonl"),
        *(f"runs/{KEY}/../../{KEY}/index.html", "../index.html", f"runs/{KEY}/report.html/x"),
        *("assets/live.js", "runs/../runs.json", f"runs/{HOSTILE}/index.html", "/etc/passwd"),
        *(f"runs/{KEY}\x00/index.html", f"runs//{KEY}/index.html"),
    ],
)
def test_only_known_addresses_lead_to_pages(runs: ServedFolder, address: str) -> None:
    with pytest.raises(PageNotFoundError):
        runs.site().page(address, {})


def test_the_lineage_has_a_parent_before_its_forks_at_their_steps(
    runs: ServedFolder, tmp_path: Path
) -> None:
    reader = RunReader(lambda overview, events: None, 0.0)
    stray = ran(tmp_path / "stray-1")
    write_fork(stray, ForkRecord("lost-0", str(tmp_path / "lost-0"), "/store", 7, "x"))
    catalog = RunCatalog([stray], [runs.root]).read()
    found = families([reader.read(served) for served in catalog.runs.values()])
    rows = sorted([(r.name, r.first, r.last, r.parent) for r in rows] for rows in found)
    assert rows == [
        [(KEY, 0, 60, None), (runs.fork.name, 20, 90, 0)],
        [("lost-0", 0, 7, None), ("stray-1", 7, 10, 0)],
    ]
    assert "step 20 of gpt-1a2b3c4d" in text_of(runs, "lineage.html")


@pytest.mark.parametrize(
    "change",
    [
        *({"step": "20"}, {"step": -1}, {"step": 2**70}, {"step": None}, {"path": 7}),
        *({"path": "a\0b"}, {"path": "\ud800"}, {"run": ["x"]}, {"more": 1}),
    ],
)
def test_a_fork_record_that_is_damaged_takes_no_page_away(
    change: dict[str, object], tmp_path: Path
) -> None:
    run = ran(tmp_path / "runs" / "gpt-1")
    record = asdict(ForkRecord("a", "/none", "/store", 3, "x")) | change
    run.fork.write_text(json.dumps(record))
    site = ServedFolder(tmp_path / "runs", *[run] * 6).site()
    for address in site.addresses():
        assert site.page(address, {}).text
    assert "forked from" not in Page(site.page("index.html", {}).text).text


def test_links_that_lead_to_each_other_take_no_page_away(tmp_path: Path) -> None:
    run = ran(tmp_path / "runs" / "gpt-1")
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    write_fork(run, ForkRecord("a", str(tmp_path / "a"), "/store", 3, "x"))
    site = ServedFolder(tmp_path / "runs", *[run] * 6).site()
    assert "step 3 of a" in Page(site.page("lineage.html", {}).text).text
    assert "no longer exists" in site.page("runs/gpt-1/report.html", {}).text


def test_runs_that_name_each_other_as_parents_are_shown(tmp_path: Path) -> None:
    reader = RunReader(lambda overview, events: None, 0.0)
    both = [ran(tmp_path / "a-1"), ran(tmp_path / "b-2")]
    for one, other in (both, both[::-1]):
        write_fork(one, ForkRecord(other.name, str(other.path), "/store", 3, "x"))
    found = families([reader.read(ServedRun(run.name, run)) for run in both])
    assert sorted(row.name for rows in found for row in rows) == ["a-1", "b-2"]


def test_suspects_of_the_site_are_shown_with_the_run_that_reported_them(tmp_path: Path) -> None:
    folder = tmp_path / "list"
    suspects = {"cluster.slurm.suspects.folder": str(folder)}
    run = submitted(tmp_path / "runs" / "gpt-1", suspects, cluster="slurm")
    spec = read_spec(run.spec(1)).cluster.slurm
    assert spec is not None
    assert spec.suspects is not None
    now = time.time()
    reason, path = "<b>bad</b>", str(run.path)
    record = SuspectRecord("n07", "report", now, now + 3600, reason, run=path, user="ann")
    SuspectFolder(spec.suspects, "unknown", folder).write(record)
    served = ServedFolder(tmp_path / "runs", *[run] * 6)
    shown = text_of(served, "nodes.html")
    assert "n07" in shown
    assert "<b>bad</b>" in shown
    assert re.search(r"gpt-1, ann, \d+ s ago", shown)
    assert "scontrol update nodename=n07 state=drain" in shown


def test_a_curve_follows_the_steps_that_count() -> None:
    picture = small_picture([(1, 4.0), (2, None), (3, 2.0), (4, 1.0)], "loss")
    assert picture.count("<polyline") == 2
    assert picture.count("<line") == 1
    assert small_picture([(1, 4.0)], "loss") == ""
    assert small_picture([(1, None), (2, None)], "loss") == ""
    assert small_curve([]) == ()


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RunDir]]:
    """The runs whose events were read, in order."""
    found: list[RunDir] = []

    def read(run: RunDir) -> event_validation.ValidatedEvents:
        found.append(run)
        return event_validation.read_valid_events(run)

    monkeypatch.setattr(run_reader, "read_valid_events", read)
    return iter([found])


def test_a_run_is_read_again_when_its_records_change(
    tmp_path: Path, readings: Iterator[list[RunDir]]
) -> None:
    (found,) = readings
    run = ran(tmp_path / "gpt-1")
    served, reader = ServedRun("gpt-1", run), RunReader(lambda overview, events: None, 0.0)
    first = reader.read(served)
    assert reader.read(served) is first
    assert found == [run]
    go_on(run, 11)
    again = reader.read(served)
    while again is first:  # the first reading took some time, of which it is allowed a share
        again = reader.read(served)
    assert again.overview is not None
    assert again.overview.progress.step == 11


def test_a_run_that_is_being_read_does_not_hold_up_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ran(tmp_path / "gpt-1")
    served, reader = ServedRun("gpt-1", run), RunReader(lambda overview, events: None, 0.0)
    first = reader.read(served)
    monkeypatch.setattr(run_reader, "SHARE", 0)
    begun, may_end = threading.Event(), threading.Event()

    def read(run: RunDir) -> event_validation.ValidatedEvents:
        begun.set()
        assert may_end.wait(60)
        return event_validation.read_valid_events(run)

    monkeypatch.setattr(run_reader, "read_valid_events", read)
    go_on(run, 11)
    thread = threading.Thread(target=reader.read, args=(served,))
    thread.start()
    assert begun.wait(60)
    assert reader.read(served) is first
    may_end.set()
    thread.join()
    again = reader.read(served).overview
    assert again is not None
    assert again.progress.step == 11


def test_a_report_is_made_again_when_its_records_change(tmp_path: Path) -> None:
    run = ran(tmp_path / "gpt-1")
    served, reader = ServedRun("gpt-1", run), RunReader(lambda overview, events: None, 0.0)
    first = reader.report(served)
    assert reader.report(served) is first
    go_on(run, 11)
    assert reader.report(served) is not first


class _Links(Page):
    def __init__(self, page: str) -> None:
        self.links: list[str] = []
        super().__init__(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        super().handle_starttag(tag, attrs)
        self.links += [value for name, value in attrs if name in ("href", "src") and value]


def test_an_export_is_files_whose_links_lead_to_files(runs: ServedFolder, tmp_path: Path) -> None:
    folder = tmp_path / "wiki"
    written = export_site(runs.site(None), folder)
    pages = [path for path in folder.rglob("*") if path.is_file()]
    assert written == len(pages) == 5 + 4 * 6
    for path in pages:
        if path.suffix == ".html":
            page = _Links(path.read_text())
            assert page.tags.isdisjoint({"script", "form"}), path
            for link in page.links:
                target = urlsplit(urljoin(path.as_uri(), link))
                assert not urlsplit(link).scheme
                assert not link.startswith("/")
                assert Path(unquote(target.path)).is_file(), link
    assert export_site(runs.site(None), folder) == written
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "index.html").write_text("<html>mine</html>")
    with pytest.raises(ForeignFolderError, match="name a new folder"):
        export_site(runs.site(None), tmp_path / "mine")
    assert (tmp_path / "mine" / "index.html").read_text() == "<html>mine</html>"


def test_slurm_is_asked_once_for_all_runs_and_not_soon_again_if_it_is_silent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def queue() -> list[SlurmJob]:
        asked.append("squeue")
        if len(asked) > 1:
            raise QueueError("timeout")
        return []

    monkeypatch.setattr("hpckit.report.overview.queue", queue)
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    reader = RunReader(lambda overview, events: None, 0.0)
    for then_s, times in ((0.0, 1), (9.0, 1), (11.0, 2), (40.0, 2), (72.0, 3)):
        now_s[0] = then_s
        reader.queue().jobs()
        assert len(asked) == times, then_s


def test_a_run_that_was_just_submitted_is_not_dead_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s, jobs = [100.0], list[SlurmJob]()
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr("hpckit.report.overview.queue", lambda: [*jobs])
    reader = RunReader(lambda overview, events: None, 5.0)
    reader.queue().jobs()
    run = submitted(tmp_path / "gpt-1", cluster="slurm")
    run.submitit.mkdir()
    (run.submitit / "7_submitted.pkl").touch()
    jobs.append(SlurmJob("7", "PENDING", None, None, "1:00", 1, "p", "", "", "Priority", run.name))
    served, words = ServedRun("gpt-1", run), []
    for seconds in (101.0, 107.0, 112.0):
        now_s[0] = seconds
        read = reader.read(served).overview
        words.append(read and read.word)
    assert words == ["dead", "dead", "queued"]
    jobs.clear()
    seen = []
    for seconds in (130.0, 140.0, 150.0):
        now_s[0] = seconds
        seen.append(reader.read(served))
    assert seen[1] is seen[2], "Slurm was asked after its files had changed"
    jobs.append(SlurmJob("7", "PENDING", None, None, "1:00", 1, "p", "", "", "Priority", run.name))
    now_s[0] = 150.0 + run_reader.REQUEUE_S
    again = reader.read(served).overview
    assert again is not None
    assert again.word == "queued"


def test_ages_grow_although_a_run_is_not_read_again(
    tmp_path: Path, readings: Iterator[list[RunDir]], monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = readings
    run = ran(tmp_path / "runs" / "gpt-1")
    site = ServedFolder(tmp_path / "runs", *[run] * 6).site()
    for now, age in ((1062.0, "40 s ago"), (1112.0, "90 s ago")):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        assert Page(site.page("runs/gpt-1/", {}).text).text.count(age) >= 1
    assert found == [run]


def test_a_parent_is_found_where_it_was_moved_to(tmp_path: Path) -> None:
    reader = RunReader(lambda overview, events: None, 0.0)
    parent, fork = ran(tmp_path / "new" / "gpt-1"), ran(tmp_path / "new" / "gpt-2")
    write_fork(fork, ForkRecord(parent.name, str(tmp_path / "old" / "gpt-1"), "/store", 3, "x"))
    (rows,) = families([reader.read(ServedRun(run.name, run)) for run in (parent, fork)])
    assert [(row.name, row.read is not None) for row in rows] == [("gpt-1", True), ("gpt-2", True)]
