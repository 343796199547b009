"""The pages of the web view by their addresses, which are the same for a server and for files."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from checkpointing import CheckpointError
from hpckit.agent.exit_report import WorkerError
from hpckit.config.spec import RunSpec, SuspectsSpec
from hpckit.report.error_location import find_error_line
from hpckit.report.log_files import LogSelection, find_log, lines_for_screen
from hpckit.rundir.directory import RunDir
from hpckit.serve.checkpoint_reader import (
    CheckpointPageError,
    policies_of,
    read_difference,
    read_listing,
    read_preview,
)
from hpckit.serve.pages.checkpoint_pages import checkpoints_page, difference_page
from hpckit.serve.pages.html_elements import alert, joined, link, note
from hpckit.serve.pages.index_page import index_page
from hpckit.serve.pages.lineage_page import lineage_page
from hpckit.serve.pages.nodes_page import nodes_page
from hpckit.serve.pages.page_shell import PageFrame, breadcrumbs, page, script, stylesheet
from hpckit.serve.pages.run_pages import RunTrouble, error_page, run_page
from hpckit.serve.record_owners import open_record
from hpckit.serve.run_catalog import RunCatalog, ServedRun
from hpckit.serve.run_reader import READ_ERRORS, ReadRun, RunReader, describe_problem
from hpckit.suspects.suspect_folder import list_folder, read_view
from hpckit.suspects.suspect_record import SuspectView
from hpckit.text.json_values import plain

FirstError = Callable[[RunDir, int | None], tuple[int, WorkerError] | None]
"""Returns the generation and the error of the rank that failed first, in one generation or in the
newest that has an error."""
HTML, CSS, JAVASCRIPT, JSON = "text/html", "text/css", "text/javascript", "application/json"
LOG_LINES = 60
SUSPECTS_S = 30.0
"""Seconds for which the suspect lists are not read again."""
_MOST_KEEP = 2000  # characters of policies in an address
_OF_ALL = ("index.html", "lineage.html", "nodes.html", "runs.json", "style.css")
_OF_RUN = ("index.html", "report.html", "checkpoints.html", "error.html")

Query = Mapping[str, str]


class PageNotFoundError(LookupError):
    """Raised for an address that no page has."""


@dataclass(frozen=True)
class SitePage:
    """What an address leads to."""

    text: str
    media: str = HTML
    has_own_style: bool = False
    """Whether the page holds its style itself."""


class RunSite:
    """All pages about the served runs; several threads may ask for them."""

    def __init__(
        self, catalog: RunCatalog, reader: RunReader, first_error: FirstError, every_s: float | None
    ) -> None:
        """
        Args:
            every_s: seconds after which pages refresh themselves; None: the pages become files.
        """
        self._catalog, self._reader, self._first_error = catalog, reader, first_error
        self._every_s = every_s
        self._stores = threading.Lock()  # one page at a time reads checkpoints
        self._lists: tuple[float, dict[str, SuspectView]] | None = None
        self._lists_lock = threading.Lock()

    def addresses(self) -> Iterator[str]:
        """Yield the addresses of all pages that can be files."""
        yield from _OF_ALL
        for key in self._catalog.read().runs:
            yield from (f"runs/{key}/{name}" for name in _OF_RUN)

    def page(self, address: str, query: Query) -> SitePage:
        """Return the page with this address.

        Args:
            address: without a slash at its beginning. It is looked up, and no file is opened by it.
            query: the parameters.

        Raises:
            PageNotFoundError: there is none.
        """
        if not address.startswith("runs/"):
            return self._of_all(address or "index.html")
        _, key, *names = address.split("/")
        served = self._catalog.read().runs.get(key)
        if served is None or len(names) > 1:
            raise PageNotFoundError(address)
        return self._of_run(served, (names[0] if names else "") or "index.html", query)

    def _of_all(self, name: str) -> SitePage:
        frame = PageFrame("", self._every_s)
        if name == "style.css":
            return SitePage(stylesheet(), CSS)
        if name == "live.js" and frame.is_served:
            return SitePage(script(), JAVASCRIPT)
        if name not in _OF_ALL:
            raise PageNotFoundError(name)
        found = self._catalog.read()
        runs = [self._reader.read(served) for served in found.runs.values()]
        now = time.time()
        if name == "runs.json":
            return SitePage(runs_document(runs), JSON)
        if name == "lineage.html":
            return SitePage(lineage_page(frame, runs, now))
        if name == "nodes.html":
            return SitePage(nodes_page(frame, runs, self._suspect_lists(runs), now))
        return SitePage(index_page(frame, runs, found.problems, now))

    def _of_run(self, served: ServedRun, name: str, query: Query) -> SitePage:
        frame = PageFrame("../../", self._every_s)
        if served.problem is not None and name in _OF_RUN:
            return SitePage(run_page(frame, self._reader.read(served), time.time()))
        if name == "report.html":
            return self._report(frame, served)
        read, now = self._reader.read(served), time.time()
        if name == "index.html":
            return SitePage(run_page(frame, read, now))
        if name == "error.html":
            return SitePage(error_page(frame, read, self._trouble(served.run), now))
        if name == "checkpoints.html":
            return self._checkpoints(frame, read, query.get("keep"), now)
        if name == "diff.html" and frame.is_served:
            return self._difference(frame, read, query.get("a", ""), query.get("b", ""), now)
        raise PageNotFoundError(name)

    def _report(self, frame: PageFrame, served: ServedRun) -> SitePage:
        try:
            report = self._reader.report(served)
        except READ_ERRORS as error:
            problem = alert(describe_problem(error, served.run))
            ways = breadcrumbs(frame, served.key, served.run.name, "report.html")
            text = page(frame, served.run.name, joined(ways, problem), time.time(), is_live=False)
            return SitePage(text)
        back = note(link("index.html", f"← {served.run.name}"))
        return SitePage(report.replace("<body>", f"<body>{back}", 1), has_own_style=True)

    def _trouble(self, run: RunDir) -> RunTrouble:
        try:
            found = self._first_error(run, None)
            lines = _end_of_log(run)
            if found is None:
                return RunTrouble(None, None, None, lines)
            number, error = found
            submissions = run.submission_numbers()
            where = (
                find_error_line(error.traceback, run.code(submissions[-1])) if submissions else None
            )
            return RunTrouble(number, error, where, lines)
        except READ_ERRORS as error:
            return RunTrouble(None, None, None, [], describe_problem(error, run))

    def _checkpoints(
        self, frame: PageFrame, read: ReadRun, given: str | None, now: float
    ) -> SitePage:
        run, spec = read.served.run, _spec(read)
        usual = policies_of(spec) if spec is not None else []
        keep = given[:_MOST_KEEP].split() if given is not None else usual
        problems, listing, preview = list[str](), None, None
        with self._stores:
            try:
                listing = read_listing(run, spec)
                if listing.infos:
                    preview = read_preview(run, spec, keep, are_own=given is None)
            except CheckpointPageError as error:
                problems.append(str(error))
        text = checkpoints_page(frame, read, listing, preview, problems, keep, now)
        return SitePage(text)

    def _difference(self, frame: PageFrame, read: ReadRun, a: str, b: str, now: float) -> SitePage:
        with self._stores:
            try:
                found, problem = read_difference(read.served.run, _spec(read), a, b), ""
            except (CheckpointPageError, CheckpointError) as error:
                found, problem = None, str(error)
        return SitePage(difference_page(frame, read, found, problem, now))

    def _suspect_lists(self, runs: Sequence[ReadRun]) -> dict[str, SuspectView]:
        with self._lists_lock:
            if self._lists is None or time.monotonic() - self._lists[0] > SUSPECTS_S:
                found = read_suspect_lists(runs)
                self._lists = time.monotonic(), found
            return self._lists[1]


def _end_of_log(run: RunDir) -> list[str]:
    """Return the last lines of the supervisor's log; empty if there is none.

    Raises:
        OSError: it cannot be read, or is not the owner's.
    """
    path = find_log(run, LogSelection())
    if path is None:
        return []
    with open_record(run, path) as file:
        return lines_for_screen(file, LOG_LINES)


def read_suspect_lists(runs: Sequence[ReadRun]) -> dict[str, SuspectView]:
    """Return what the suspect lists of the runs say, by their folders. Slurm is asked for the name
    of the cluster."""
    specs: dict[str, SuspectsSpec] = {}
    for spec in map(_spec, runs):
        slurm = None if spec is None else spec.cluster.slurm
        if slurm is not None and slurm.suspects is not None:
            specs[str(list_folder(slurm.suspects))] = slurm.suspects
    return {folder: read_view(spec) for folder, spec in specs.items()}


def runs_document(runs: Sequence[ReadRun]) -> str:
    """Return the runs as `hpckit status --json` has them, each with its key and problem. Pure."""
    records = [
        {
            **({"run": read.name} if read.overview is None else read.overview.record()),
            "key": read.key,
            "problem": read.problem,
        }
        for read in runs
    ]
    return json.dumps(plain({"runs": records}), allow_nan=False) + "\n"


def _spec(read: ReadRun) -> RunSpec | None:
    return None if read.overview is None else read.overview.spec
