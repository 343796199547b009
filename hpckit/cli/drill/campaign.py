"""`hpckit drill campaign`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.command_errors import CommandError, reported_errors
from hpckit.cli.common.exit_status import FOUND
from hpckit.cli.common.run_argument import JsonOption

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.faults.campaign.campaign_result import CampaignResult
    from hpckit.faults.campaign.campaign_runner import CampaignOutcome, CampaignSetup
    from hpckit.faults.campaign.fault_schedule import ScheduledFault
    from hpckit.faults.site_faults import SiteFaultSet
    from hpckit.rundir.directory import RunDir


def campaign(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(help="Overrides of launch.py: cluster=slurm elastic=spares ..."),
    ] = None,
    minutes: Annotated[
        float, typer.Option(min=0.1, help="Minutes of undisturbed training; faults add to this.")
    ] = 5.0,
    every: Annotated[
        float, typer.Option(min=0.2, help="Seconds of training between faults.")
    ] = 20.0,
    seed: Annotated[int, typer.Option(help="Seed of the fault schedule.")] = 0,
    faults: Annotated[
        str | None,
        typer.Option(metavar="KIND=RATE,...", help="Only these kinds of faults, by relative rate."),
    ] = None,
    replay: Annotated[Path | None, typer.Option(help="Only the faults of this file.")] = None,
    site: Annotated[
        Path | None,
        typer.Option(help="File with faults by your commands; see slurm/devcluster/faults.yaml."),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="The undisturbed run of an earlier campaign of this config."),
    ] = None,
    folder: Annotated[
        Path, typer.Option(help="New folder for the runs and results, visible to all nodes.")
    ] = Path("campaign"),
    tries: Annotated[
        int,
        typer.Option(min=0, help="Number of runs that look for fewer faults that fail as well."),
    ] = 0,
    json: JsonOption = False,
) -> None:
    """Inject faults into a run and check that nothing was lost.

    Example: hpckit drill campaign --minutes 10 --seed 3 cluster=slurm elastic=spares

    One run trains to its end undisturbed, and another one under random faults. The events, ledgers
    and checkpoints of the second one then have to show that each step took the samples of the
    order, that its loss is that of the undisturbed run (bit-identical on as many ranks), that each
    checkpoint that was reported as durable is complete, and that nothing is left running. The exit
    status is 1 if one of these checks fails. FOLDER has the faults as they were planned (for
    --replay) and as they occurred (for hpckit drill judge), result.json and result.md.
    """
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.faults.campaign.campaign_runner import CampaignSetup
    from hpckit.faults.campaign.campaign_runs import CampaignError, new_folder
    from hpckit.faults.campaign.fault_schedule import STEP_S

    with reported_errors(json):
        out, steps = CommandOutput(json), max(1, round(60 * minutes / STEP_S))
        own = _site(site)
        schedule = _schedule(seed, steps, every / STEP_S, faults, replay, own)
        words = ["experiment=campaign", f"train.steps={steps}", *(overrides or ())]
        place = folder.absolute()
        if place.exists():
            raise CommandError(f"{folder} already exists: give another --folder")
        try:
            with new_folder(place):
                out.note(f"{len(schedule)} faults in {steps:,} steps; the first run has none")
                whole = _undisturbed(place, words, reference, out.note)
                stage = CampaignSetup([*words, *_own_suspects(words, place)], whole, own, out.note)
                result = _run_schedule(place / "1", schedule, stage)
                if result.problems and tries:
                    _minimise(place, schedule, stage, tries)
        except CampaignError as error:
            raise CommandError(str(error)) from None
        _print_result(out, place, result)


def judge(
    folder: Annotated[Path, typer.Argument(help="Of a campaign.")], json: JsonOption = False
) -> None:
    """Judge a campaign that was ended early, by the same checks as a complete one.

    Example: hpckit drill judge campaign

    Its run must have ended, too, and is judged up to its last step. The faults are those that the
    campaign has recorded. Exit status 1 means that one of the checks fails.
    """
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.faults.campaign.campaign_runner import judge as judged
    from hpckit.faults.campaign.campaign_runs import CampaignError

    with reported_errors(json):
        out, place = CommandOutput(json), folder.absolute()
        try:
            with out.waiting("reading what the campaign left"):
                result = _result(place / "1", judged(place / "1"))
        except (CampaignError, ValueError) as error:
            raise CommandError(str(error)) from None
        _print_result(out, place, result)


def _own_suspects(words: Sequence[str], place: Path) -> list[str]:
    """Returns overrides that give the disturbed runs of a campaign a copy of the suspect list. To
    the nodes that lose agents by the campaign's faults nothing is wrong, so no other run is to do
    without them, and no hook is to report them.

    Raises:
        OSError: the list cannot be copied.
    """
    import shutil

    from hpckit.submit.compose import compose_spec
    from hpckit.submit.composition.hydra_values import quoted
    from hpckit.suspects.suspect_folder import list_folder

    slurm = compose_spec(words).cluster.slurm
    if slurm is None or slurm.suspects is None:
        return []
    known, copy = list_folder(slurm.suspects), place / "suspects"
    if known.is_dir():
        shutil.copytree(known, copy)
    else:
        copy.mkdir(mode=0o700)
    key = "cluster.slurm.suspects"
    return [f"{key}.folder={quoted(str(copy))}", f"{key}.group=null", f"{key}.hook=[]"]


def _undisturbed(
    place: Path, words: Sequence[str], known: Path | None, tell: Callable[[str], None]
) -> RunDir:
    from hpckit.faults.campaign.campaign_runner import known_reference, run_reference
    from hpckit.rundir.directory import RunDir

    if known is not None:
        return known_reference(RunDir(known), words)
    return run_reference(place, words, tell)


def _site(path: Path | None) -> SiteFaultSet:
    from hpckit.faults.site_faults import SiteFaultSet, load_site

    try:
        return SiteFaultSet({}, Path()) if path is None else load_site(path)
    except ValueError as error:
        raise CommandError(str(error)) from None


def _schedule(
    seed: int, steps: int, every: float, faults: str | None, replay: Path | None, site: SiteFaultSet
) -> Sequence[ScheduledFault]:
    from hpckit.faults.campaign.fault_schedule import (
        USUAL,
        load_schedule,
        make_schedule,
        parse_rates,
    )

    usual = {**USUAL, **{name: fault.rate for name, fault in site.faults.items()}}
    try:
        if replay is not None:
            return load_schedule(replay, usual)
        rates = usual if faults is None else parse_rates(faults, usual)
        return make_schedule(seed, steps, every, rates)
    except ValueError as error:
        raise CommandError(str(error)) from None


def _run_schedule(
    place: Path, schedule: Sequence[ScheduledFault], stage: CampaignSetup
) -> CampaignResult:
    from hpckit.faults.campaign.campaign_runner import run_campaign
    from hpckit.faults.campaign.fault_schedule import save_schedule

    place.mkdir()
    save_schedule(place / "faults.jsonl", schedule)
    return _result(place, run_campaign(place, schedule, stage))


def _result(place: Path, outcome: CampaignOutcome) -> CampaignResult:
    from hpckit.faults.campaign.campaign_result import markdown, result_of
    from hpckit.system.atomic_files import write_json

    result = result_of(outcome)
    write_json(place / "result.json", result.record())
    (place / "result.md").write_text(markdown(result), encoding="utf-8")
    return result


def _minimise(
    place: Path, schedule: Sequence[ScheduledFault], stage: CampaignSetup, tries: int
) -> None:
    from itertools import count

    from hpckit.faults.campaign.fault_schedule import save_schedule
    from hpckit.faults.campaign.schedule_minimizer import minimise

    numbers = count(2)

    def fails(part: Sequence[ScheduledFault]) -> bool:
        stage.tell(f"once more, with {len(part)} faults")
        return bool(_run_schedule(place / str(next(numbers)), part, stage).problems)

    shortest = minimise(schedule, fails, tries)
    save_schedule(place / "shortest.jsonl", shortest)
    stage.tell(f"{len(shortest)} faults fail as well: --replay {place / 'shortest.jsonl'}")


def _print_result(out: CommandOutput, place: Path, result: CampaignResult) -> None:
    from hpckit.cli.common.command_output import table
    from hpckit.faults.campaign.campaign_result import PARTS, cells

    out.fact("faults", f"{result.faults} in {result.steps:,} steps, {result.seconds:,.0f} s")
    predicted = f"({result.predicted:.3f} by the seconds of each kind of fault)"
    out.fact("training share", f"{result.ettr:.3f} of the time was in steps that count {predicted}")
    head = ("fault", "times", "s, median", "slowest", *PARTS)
    shown = table(*head, right=head[1:])
    for row in result.rows:
        shown.add_row(*cells(row))
    out.table(shown)
    out.fact("violations", str(len(result.problems)))
    for problem in result.problems:
        out.line(f"  {problem}")
    out.dim(f"    {place}")
    out.document(result.record())
    if result.problems:
        raise typer.Exit(FOUND)
