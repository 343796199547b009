"""Describes what a submission would run, without running anything."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from hpckit.agent.device_assignment import choose_devices, gpu_model, visible_gpus
from hpckit.agent.workers.torchrun_command import Rendezvous, torchrun_command
from hpckit.config.batch_size import samples_before, share_of_rank
from hpckit.config.entry_points import IMAGES, is_built_in
from hpckit.config.last_step import last_step
from hpckit.config.mixture import is_packed, tokens_before
from hpckit.config.parallel_degrees import degrees, describe_layout
from hpckit.config.rules.violations import fewest_nodes, is_elastic, nodes_of_generation
from hpckit.config.spec import CheckpointSpec, ImageSpec, RunSpec
from hpckit.ipc.process_environment import NodeEnvironment
from hpckit.planner.assumptions import STORAGE_GBPS, UTILISATION
from hpckit.planner.gpu_cards import GpuCard, recognise
from hpckit.planner.memory.decoder_memory import footprint
from hpckit.planner.model import image_layers
from hpckit.planner.model.model_work import work_of
from hpckit.planner.plan_text import large, memory_line, summary
from hpckit.planner.run_estimate import Assumptions, estimate, is_known
from hpckit.rundir.directory import RunDir
from hpckit.slurm.job_placement import start_time
from hpckit.submit.batch_script import of_run, passed_variables, script
from hpckit.submit.exclusion.suspect_exclusion import exclude_suspects
from hpckit.text.quantities import count

if TYPE_CHECKING:
    from data import Dataset
    from data.index.manifest_summary import DatasetSummary


def describe_submission(
    spec: RunSpec,
    run: RunDir,
    dataset: Dataset | DatasetSummary | None,
    earlier: int,
    describe_code: Callable[[], str] | None = None,
) -> str:
    """Returns a summary of the run, followed by the batch script or, on this machine, by the
    command that each node of its first generation would run.

    Args:
        describe_code: returns a line on the code snapshot.
    """

    def about() -> Iterator[str]:
        yield from _summary(spec, run, dataset, earlier)
        if describe_code is not None:
            yield f"# code        {describe_code()}"

    if spec.cluster.slurm is None:
        return "\n".join([*about(), "", *_commands(spec, run, earlier)])

    def script_without(hosts: tuple[str, ...]) -> str:
        return script(spec, of_run(run, earlier + 1, (), hosts))

    suspects = exclude_suspects(spec, script_without)
    text = script_without(suspects.hosts)
    with ThreadPoolExecutor(1, "start") as executor:  # while the project is listed
        start = executor.submit(start_time, text, passed_variables(spec))
        lines = [*about(), *(f"# suspects    {line}" for line in suspects.notes)]
        return "\n".join([*lines, f"# start       {start.result()}", "", text])


def _summary(
    spec: RunSpec, run: RunDir, dataset: Dataset | DatasetSummary | None, earlier: int
) -> Iterator[str]:
    yield f"# run         {run.name}"
    so_far = f"  ({count(earlier, 'submission')} so far)" if earlier else ""
    yield f"# directory   {run.path}{so_far}"
    if spec.command is not None:
        yield f"# command     {shlex.join(spec.command.arguments)}"
        yield f"# folder      {spec.command.cwd}"
        yield from _layout(spec)
        return
    yield f"# entry       {spec.entry}"
    yield from _layout(spec)
    ckpt, world = spec.checkpoint, nodes_of_generation(spec, 0) * spec.launch.nproc_per_node
    yield f"# batch       {_batch(spec, world)}"
    if spec.data.mixture is not None:
        yield f"# data        a mixture of {', '.join(spec.data.mixture.sources)}"
    elif dataset is None and spec.data.pack is None:
        yield f"# data        {spec.data.shards}, not looked into here"
    elif dataset is None:
        yield f"# data        to be packed into {spec.data.shards}"
    else:
        what, shards = "document" if is_packed(spec) else "sample", len(dataset.manifest)
        yield f"# data        {count(len(dataset), what)} in {count(shards, 'shard')}"
    yield f"# steps       {last_step(spec)}" + _epochs(spec, dataset)
    if spec.entry == IMAGES and isinstance(spec.model, ImageSpec):
        yield f"# model       {_image_model_line(spec.model)}"
    if is_known(spec):
        found = footprint(spec, world)
        layout, parameters = describe_layout(spec.parallel, world), work_of(spec).parameters
        yield f"# memory      {memory_line(found.peak, found.at, parameters, layout)}"
        if card := card_of(spec):
            assumed = Assumptions(UTILISATION, None, STORAGE_GBPS)
            yield f"# plan        {summary(estimate(spec, card, assumed))}"
    yield f"# checkpoints {_when(ckpt)}, into {ckpt.url or run.checkpoints}"


def _layout(spec: RunSpec) -> Iterator[str]:
    nodes, per_node = nodes_of_generation(spec, 0), spec.launch.nproc_per_node
    world = nodes * per_node
    kind = _device(spec, world)
    layout = f"{count(nodes, 'node')} x {count(per_node, 'worker')} = {count(world, 'rank')}"
    yield f"# layout      {layout} on {kind}"
    if is_elastic(spec):
        spares, fewest = spec.elastic.spares, fewest_nodes(spec)
        verb = "stands" if spares == 1 else "stand"
        yield f"# elastic     {count(spares, 'node')} {verb} by; trains on {fewest} at least"


def _batch(spec: RunSpec, world: int) -> str:
    """Returns how a global batch is shared. A training function of the user may have a batch of its
    own, which the spec does not hold."""
    size, parts = spec.train.global_batch, degrees(spec.parallel, world).data
    who = count(parts, "rank") if parts == world else f"{count(parts, 'group')} of ranks"
    if size % parts:
        return f"{size} samples a step do not divide over {who}: {spec.entry} has its own"
    share = f"{size} samples a step = {who} x {share_of_rank(spec, world)}"
    if (ramp := spec.train.batch_ramp) is not None:
        share = f"{share}, from {ramp.start} on over the first {ramp.samples:,} samples"
    return f"{share}, at most {spec.train.micro_batch} at once" if is_built_in(spec) else share


def card_of(spec: RunSpec) -> GpuCard | None:
    """Returns the GPU that the ranks of a run will have, by the type that the job asks for, or by
    this machine's driver. None: it is unknown."""
    if spec.cluster.device == "cpu":
        return None
    slurm = spec.cluster.slurm
    name = gpu_model() if slurm is None else slurm.gpu_type
    return None if name is None else recognise(name)


