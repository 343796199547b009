"""A plan as a page document, for engineers and for whoever decides on its budget. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hpckit.config.spec import RunSpec
from hpckit.planner.assumptions import RESTART_S
from hpckit.planner.goodput.save_interval import Goodput
from hpckit.planner.plan_risks import risks
from hpckit.planner.plan_text import (
    MOMENTS,
    facts,
    large,
    memory_table,
    problems,
    seconds,
    time_table,
)
from hpckit.planner.run_estimate import RunEstimate
from hpckit.planner.run_totals import HourlyPrices, RunTotals, cost_cases
from hpckit.report.page.page_document import (
    BarsBlock,
    Block,
    FactsBlock,
    PageDocument,
    Section,
    TableBlock,
    TextBlock,
)
from hpckit.text.quantities import count, decimal, size, span

_GIB = 2**30
_CASES = (0.5, 0.75, 1.0, 1.25)
"""Shares of the assumed utilisation, for the table of costs."""
_FEW = 0.001
"""Expected number of failures below which it is not given."""


@dataclass(frozen=True)
class PlannedRun:
    """A run with everything that is estimated of it."""

    spec: RunSpec
    plan: RunEstimate
    totals: RunTotals | None
    prices: HourlyPrices


def plan_document(planned: PlannedRun, as_of: str) -> PageDocument:
    """Return the document. `as_of`: when it was made, as text."""
    sections = (
        Section("Summary", tuple(_summary(planned))),
        Section("Cost", tuple(_cost(planned))),
        Section("Risks", tuple(_risks(planned))),
        Section("Hardware", (FactsBlock(tuple(_hardware(planned.plan))),)),
        Section("Strategy", (FactsBlock(tuple(_strategy(planned))),)),
        Section("Memory of a GPU", tuple(_memory(planned.plan))),
        Section("Time of a step", tuple(_time(planned.plan))),
        Section("Goodput", tuple(_goodput(planned))),
        Section("Storage", tuple(_storage(planned))),
        Section("Assumptions", tuple(_assumptions(planned.plan))),
    )
    return PageDocument(f"Plan of {planned.spec.name}", as_of, sections)


def totals_facts(totals: RunTotals | None) -> Iterator[tuple[str, str]]:
    """Return the totals as named lines; none if they are not known."""
    if totals is None:
        return
    yield (
        "whole run",
        f"{count(totals.steps, 'step')} take {span(totals.wall_s)}, of which "
        f"{span(totals.training_s)} are training, without the time in the queue; "
        f"{_failures(totals)}",
    )
    money = "" if totals.money is None else f", {_money(totals.money)} at the given prices"
    hours = f"{totals.node_hours:,.1f} node-hours, {totals.gpu_hours:,.1f} GPU-hours"
    yield "cost", f"{hours}{money}"
    yield (
        "storage",
        f"{count(totals.saves, 'save')}, of which {count(totals.kept, 'checkpoint')} at a time "
        f"take up to {size(totals.kept_bytes)}",
    )


def _summary(planned: PlannedRun) -> Iterator[Block]:
    plan, totals = planned.plan, planned.totals
    yield from (TextBlock(problem, is_alert=True) for problem in problems(plan))
    rows = [("memory", "fits" if plan.has_headroom else _tight(plan))]
    if totals is not None:
        rows += [
            ("duration", span(totals.wall_s)),
            ("GPU-hours", f"{totals.gpu_hours:,.1f}"),
            ("cost", "no price given" if totals.money is None else _money(totals.money)),
            ("goodput", f"{totals.goodput:.1%}"),
            ("expected failures", _number(totals.failures)),
            ("checkpoints at a time", size(totals.kept_bytes)),
        ]
    if plan.speed is not None:
        rows.append(("speed", f"{large(plan.speed.tokens_per_s)} {plan.unit}s/s"))
    yield FactsBlock(tuple(rows), are_key=True)
    yield TextBlock(
        f"{planned.spec.name} trains a model of {large(plan.parameters)} parameters on "
        f"{count(plan.world, 'GPU')} of kind {plan.card.name} in {count(plan.nodes, 'node')}. "
        "Nothing of this was measured: memory is counted tensor by tensor, and times come from "
        "data sheets and the assumptions at the end. Cost and Risks are for whoever decides on "
        "the budget, the sections after them for engineers."
    )


def _tight(plan: RunEstimate) -> str:
    return "fits without headroom" if plan.fits else "does not fit"


def _cost(planned: PlannedRun) -> Iterator[Block]:
    plan, totals, prices = planned.plan, planned.totals, planned.prices
    if totals is None:
        yield TextBlock("The cost is not known, since the speed is not.", is_alert=True)
        return
    yield FactsBlock(
        (
            ("node-hours", f"{totals.node_hours:,.1f}"),
            ("GPU-hours", f"{totals.gpu_hours:,.1f}"),
            *_price_facts(prices),
            ("cost", "not known" if totals.money is None else _money(totals.money)),
        )
    )
    yield TableBlock(
        ("where the hours go", "GPU-hours", "share", *_money_head(totals)),
        tuple(_cost_rows(totals)),
        words=("where the hours go",),
    )
    if totals.money is not None:
        yield TextBlock(
            "The cost is the node-hours and GPU-hours times the given prices, in their currency. "
            "Storage, the transfer of data, and runs before and beside this one are not in it."
        )
    yield TextBlock(
        "How fast the cards compute is the least certain assumption: "
        f"{plan.assumptions.utilisation:.0%} of their peak while computing. With another share, "
        "the same run takes:"
    )
    utilisation = plan.assumptions.utilisation
    wanted = [min(1.0, share * utilisation) for share in _CASES]
    cases = cost_cases(planned.spec, plan, prices, list(dict.fromkeys(wanted)))
    rows = tuple(
        (
            f"{100 * case.utilisation:.3g}%",
            span(case.totals.wall_s),
            f"{case.totals.gpu_hours:,.1f}",
            *([] if case.totals.money is None else [_money(case.totals.money)]),
        )
        for case in cases
    )
    head = ("share of the peak", "duration", "GPU-hours", *_money_head(totals))
    yield TableBlock(head, rows, words=head[:1])


def _cost_rows(totals: RunTotals) -> Iterator[tuple[str, ...]]:
    names = ("training that counts", "saves, restarts and repeated steps", "all")
    share = totals.training_s / totals.wall_s
    columns = [
        [f"{part:,.1f}" for part in _parts(totals.gpu_hours, share, 1)],
        [f"{part:.1%}" for part in _parts(1.0, share, 3)],
    ]
    if totals.money is not None:
        digits = _decimals(totals.money)
        columns.append([f"{part:,.{digits}f}" for part in _parts(totals.money, share, digits)])
    yield from zip(names, *columns, strict=True)


def _parts(whole: float, share: float, digits: int) -> tuple[float, float, float]:
    """Return a share of the whole, the rest, and the whole, rounded so that they add up."""
    total, part = round(whole, digits), round(share * whole, digits)
    return part, total - part, total


def _money_head(totals: RunTotals) -> tuple[str, ...]:
    return () if totals.money is None else ("cost",)


def _risks(planned: PlannedRun) -> Iterator[Block]:
    head = ("risk, and its effect", "what to do")
    rows = tuple(
        (f"{risk.what}: {risk.effect}", risk.remedy)
        for risk in risks(planned.spec, planned.plan, planned.totals)
    )
    if rows:
        yield TableBlock(head, rows, words=head)
    else:
        yield TextBlock("None is known beside what the summary says.")


def _hardware(plan: RunEstimate) -> Iterator[tuple[str, str]]:
    card = plan.card
    yield "nodes", f"{plan.nodes:,}, with {count(plan.world // plan.nodes, 'GPU')} each"
    yield "GPU", f"{card.name}, {card.memory_gib:g} GiB of memory at {card.memory_gbps:,.0f} GB/s"
    rates = ", ".join(f"{name} {rate:,.4g}" for name, rate in card.tflops.items())
    yield "peak", f"TFLOP/s of matrix products, without sparsity: {rates}"
    yield "in a node", f"{card.nvlink_gbps:,.0f} GB/s to each other GPU, one direction"
    yield "between nodes", f"{card.network_gbps:g} GB/s for each GPU, one direction"
    yield "to the host", f"{card.host_gbps:g} GB/s for each GPU, one direction"
    yield "store", f"{plan.assumptions.storage_gbps:g} GB/s for all ranks together (assumed)"


def _strategy(planned: PlannedRun) -> Iterator[tuple[str, str]]:
    plan, spec = planned.plan, planned.spec
    wanted = ("model", "layout", "recommended")
    found = dict(facts(plan))
    yield from ((name, found[name]) for name in wanted)
    precision = spec.precision
    yield (
        "precision",
        f"computes in {precision.compute}, reduces gradients in {precision.reduce}, keeps "
        f"parameters and the state of the optimizer in {precision.master}",
    )
    memory = spec.memory
    recompute = memory.activation_checkpointing
    offload = ", optimizer in the host's memory" if memory.cpu_offload else ""
    compiled = ", blocks compiled" if memory.compile else ""
    yield "activations", f"recomputed: {recompute}{offload}{compiled}"
    yield (
        "batch",
        f"{spec.train.global_batch:,} samples a step, for {count(spec.train.steps, 'step')}",
    )


def _memory(plan: RunEstimate) -> Iterator[Block]:
    yield FactsBlock((("memory", dict(facts(plan))["memory"]),))
    moments = {**plan.footprint.moments, "recomputed": plan.recomputed.peak}
    parts = list(plan.footprint.peak.parts())
    bars = [(name, [use.parts()[part] / _GIB for part in parts]) for name, use in moments.items()]
    limit = ("available", plan.room / _GIB)
    yield BarsBlock("Memory of a GPU by moment of a step", "GiB", parts, bars, limit)
    head, rows = memory_table(plan)
    yield TableBlock(("part", *head[1:]), rows, words=("part",))
    words = "; ".join(f"{name}: {text}" for name, text in MOMENTS.items())
    yield TextBlock(f"{words}; recomputed: with full activation checkpointing.")


def _time(plan: RunEstimate) -> Iterator[Block]:
    found = dict(facts(plan))
    names = [name for name in ("speed", "roofline") if name in found]
    yield FactsBlock(tuple((name, found[name]) for name in names))
    if plan.speed is None:
        return
    parts = {name: value for name, value in plan.speed.step.parts().items() if value > 0}
    values = [1000 * value for value in parts.values()]
    yield BarsBlock("Time of a step by part", "ms", list(parts), [("step", values)])
    head, rows = time_table(plan)
    yield TableBlock(("part", *head[1:]), rows, words=("part",))


def _goodput(planned: PlannedRun) -> Iterator[Block]:
    plan, totals = planned.plan, planned.totals
    rows = [_goodput_row("best", plan.goodput)]
    if plan.configured is not None:
        rows.append(_goodput_row("as configured", plan.configured))
    head = ("saves", "every", "stall", "durable after", "goodput")
    yield TableBlock(head, tuple(rows), words=("saves",))
    words = (
        f"A failure of the job is expected every {span(plan.goodput.mtbf_s)}, and a restart takes "
        f"{span(RESTART_S)} until the next step. The goodput is the share of the time in steps "
        "that count, by Daly's model (2006); preemptions and the queue are not in it."
    )
    yield TextBlock(words if totals is None else f"{words} {_failures(totals).capitalize()}.")


def _goodput_row(name: str, found: Goodput) -> tuple[str, ...]:
    times = (span(found.interval_s), seconds(found.stall_s), seconds(found.durable_s))
    return (name, *times, f"{found.fraction:.2%}")


def _storage(planned: PlannedRun) -> Iterator[Block]:
    plan, totals, keep = planned.plan, planned.totals, planned.spec.checkpoint.keep
    rows = [("a checkpoint", size(plan.checkpoint))]
    rule = f"the last {keep.last}"
    rule += f", each multiple of {keep.every:,} steps" if keep.every else ""
    rule += f", the one with the lowest {keep.best}" if keep.best else ""
    rows.append(("kept", rule))
    if totals is not None:
        requests = totals.save_requests
        rows += [
            ("at a time", f"{count(totals.kept, 'checkpoint')}, {size(totals.kept_bytes)}"),
            (
                "saves",
                f"{totals.saves:,}, one every {span(totals.interval_s)}: on average "
                f"{decimal(1e9 * totals.save_gbps, 'B/s')}",
            ),
            (
                "requests of a save",
                f"{requests.put:,} PUT, {requests.get:,} GET, {requests.list:,} LIST, "
                f"{requests.delete:,} DELETE; in the whole run about "
                f"{totals.saves * requests.total:,}",
            ),
        ]
    yield FactsBlock(tuple(rows))
    yield TextBlock(
        "Sizes are those of the tensors. Compression and chunks that a save shares with earlier "
        "ones make them smaller. Data and logs are not included."
    )


def _assumptions(plan: RunEstimate) -> Sequence[Block]:
    return (
        FactsBlock((("assumed", dict(facts(plan))["assumed"]),)),
        TextBlock(
            "Rates and sizes of the cards are those of the maker's data sheets. The options of "
            "hpckit plan change the assumptions; hpckit bench profile and hpckit bench scaling "
            "measure them."
        ),
    )


def _failures(totals: RunTotals) -> str:
    return f"{_number(totals.failures)} failures are expected"


def _number(value: float) -> str:
    if value < _FEW:
        return f"fewer than {_FEW}"
    return f"about {value:,.0f}" if value >= 10 else f"about {value:.2g}"


def _money(value: float) -> str:
    return f"{value:,.{_decimals(value)}f}"


def _decimals(money: float) -> int:
    return 0 if money >= 100 else 2


def _price_facts(prices: HourlyPrices) -> Iterator[tuple[str, str]]:
    """Return the prices that are known, or the options that give them."""
    known = {"price of a node-hour": prices.node, "price of a GPU-hour": prices.gpu}
    if all(value is None for value in known.values()):
        yield "price", "not known: give --node-price or --gpu-price"
    yield from ((name, f"{value:g}") for name, value in known.items() if value is not None)
