"""`hpckit report`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.command_errors import CommandError, reported_errors
from hpckit.cli.common.run_argument import (
    GpuPrice,
    JsonOption,
    NodePrice,
    complete_run,
    submitted_run,
)

if TYPE_CHECKING:
    from hpckit.events.event_validation import ValidatedEvents
    from hpckit.rundir.directory import RunDir

STDOUT = Path("-")


class ReportFormat(StrEnum):
    """The format of a page, which is also the suffix of its file."""

    HTML = "html"
    MD = "md"
    JSON = "json"


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="The run's directory, or its name below ./runs; or several.",
            autocompletion=complete_run,
        ),
    ],
    form: Annotated[
        ReportFormat | None,
        typer.Option("--format", help="Format of the page; by default as --out ends, or html."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file to write; - prints it. By default report/report.html in the run's "
            "directory, or ./report.html for several runs."
        ),
    ] = None,
    node_price: NodePrice = None,
    gpu_price: GpuPrice = None,
    json: JsonOption = False,
) -> None:
    """Summarize the history of a run, its bottleneck and what to try, and write a page.

    Example: hpckit report gpt-1a2b3c4d

    For one run without options, it prints a summary and writes the page. With
    --format or --out, it only writes the page. Several runs are compared: key
    figures, curves in one chart, costs, and the config keys in which they
    differ. An HTML page is a single file.

    --json means --format json --out -. Its keys for one run: run, path, verdict,
    steps, steps_kept, step_s, started, finished, lives, interruptions, spikes
    (first_step, step, what, is_left_out), skipped_updates (step, what,
    first_position, end_position), stragglers (rank, host, step, z,
    excess), straggler_cost (windows, traces, share, spread: means over them;
    newest, or null), evictions (step, hosts, ranks, share, by, reason),
    eviction_results (step, hosts, before_s, after_s, restart_s, saved_s,
    has_paid), hangs (step, cause, culprits, hosts, text), checkpoints,
    samples, validated; time (all, steps, start, lost, restore: a part of
    lost; else), in_steps (steps, seconds, parts, tokens_per_s, mfu,
    peak_bytes, is_gpu, traced, exposed), bottleneck (input, storage,
    training, kernel, or null), advice; status (as of hpckit status), as_of,
    wall_s, went_into, cost (as of hpckit cost), why, alerts (what is
    missing), curves (at most 500 columns of steps), saved (checkpoints),
    intake, findings, damage, family (run, path, forked_from, fork_step, state,
    step: of a fork, its ancestors and all of their forks). Its keys for several
    runs: names, config (values that differ), runs.
    Times are seconds.
    """
    with reported_errors(json):
        found = _distinct(runs)
        if json:
            if out is not None or form not in (None, ReportFormat.JSON):
                raise CommandError(
                    "--json already means --format json --out -; give no other --format or --out"
                )
            form, out = ReportFormat.JSON, STDOUT
        validated = _show(found[0]) if len(found) == 1 and form is None and out is None else None
        pages = _Pages(form or _form_of(out), node_price, gpu_price)
        folder = found[0].report if len(found) == 1 else Path()
        pages.write(found, out or folder / f"report.{pages.form}", validated)


def _distinct(paths: Sequence[Path]) -> list[RunDir]:
    found = [submitted_run(path) for path in paths]
    for number, run in enumerate(found):
        if run in found[:number]:
            raise CommandError(f"{run.path} is named twice")
    return found


def _form_of(out: Path | None) -> ReportFormat:
    if out is None or out == STDOUT:
        return ReportFormat.HTML
    ending = out.suffix.removeprefix(".")
    if ending not in list(ReportFormat):
        ends = ", ".join(f".{form}" for form in ReportFormat)
        raise CommandError(f"--out: {out} does not end in any of {ends}; give --format")
    return ReportFormat(ending)


def _show(run: RunDir) -> ValidatedEvents:
    """Print the summary, and return the events that it was made from."""
    from rich.console import Console

    from hpckit.events.event_validation import read_valid_events
    from hpckit.submit.submission_start import show_report

    validated = read_valid_events(run)
    show_report(run, Console(), validated)
    return validated


@dataclass(frozen=True)
class _Pages:
    """How pages are made."""

    form: ReportFormat
    node_price: float | None
    gpu_price: float | None

    def write(self, runs: Sequence[RunDir], place: Path, validated: ValidatedEvents | None) -> None:
        """Write the page to `place`. `validated` holds the events of the only run, if they were
        read already."""
        from rich.text import Text

        from hpckit.cli.common.command_output import CommandOutput, clean
        from hpckit.report.page.page_file import ForeignFileError, check_place, write_page

        try:
            if place != STDOUT:
                check_place(place)  # before anything is read
            page = self._rendered(runs, validated)
            if place == STDOUT:
                print(page, end="", flush=True)
                return
            write_page(place, page)
        except ForeignFileError as error:
            raise CommandError(str(error)) from None
        except PermissionError as error:
            raise CommandError(f"{error}; --out FILE writes elsewhere") from None
        CommandOutput(False).line(
            Text(f"{'page':<12} ", style="bold") + Text(clean(str(place.resolve())))
        )

    def _rendered(self, runs: Sequence[RunDir], validated: ValidatedEvents | None) -> str:
        from hpckit.cli.why import budget_of_run
        from hpckit.report.cost.cost_summary import Prices
        from hpckit.report.overview import Queue
        from hpckit.report.page.content_reader import read_content
        from hpckit.report.page.page_file import render

        slurm, prices = Queue(), Prices(self.node_price, self.gpu_price)
        contents = [read_content(run, slurm, budget_of_run, validated, prices) for run in runs]
        return render(contents, self.form.value)
