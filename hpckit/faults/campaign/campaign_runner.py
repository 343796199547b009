"""Runs a campaign: one run with faults by a schedule, and an undisturbed reference run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpckit.agent.verdict_record import VerdictKind
from hpckit.config.run_identity import identity
from hpckit.config.spec_parser import read_spec
from hpckit.events.event_log import read_events
from hpckit.faults.campaign.campaign_runs import CampaignError, cancel_run, start_run
from hpckit.faults.campaign.cured_reference import cures_of_events
from hpckit.faults.campaign.fault_log import CampaignLog, RecordedFault
from hpckit.faults.campaign.fault_schedule import ScheduledFault
from hpckit.faults.campaign.injection_trigger import InjectionTrigger
from hpckit.faults.campaign.oracle import violations
from hpckit.faults.fault_plan import ImpossibleDrillError
from hpckit.faults.site_faults import SiteFaultSet
from hpckit.report.overview import Queue, read_overview
from hpckit.rundir.directory import RunDir
from hpckit.submit.compose import compose_spec
from hpckit.submit.preflight.checks import with_absolute_paths
from hpckit.system.atomic_files import read_json

_UNPACED = "entry=hpckit.training.language_model:main"


@dataclass(frozen=True)
class CampaignSetup:
    """The settings that all disturbed runs of a campaign share."""

    overrides: Sequence[str]
    reference: RunDir
    """The undisturbed run."""
    site: SiteFaultSet
    tell: Callable[[str], None]
    """Reports each fault as it happens."""


@dataclass(frozen=True)
class CampaignOutcome:
    """The outcome of a schedule."""

    run: RunDir
    reference: RunDir
    """The undisturbed run."""
    struck: tuple[RecordedFault, ...]
    problems: tuple[str, ...]
    """What was wrong, see `oracle`; empty if nothing was."""


def run_reference(folder: Path, overrides: Sequence[str], tell: Callable[[str], None]) -> RunDir:
    """Run the undisturbed run, with which the others are compared, to its end.

    Args:
        overrides: the last ones may be those of `Cures`, whose entry is then used.
        tell: called now and then with its progress.

    Raises:
        CampaignError: it does not reach its end. It is cancelled then, as after Ctrl-C.
    """
    run = start_run(folder / "reference", _unpaced(overrides))
    try:
        InjectionTrigger(run, SiteFaultSet({}, Path()), tell).until_over()
    except TimeoutError as error:
        raise CampaignError(_failed(f"{run.path}: {error}", cancel_run(run))) from None
    except BaseException:
        cancel_run(run)
        raise
    if problem := _how_it_failed(run):
        raise CampaignError(_failed(problem))
    return run


def _unpaced(overrides: Sequence[str]) -> list[str]:
    return [_UNPACED, *overrides]


def _failed(*why: str | None) -> str:
    return f"the undisturbed run failed: {'; '.join(filter(None, why))}"


def known_reference(run: RunDir, overrides: Sequence[str]) -> RunDir:
    """Return `run` as the reference, an undisturbed run of an earlier campaign.

    Raises:
        CampaignError: it did not end well, or has another config.
        SpecError: the config is invalid.
    """
    problem = _how_it_failed(run)
    if problem:
        raise CampaignError(f"--reference {problem}")
    due = with_absolute_paths(compose_spec(_unpaced(overrides)), Path.cwd())
    if identity(read_spec(run.spec(run.submission_numbers()[-1]))) != identity(due):
        raise CampaignError(f"--reference {run.path}: it has another config than this campaign")
    return run


def run_campaign(
    folder: Path, schedule: Sequence[ScheduledFault], stage: CampaignSetup
) -> CampaignOutcome:
    """Run a schedule on a new run in `folder`, and judge it.

    Raises:
        CampaignError: it cannot be started.
    """
    run = start_run(folder / "runs", stage.overrides)
    watch, notes = InjectionTrigger(run, stage.site, stage.tell), CampaignLog(folder)
    problems: list[str | None] = []
    try:
        notes.begin(run, stage.reference)
        for planned in schedule:
            try:
                found = watch.inject_when_due(planned)
            except ImpossibleDrillError as error:
                stage.tell(f"left out at step {planned.step:,}: {error}")
                continue
            if found is None:
                stage.tell(
                    f"the run is over, so no further faults are caused. {watch.refusal}".rstrip()
                )
                break
            notes.add(found)
            stage.tell(f"step {found.step:,}: {found.what}")
            watch.until_past(found)
        watch.until_over()
    except TimeoutError as error:
        problems += [str(error), cancel_run(run)]
    except BaseException:
        cancel_run(run)
        raise
    finally:
        problems += stage.site.settle()
    if schedule and not notes.faults():
        problems.append(f"no fault was caused. {watch.refusal}".rstrip())
    reference = stage.reference
    if cures := cures_of_events(read_events(run.events)):
        stage.tell("the undisturbed run once more, without what this one has left out")
        reference = run_reference(folder, [*stage.overrides, *cures.overrides], stage.tell)
        notes.begin(run, reference)
    return _judged(run, reference, notes.faults(), [*filter(None, problems)])


def judge(folder: Path) -> CampaignOutcome:
    """Judge a run that `run_campaign` started in `folder`, whatever ended the run or the campaign.
    A run that was cancelled is judged as far as it got.

    Raises:
        CampaignError: no run was started there, or it is still running.
        ValueError: the log of the campaign is damaged.
    """
    notes = CampaignLog(folder)
    if (runs := notes.runs()) is None:
        raise CampaignError(f"{folder}: no campaign has started a run there")
    run, reference = runs
    if read_overview(run, Queue()).is_alive:
        raise CampaignError(f"{run.path} is still running: wait for its end, or hpckit cancel it")
    verdict = read_json(run.verdict)
    cut_short = verdict is not None and verdict.get("kind") == VerdictKind.STOPPED
    return _judged(run, reference, notes.faults(), cut_short=cut_short)


def _judged(
    run: RunDir,
    reference: RunDir,
    struck: tuple[RecordedFault, ...],
    problems: Sequence[str] = (),
    *,
    cut_short: bool = False,
) -> CampaignOutcome:
    harmed = {one.harmed for one in struck if one.harmed is not None}
    found = violations(run, reference, harmed, struck, cut_short=cut_short)
    return CampaignOutcome(run, reference, struck, (*problems, *found))


def _how_it_failed(run: RunDir) -> str | None:
    verdict = read_json(run.verdict)
    if verdict is not None and verdict.get("kind") == "done":
        return None
    return f"{run.path}: {'no verdict' if verdict is None else verdict.get('reason')}"
