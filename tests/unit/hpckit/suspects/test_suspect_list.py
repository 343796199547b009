"""The suspect list: what its files say, who may write them, and what runs do without."""

from __future__ import annotations

import grp
import json
import os
import shlex
import stat
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.config.spec import SuspectsSpec
from hpckit.slurm.node_exclusion import ExcludableNode, PartitionNodes
from hpckit.submit.exclusion.suspect_exclusion import SuspectExclusion, choose_suspects
from hpckit.suspects import suspect_folder as module
from hpckit.suspects.suspect_folder import SuspectFolder, SuspectListError, read_view
from hpckit.suspects.suspect_hook import run_hook
from hpckit.suspects.suspect_record import (
    LONGEST_S,
    MOST_BYTES,
    SuspectRecord,
    decode,
    encode,
    reportable,
    view_of,
    within_share,
)

NOW = 1_000_000.0
REPORT = SuspectRecord(
    *("n1", "report", NOW - 60, NOW + 3600, "GPU 0: broken", True),
    *("/runs/a-1", "7", "node_unhealthy", 2, "me"),
)
OTHER = replace(REPORT, run="/runs/b-2", time=NOW - 30, reason="GPU 1: broken")
CLEAR = SuspectRecord("n1", "clear", NOW - 10, NOW + 3600, "repaired")
RECHECK = SuspectRecord("n1", "recheck", NOW - 5, NOW + 3600, "no problem found")
KEPT, KEPT_OTHER = (replace(one, expires=NOW * 9000) for one in (REPORT, OTHER))
"""As if it were NOW for what is removed, too."""
SPEC = SuspectsSpec(None, None, 24.0, ())


@pytest.mark.parametrize(
    ("records", "reasons", "verdict"),
    [
        ([REPORT], ["GPU 0: broken"], "unchecked"),
        ([REPORT, OTHER], ["GPU 1: broken", "GPU 0: broken"], "unchecked"),
        ([REPORT, CLEAR], [], ""),
        ([replace(REPORT, time=NOW - 1), CLEAR], ["GPU 0: broken"], "unchecked"),
        ([REPORT, RECHECK], ["GPU 0: broken"], "healthy"),
        ([RECHECK], [], ""),
        ([replace(RECHECK, is_unhealthy=True, reason="x")], ["x"], "unhealthy"),
        ([replace(REPORT, expires=NOW)], [], ""),
        ([replace(REPORT, time=NOW + 600)], [], ""),
        ([replace(REPORT, time=NOW - LONGEST_S - 1, expires=NOW * 9)], [], ""),
    ],
)
def test_what_records_say(records: list[SuspectRecord], reasons: list[str], verdict: str) -> None:
    suspects = view_of(records, NOW).suspects
    assert [report.reason for one in suspects for report in one.reports] == reasons
    assert [one.verdict for one in suspects] == ([verdict] if reasons else [])


def test_a_cleared_node_is_no_longer_a_runs_own_either() -> None:
    own = [ExcludableNode("n1", "bad", NOW - 20, True), ExcludableNode("n2", "bad", NOW - 20, True)]
    assert view_of([CLEAR], NOW).uncleared(own) == own[1:]
    later = [replace(own[0], time=NOW)]
    assert view_of([CLEAR], NOW).uncleared(later) == later


def test_the_line_for_an_administrator_quotes_what_a_record_says() -> None:
    (one,) = view_of([replace(REPORT, reason="a'; reboot #")], NOW).suspects
    assert shlex.split(one.admin)[-1] == "reason=hpckit: a'; reboot #"


def test_a_record_is_read_as_it_was_written() -> None:
    assert decode(encode(REPORT)) == REPORT
    long = decode(encode(replace(REPORT, reason="a\n\x1b[31mb " + "c" * 5000)))
    assert long is not None
    assert long.reason.startswith("a [31mb c")
    assert len(long.reason) <= 400


@pytest.mark.parametrize(
    "change",
    [
        *({"node": "n1;reboot"}, {"node": "../n1"}, {"node": 5}, {"kind": "delete"}),
        *({"time": "now"}, {"time": -1}, {"expires": True}, {"count": 0}, {"count": 10**9}),
        *({"is_unhealthy": 1}, {"reason": "a\nb"}, {"reason": "x" * 401}, {"user": None}),
        *({"version": 2}, {"further": 1}),
    ],
)
def test_what_is_not_of_the_form_is_no_record(change: dict[str, object]) -> None:
    assert decode(json.dumps(json.loads(encode(REPORT)) | change)) is None