def _image_model_line(model: ImageSpec) -> str:
    return (
        f"{large(image_layers.parameter_count(model))} parameters, "
        f"{large(image_layers.per_sample(model))}FLOP "
        "a sample"
    )


def _device(spec: RunSpec, world: int) -> str:
    """Returns the kind of device of the ranks. On a cluster, only its nodes know what they have."""
    if spec.cluster.kind == "slurm":
        return {"auto": "cuda, or cpu where there is none"}.get(
            spec.cluster.device, spec.cluster.device
        )
    return choose_devices(spec.cluster.device, world, visible_gpus(os.environ)).kind


def _when(spec: CheckpointSpec) -> str:
    if spec.every_steps is not None:
        return f"every {spec.every_steps} steps"
    if spec.every_minutes is not None:
        return f"every {spec.every_minutes} minutes"
    if spec.mtbf_hours is not None:
        return f"as often as is best for a failure each {spec.mtbf_hours:g} h"
    return "at the end only"


def _epochs(spec: RunSpec, dataset: Dataset | DatasetSummary | None) -> str:
    if dataset is None:
        return ""
    if is_packed(spec):  # a sample of a step is a window of documents
        tokens = getattr(dataset.manifest, "n_tokens", None)
        if tokens is None or not tokens.sum():
            return ""
        epochs = float(tokens_before(spec, last_step(spec)) / int(tokens.sum()))
        return f"  (about {epochs:.2f} epochs)"
    return f"  ({samples_before(spec, last_step(spec)) / len(dataset):.2f} epochs)"


def _commands(spec: RunSpec, run: RunDir, earlier: int) -> Iterator[str]:
    nodes = nodes_of_generation(spec, 0)
    generation = max(run.generation_numbers(), default=0) + 1
    yield "# the supervisor, by submitit's local executor:"
    yield f"hpckit.supervisor.supervisor:supervise({str(run.path)!r}, submission={earlier + 1})"
    for node in range(nodes):
        at = NodeEnvironment(run, earlier + 1, generation, node, nodes)
        address = spec.cluster.address
        assert address is not None  # the spec is valid
        meet = Rendezvous(address, 0, token="", local=address, place=node)
        command = shlex.join(torchrun_command(spec, at, meet))
        yield f"# node {node} (port 0: a free one, found by the supervisor):"
        yield command
