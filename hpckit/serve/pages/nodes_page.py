"""The page of nodes: the suspect list of the site, what runs exclude, and who uses which. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpckit.serve.pages.html_elements import Content, Html, alert, joined, link, note, table, tag
from hpckit.serve.pages.page_shell import PageFrame, page
from hpckit.serve.run_reader import ReadRun
from hpckit.slurm.node_exclusion import AGE_S
from hpckit.suspects.suspect_record import SuspectNode, SuspectView
from hpckit.text.quantities import ago, count, moment


@dataclass(frozen=True)
class NodeUse:
    """A node, and the runs that use it now."""

    host: str
    runs: tuple[ReadRun, ...]


def nodes_page(
    frame: PageFrame, runs: Sequence[ReadRun], lists: Mapping[str, SuspectView], now: float
) -> str:
    """Return the page.

    Args:
        lists: what the suspect lists of the runs say, by their folders.
    """
    main = joined(
        *_suspects(frame, runs, lists, now),
        *_excluded(frame, runs, now),
        *_slow(frame, runs),
        *_used(frame, runs),
    )
    return page(frame, "Nodes", main, now, here="nodes.html")


def used_nodes(runs: Sequence[ReadRun]) -> list[NodeUse]:
    """Return the nodes of the runs that train now, by name."""
    found: dict[str, list[ReadRun]] = {}
    for read in runs:
        if read.overview is not None and read.overview.owner is not None:
            for host in read.overview.progress.hosts:
                found.setdefault(host, []).append(read)
    return [NodeUse(host, tuple(found[host])) for host in sorted(found)]


def _suspects(
    frame: PageFrame, runs: Sequence[ReadRun], lists: Mapping[str, SuspectView], now: float
) -> list[Html]:
    names = {str(read.served.run.path): read for read in runs}
    parts = [tag("h2", "Suspect list")]
    if not lists:
        parts.append(note("No run of these has a suspect list (cluster.slurm.suspects)."))
    for folder, view in lists.items():
        parts.append(note(folder))
        parts += [alert(problem) for problem in view.problems]
        if not view.suspects:
            parts.append(note("No node is on it."))
            continue
        rows = [_suspect(frame, one, names, now) for one in view.suspects]
        head = ("node", "reason", "reported by", "check", "left out until", "for an administrator")
        parts.append(table(head, rows, frozenset()))
    return parts


def _suspect(
    frame: PageFrame, one: SuspectNode, names: Mapping[str, ReadRun], now: float
) -> tuple[Content, ...]:
    reports: list[Content] = []
    for report in one.reports:
        known = names.get(report.run)
        name = report.run.rpartition("/")[2] or "a check"
        by = name if known is None else link(frame.run(known.key), name)
        source = f", {report.user}, {ago(report.time, now)}" if report.user else ""
        reports.append(tag("span", by, source, class_="cause"))
    until = moment(one.expires, now)
    return (one.node, one.reason, joined(*reports), one.verdict, until, tag("code", one.admin))


def _excluded(frame: PageFrame, runs: Sequence[ReadRun], now: float) -> list[Html]:
    rows: list[tuple[Content, ...]] = [
        (
            bad.host,
            bad.problem,
            ago(bad.time, now),
            link(frame.run(read.key), read.name),
            tag("code", bad.for_admin),
        )
        for read in runs
        if read.overview is not None
        for bad in read.overview.bad
        if now - bad.time < AGE_S
    ]
    head = ("node", "problem", "seen", "run", "for an administrator")
    title = tag("h2", "Excluded by runs")
    return [title, table(head, rows, frozenset()) if rows else note("No run excludes a node.")]


def _slow(frame: PageFrame, runs: Sequence[ReadRun]) -> list[Html]:
    rows: list[tuple[Content, ...]] = [
        (link(frame.run(read.key), read.name), text)
        for read in runs
        if read.overview is not None and read.overview.is_alive
        for text in read.overview.progress.stragglers
    ]
    if not rows:
        return []
    return [tag("h2", "Stragglers"), table(("run", "straggler"), rows, frozenset())]


def _used(frame: PageFrame, runs: Sequence[ReadRun]) -> list[Html]:
    used = used_nodes(runs)
    rows: list[tuple[Content, ...]] = [
        (
            one.host,
            joined(*(link(frame.run(read.key), read.name) for read in one.runs), by=", "),
        )
        for one in used
    ]
    title = tag("h2", "In use")
    if not rows:
        return [title, note("No run of these trains now.")]
    return [title, note(count(len(used), "node")), table(("node", "runs"), rows, frozenset())]