@given(st.text() | st.recursive(st.none() | st.floats(), st.lists).map(json.dumps))
def test_no_text_fails_the_parser(text: str) -> None:
    assert decode(text) is None


@pytest.mark.parametrize("text", ["[" * 100_000, '{"version": 1, "time": NaN}', "{}", "1e999"])
def test_hostile_documents(text: str) -> None:
    assert decode(text) is None


def suspect(node: str, *runs: str, is_unhealthy: bool = True) -> SuspectRecord:
    return replace(REPORT, node=node, run=runs[0], is_unhealthy=is_unhealthy)


def test_runs_do_without_a_quarter_of_a_partition_at_most() -> None:
    records = [suspect(f"n{i}", "/r/a") for i in range(4)] + [suspect("n3", "/r/b")]
    suspects = view_of(records, NOW).suspects
    trusted, surplus = within_share(suspects, 8)
    assert next(one.node for one in trusted) == "n3", "two runs reported it"
    assert (len(trusted), len(surplus)) == (2, 2)
    assert [len(part) for part in within_share(suspects, 1)] == [1, 3]


def nodes(count: int) -> PartitionNodes:
    return PartitionNodes(frozenset(f"n{i}" for i in range(count)))


@pytest.mark.parametrize(
    ("count", "fewest", "is_possible", "hosts", "note"),
    [
        (4, 2, True, ("n1",), "n1 is left out: GPU 0: broken, reported by a-1"),
        (2, 2, True, (), "too few nodes would be left without n1"),
        (4, 2, False, (), "too few nodes would be left without n1"),
        (1, 1, True, (), None),  # of another partition
    ],
)
def test_what_a_new_job_does_without(
    count: int, fewest: int, is_possible: bool, hosts: tuple[str, ...], note: str | None
) -> None:
    suspects = view_of([REPORT], NOW).suspects
    found = choose_suspects(suspects, nodes(count), fewest, lambda hosts: is_possible)
    assert found.hosts == hosts
    assert [line[: len(note or "")] for line in found.notes] == ([note] if note else [])


def test_those_that_are_too_many_are_named() -> None:
    suspects = view_of([suspect(f"n{i}", "/r/a") for i in (1, 2)], NOW).suspects
    found = choose_suspects(suspects, nodes(4), 1, lambda hosts: True)
    assert len(found.hosts) == 1
    assert "so many nodes are hardly bad at once" in found.notes[-1]
    assert choose_suspects([], nodes(4), 1, lambda hosts: True) == SuspectExclusion()


@pytest.mark.parametrize(
    ("bad", "hosts", "told"),
    [
        ("a", "a b", "a"),
        ("a b", "a b", ""),
        ("a b c", "a b", "c"),
        ("a", "a", "a"),
    ],
)
def test_a_problem_of_all_nodes_of_a_job_is_none_of_a_node(bad: str, hosts: str, told: str) -> None:
    found = reportable([ExcludableNode(h, "x", NOW, True) for h in bad.split()], hosts.split())
    assert [one.host for one in found] == told.split()


def folder(tmp_path: Path, spec: SuspectsSpec = SPEC) -> SuspectFolder:
    return SuspectFolder(spec, "c", tmp_path / "list")


def test_the_folder_is_private(tmp_path: Path) -> None:
    it = folder(tmp_path)
    assert it.view(NOW).suspects == ()
    path = it.write(KEPT)
    assert [stat.S_IMODE(p.stat().st_mode) for p in (it.root, it.path, path)] == [
        *(0o700, 0o700, 0o600)
    ]
    assert it.view(NOW).suspects[0].reports == (KEPT,)
    it.path.chmod(0o777)
    with pytest.raises(SuspectListError, match="must be yours and not writable for others"):
        it.view(NOW)


def test_a_report_replaces_that_of_the_same_run_alone(tmp_path: Path) -> None:
    it = folder(tmp_path)
    it.write(KEPT)
    assert it.has(KEPT)
    assert not it.has(replace(KEPT, time=NOW))
    it.write(replace(KEPT, reason="again"))
    it.write(KEPT_OTHER)
    (one,) = it.view(NOW).suspects
    assert [report.reason for report in one.reports] == ["GPU 1: broken", "again"]


