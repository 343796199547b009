"""`hpckit plan estimate`, which is also the default of `hpckit plan`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hpckit.cli.common.command_errors import CommandError, reported_errors
from hpckit.cli.common.run_argument import GpuPrice, JsonOption, LaunchOverrides, NodePrice
from hpckit.planner.assumptions import NODE_MTBF_HOURS, STORAGE_GBPS, UTILISATION

if TYPE_CHECKING:
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.cli.plan.plan_document import PlannedRun
    from hpckit.config.spec import RunSpec
    from hpckit.planner.gpu_cards import GpuCard

COMMON = "H100"
"""The GPU that is assumed if none is given."""
PROGRAM = (
    "a plan is computed from the model in the config, and only a program itself knows the model of "
    "a program. Give a model of about its size instead: hpckit plan {keys}model=llama_8b "
    "train.global_batch=N; or measure the program with fewer nodes: hpckit report shows its speed"
)
"""Why no plan is made for a program; `keys` are the overrides that were typed."""


def estimate(
    overrides: LaunchOverrides = None,
    card: Annotated[
        str | None,
        typer.Option(
            help="V100, A100-40, A100-80, H100, H200 or B200; by default that of the site or of "
            "this machine, or H100."
        ),
    ] = None,
    mfu: Annotated[
        float, typer.Option(min=0.01, max=1, help="Share of peak FLOPS reached while computing.")
    ] = UTILISATION,
    mtbf_hours: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            help=f"Hours between failures of one node; by default from checkpoint.mtbf_hours of "
            f"the job, or {NODE_MTBF_HOURS:,.0f}.",
        ),
    ] = None,
    storage_gbps: Annotated[
        float, typer.Option(min=0.001, help="Write bandwidth of the checkpoint store in GB/s.")
    ] = STORAGE_GBPS,
    node_price: NodePrice = None,
    gpu_price: GpuPrice = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "--output",
            "-o",
            help="Write the plan to a file that ends in .html, .md, .pdf, .docx, .xlsx or .pptx.",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Exit with 0 even if memory does not suffice.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Estimate the memory, time, storage and cost of a run before it starts.

    Example: hpckit plan model=llama_8b parallel=fsdp precision=bf16 launch.nodes=2
    launch.nproc_per_node=8 --card H100 --gpu-price 2.5 --out plan.html

    It exits with 2 if the run does not fit into the memory of the GPU. Memory is
    counted tensor by tensor for the GPU with the most. Times come from the data
    sheet of the GPU and from assumptions, which are printed, too. The file also
    has the risks, and what the run costs with other speeds; a workbook (.xlsx)
    calculates the cost by formulas.
    """
    from hpckit.cli.common.command_output import CommandOutput
    from hpckit.cli.plan.plan_document import PlannedRun
    from hpckit.cli.plan.plan_file import check_file, write_plan
    from hpckit.config.entry_points import IMAGES, LANGUAGE_MODEL
    from hpckit.config.spec_parser import SpecError
    from hpckit.planner.plan_text import problems
    from hpckit.planner.run_estimate import Assumptions, is_known
    from hpckit.planner.run_estimate import estimate as estimated
    from hpckit.planner.run_totals import HourlyPrices, run_totals
    from hpckit.submit.compose import compose_spec

    with reported_errors(json):
        if output is not None:
            check_file(output)
        spec = compose_spec(overrides or [])
        if spec.command is not None:
            raise CommandError(f"command: {PROGRAM.format(keys='')}")
        if not is_known(spec):
            raise CommandError(
                f"entry: {spec.entry} has a model of its own; only what {LANGUAGE_MODEL} and "
                f"{IMAGES} train is known: leave entry out, and give a model=... of about its size"
            )
        made = estimated(spec, _card(card, spec), Assumptions(mfu, mtbf_hours, storage_gbps))
        out, prices = CommandOutput(json), HourlyPrices(node_price, gpu_price)
        planned = PlannedRun(spec, made, run_totals(spec, made, prices), prices)
        if output is not None:
            write_plan(planned, output)
        _print_plan(out, planned, output)
        found = list(problems(made))
    with reported_errors():  # the document is written
        if found and not force:
            raise SpecError([f"{problem}, or plan on with --force" for problem in found])
        for problem in found:
            out.note(problem)


def _card(name: str | None, spec: RunSpec) -> GpuCard:
    from hpckit.planner.gpu_cards import CARDS, find_card
    from hpckit.submit.dry_run import card_of

    if name is None:
        if found := card_of(spec):
            return found
        print(f"no --card is named, and none known: {COMMON} is assumed", file=sys.stderr)
        return CARDS[COMMON]
    try:
        return find_card(name)
    except KeyError:
        raise CommandError(f"--card: no {name}; there are {', '.join(CARDS)}") from None


def _print_plan(out: CommandOutput, planned: PlannedRun, file: Path | None) -> None:
    """Print the plan, and where its file is."""
    from hpckit.cli.common.command_output import table
    from hpckit.cli.plan.plan_document import totals_facts
    from hpckit.planner.plan_text import facts, memory_table

    made, totals = planned.plan, planned.totals
    whole = {"totals": None if totals is None else totals.record()}
    out.document({**made.record(), **whole, "file": None if file is None else str(file)})
    for name, text in (*facts(made), *totals_facts(totals)):
        out.fact(name, text)
    head, rows = memory_table(made)
    shown = table(*head, right=head[1:])
    for row in rows:
        shown.add_row(*row)
    out.line()
    out.table(shown)
    if file is not None:
        out.line()
        out.fact("file", str(file.absolute()))