def test_what_others_put_there_is_ignored(tmp_path: Path) -> None:
    it = folder(tmp_path)
    it.write(KEPT)
    put: dict[str, Callable[[Path], object]] = {
        "n2@report-link.json": lambda p: p.symlink_to("/etc/passwd"),
        "n2@report-pipe.json": os.mkfifo,
        "n2@report-folder.json": lambda p: p.mkdir(),
        "n2@report-large.json": lambda p: p.write_text(" " * (MOST_BYTES + 1)),
        "n2@report-noise.json": lambda p: p.write_bytes(b"\xff\x00{"),
        "n2@report-other.json": lambda p: p.write_text(encode(KEPT)),
        ".n2@report-half.json": lambda p: p.write_text("{"),
        "n2.txt": lambda p: p.write_text("x"),
    }
    for name, make in put.items():
        make(it.path / name)
    found = it.view(NOW)
    assert [one.node for one in found.suspects] == ["n1"]
    assert len(found.problems) == 6
    assert "/etc/passwd" not in str(found.problems)


def test_no_more_files_are_read_than_a_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = folder(tmp_path)
    monkeypatch.setattr(module, "MOST_FILES", 2)
    for i in range(3):
        it.write(replace(KEPT, node=f"n{i}"))
    found = it.view(NOW)
    assert len(found.suspects) == 2
    assert "2 of them are read" in found.problems[0]


def test_expired_records_are_removed_by_their_writer(tmp_path: Path) -> None:
    it = folder(tmp_path)
    old = it.write(REPORT)  # NOW is long ago
    it.write(KEPT_OTHER)
    assert not old.exists()


def test_a_group_shares_it(tmp_path: Path) -> None:
    group = grp.getgrgid(os.getgid()).gr_name
    it = folder(tmp_path, replace(SPEC, group=group, folder=str(tmp_path)))
    path = it.write(KEPT)
    assert stat.S_IMODE(it.path.stat().st_mode) == 0o3770
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert path.stat().st_gid == os.getgid()
    it.root.chmod(0o3777)
    with pytest.raises(SuspectListError, match="others must not write to it"):
        it.view(NOW)
    with pytest.raises(SuspectListError, match="there is no group no-such-group"):
        folder(tmp_path, replace(SPEC, group="no-such-group"))


WRITER = """
import sys
from pathlib import Path
from hpckit.config.spec import SuspectsSpec
from hpckit.suspects.suspect_folder import SuspectFolder
from hpckit.suspects.suspect_record import SuspectRecord
it = SuspectFolder(SuspectsSpec(None, None, 24.0, ()), "c", Path(sys.argv[1]))
for i in range(40):
    it.write(SuspectRecord("n1", "report", 1e6 + i, 9e9, f"{i}", run=sys.argv[2]))
    it.write(SuspectRecord("n1", "clear", 1.0, 9e9, "x"))
"""


def test_processes_write_and_read_at_once(tmp_path: Path) -> None:
    it = folder(tmp_path)
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(it.root), run])
        for run in ("a", "b", "c")
    ]
    while any(one.poll() is None for one in writers):
        assert it.view(NOW + 100).problems == ()
    assert [one.returncode for one in writers] == [0, 0, 0]
    (one,) = it.view(NOW + 100).suspects
    assert {(report.run, report.reason) for report in one.reports} == {
        *(("a", "39"), ("b", "39"), ("c", "39"))
    }
    assert len(list(it.path.iterdir())) == 4, "no temporary file is left"


def test_a_list_that_cannot_be_read_is_a_problem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "cluster_name", lambda: "c")
    assert read_view(None).problems == ()
    assert read_view(SPEC).problems == ()
    (tmp_path / "hpckit" / "suspects").mkdir(parents=True)
    (tmp_path / "hpckit" / "suspects").chmod(0o777)
    (problem,) = read_view(SPEC).problems
    assert problem.startswith("the suspect list is not read: ")


def test_the_hook_gets_json_and_no_shell(tmp_path: Path) -> None:
    out = tmp_path / "told"
    command = [sys.executable, "-c", "import sys; open(sys.argv[1], 'w').write(sys.stdin.read())"]
    assert run_hook([*command, str(out)], replace(REPORT, reason="$(reboot)"), "c") is None
    told = json.loads(out.read_text())
    assert (told["node"], told["reason"], told["cluster"]) == ("n1", "$(reboot)", "c")
    assert told["admin"].startswith("scontrol update nodename=n1 state=drain ")


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["/no/such/tool"], "No such file"),
        ([sys.executable, "-c", "import sys; sys.exit('not today')"], "exit status 1: not today"),
    ],
)
def test_a_hook_that_fails(command: list[str], problem: str) -> None:
    assert problem in (run_hook(command, REPORT, "c") or "")
