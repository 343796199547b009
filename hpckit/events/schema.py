"""Defines the kinds of events in `events.jsonl`: one class for each kind, which says who emits it,
when, and what its fields mean. Events of checkpoints are in `checkpointing.events`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from checkpointing.events import (
    EVENT_KINDS,
    Count,
    Seconds,
    event_fields,
    event_kind,
    event_with,
)
from checkpointing.events import Event as Event
from hpckit.events.end_reasons import KINDS


@dataclass(frozen=True)
class OneOf:
    """A constraint on a field: its value is one of `values`."""

    values: frozenset[str]


VerdictName = Annotated[str, OneOf(frozenset(KINDS))]
"""How a generation or a run ended."""


@event_fields
class RunEvent(Event):
    """An event of a run. The log that it is written to adds the fields of the process that it
    belongs to."""

    submission: Count | None = None
    """The number of the submission; supervisors and commands add it."""
    generation: Count | None = None
    """The number of the generation; agents and ranks add it."""
    attempt: Count | None = None
    """The number of the attempt in its generation, from 0; ranks add it."""
    node: Count | None = None
    """The number of the node in its job; agents and their workers add it."""
    rank: Count | None = None
    """The rank of the worker among all workers of the generation; ranks add it."""


@event_fields
class UnknownEvent(RunEvent):
    """An event of a kind that is not in the schema: one of the user's own, of an earlier release,
    or of a later one. `event["name"]` and `event.get("name")` return its fields."""

    kind: str = field()
    """The name of the kind, as it is written."""


class DegradedSubject(StrEnum):
    """What a degraded run lacks, wholly or in part."""

    SUCCESSOR = "successor"
    """No job is queued to continue the run."""
    SUCCESSOR_CANCELLATION = "successor_cancellation"
    """A successor job that is not wanted any more was not cancelled in time."""
    EXPEDITED_START = "expedited_start"
    """Slurm delays the start of a requeued job."""
    EXCLUDE_LIST = "exclude_list"
    """The next job may get unhealthy nodes again."""
    REQUEUE_LINK = "requeue_link"
    """A requeued job reads config and code again."""
    JOB_NAME = "job_name"
    """The job does not have the name of the run, by which commands find it."""
    RESIZE = "resize"
    """A requeued job with more nodes than before uses as many as before."""
    RUN_LOCK = "run_lock"
    """The process of a job that is over still holds the run lock."""
    NODE_CONNECTION = "node_connection"
    """The node of the supervisor could not be reached, so that another node ended the job."""
    FORK_SERVER = "fork_server"
    """Workers are started as new processes, as they cannot be forked."""
    ENVIRONMENT = "environment"
    """The program sets variables that torch has read before."""
    WRITTEN_CODE = "written_code"
    """The program wrote files into the copy of its code, where later submissions do not find
    them."""
    DEVICES = "devices"
    """The run does not have the devices that it was meant to have."""
    CHECKPOINT_SERVICE = "checkpoint_service"
    """A checkpoint service was still writing when it had to end."""
    CHECKPOINT_STORE = "checkpoint_store"
    """The supervisor cannot look up the newest checkpoint."""
    CHECKPOINT_PROGRESS = "checkpoint_progress"
    """Jobs end without a new checkpoint, or this one may be too short for one."""
    TENSORBOARD = "tensorboard"
    """TensorBoard files lack records."""
    TRACKER = "tracker"
    """A tracker does not get all records, or gets them later."""
    LOADER = "loader"
    """Batches of a loader without a state were read again and discarded on a resume."""
    PROFILER = "profiler"
    """A trace of the profiler is lost."""
    CERTIFICATION = "certification"
    """No checkpoint is certified, though `checkpoint.certify` asks for it."""
    HEALTH_CHECK = "health_check"
    """The nodes were not measured, or not completely."""
    METRICS = "metrics"
    """The exporter cannot publish metrics."""
    EVALUATION = "evaluation"
    """Checkpoints are not evaluated, or later."""
    CACHE_PEERS = "cache_peers"
    """Each node fetches all shards that it needs from their source."""
    SUSPECT_LIST = "suspect_list"
    """The suspect list cannot be read or written, or its hook fails."""


@event_kind("run_started", added=("steps",))
class RunStarted(RunEvent):
    """The supervisor emits this when it holds the run lock and begins."""

    pid: Count | None = None
    """The process id of the supervisor."""
    steps: Count | None
    """The number of steps that the run is meant to have; null if it has no end."""
    job: str | None = None
    """Slurm's id of the job; absent outside of Slurm."""
    hosts: list[str] | None = None
    """Slurm's names of the nodes of the job; absent outside of Slurm."""


@event_kind("run_ended")
class RunEnded(RunEvent):
    """The supervisor emits this when it ends with a verdict, and `hpckit cancel` when no supervisor
    is left to do so."""

    verdict: str
    """The kind of the last verdict."""
    status: Count | None = None
    """The exit status of the supervisor."""


@event_kind("run_failed")
class RunFailed(RunEvent):
    """The supervisor emits this when it ends because of an error of its own."""

    error: str
    """The error, as text for people."""


@event_kind("run_refused")
class RunRefused(RunEvent):
    """The supervisor emits this when it does not begin because another process holds the run
    lock."""

    error: str
    """The process that holds the lock, as text for people."""


@event_kind("task_queued")
class TaskQueued(RunEvent):
    """The login node emits this for each run that it submits as a task of a job array."""

    job: str
    """Slurm's id of the task."""


@event_kind("job_refused")
class JobRefused(RunEvent):
    """The login node emits this when sbatch refuses a job that was to start or resume the run."""

    error: str
    """What sbatch printed."""


@event_kind("strays_killed")
class StraysKilled(RunEvent):
    """A supervisor or an agent emits this when it has ended processes that a former one left on its
    node."""

    pids: list[int]
    """The ids of these processes."""


@event_kind("generation_started", added=("from_step",))
class GenerationStarted(RunEvent):
    """The supervisor emits this before it waits for the agents of a new generation."""

    generation: Count = field()
    """The number of the generation, from 1."""
    nodes: Count
    """The number of nodes that the generation is meant to have."""
    from_step: Count | None
    """The number of steps in the newest checkpoint."""


@event_kind("nodes_chosen")
class NodesChosen(RunEvent):
    """The supervisor emits this when a generation starts on other nodes than all of its job: with
    spares, or with fewer nodes."""

    nodes: list[Count]
    """The numbers of the chosen nodes."""
    hosts: list[str] | None = None
    """The names of the chosen nodes."""
    wanted: Count
    """The number of nodes that the generation was meant to have."""


@event_kind("generation_ended", added=("saved_step", "words"))
class GenerationEnded(RunEvent):
    """The supervisor emits this when it has judged how a generation ended."""

    generation: Count = field()
    """The number of the generation."""
    verdict: VerdictName
    """How it ended."""
    reason: str
    """The reason, as text for people."""
    final: bool | None = None
    """Whether no further generation follows in any job."""
    step: Count
    """The number of steps that all nodes have finished."""
    saved_step: Count | None
    """The number of steps in the newest checkpoint."""
    words: str | None
    """The error of a worker in a form by which the next one is compared; null if there is none."""
    place: str | None = None
    """The type of the error, the step and the lines of code at which it was raised, in a form by
    which the next one is compared; null if another attempt may not meet it."""
    repeats: Count | None = None
    """The number of attempts in a row that ended at `place`, without a new checkpoint."""


@event_kind("asked")
class LeaveRequested(RunEvent):
    """The supervisor emits this when it forwards a request to leave to all agents."""

    request: str
    """The request, such as `stop`, `preempt` or `time_limit`."""


@event_kind("agent_started")
class AgentStarted(RunEvent):
    """The supervisor emits this when it has started the agent of a node."""

    pid: int | None = None
    """The id of the process, on the supervisor's node, that started it."""


@event_kind("agent_killed")
class AgentKilled(RunEvent):
    """The supervisor emits this when an agent was killed and its watchdog has started it again."""

    host: str | None
    """Slurm's name of the node; null outside of Slurm."""


@event_kind("node_lost")
class NodeLost(RunEvent):
    """The supervisor emits this when the agent of a node is lost without a request to leave, or
    never started."""

    host: str | None
    """Slurm's name of the node; null outside of Slurm."""
    is_absent: bool | None = None
    """True if no agent ever started on the node."""
    said: str | None = None
    """The last line of the agent's log, if the agent never started."""


@event_kind("node_unhealthy", added=("admin",))
class NodeUnhealthy(RunEvent):
    """The supervisor emits this when a node is left out because its health checks fail."""

    host: str | None
    """Slurm's name of the node; null outside of Slurm."""
    problems: list[str]
    """The problems of the node, as texts for people."""
    admin: str | None
    """The command by which an administrator drains the node; null outside of Slurm."""


@event_kind("deep_health")
class DeepHealthEnded(RunEvent):
    """The supervisor emits this after it has had all nodes measured (`health=deep`)."""

    hosts: list[str]
    """The names of the measured nodes; of simulated ones, "node" and a number."""
    seconds: Seconds
    """The seconds that it took."""
    reasons: list[str]
    """Why it was done, as texts for people."""
    is_complete: bool
    """Whether all measurements were made. If not, the nodes count as not measured."""
    found: list[str]
    """What is wrong or slow, as texts for people."""


@event_kind("deep_health_problem")
class DeepHealthProblemFound(RunEvent):
    """The supervisor emits this for each wrong or slow measurement of a node, a rank or a link."""

    host: str
    """The name of the node."""
    peer: str | None = None
    """The name of the node at the other end, of a link; absent otherwise."""
    device: str
    """The name of the device, such as that of the GPU."""
    measure: str
    """What was measured, such as `matrix`, `memory` or `link`."""
    value: float | None
    """The value in FLOP or bytes per second; null if a result was wrong."""
    median: float | None
    """The median of the others, or the usual value of links, in the same unit."""
    is_excluded: bool
    """Whether the node is left out because of it."""
    what: str
    """The problem, as text for people."""


@event_kind("nodes_excluded")
class NodesExcluded(RunEvent):
    """The supervisor emits this when Slurm has accepted the list of nodes that the next job must
    not get, and the login node when it submits a job without nodes of the suspect list."""

    job: str
    """Slurm's id of the next job."""
    hosts: list[str]
    """Slurm's names of the excluded nodes."""


@event_kind("suspect_reported")
class SuspectReported(RunEvent):
    """The supervisor emits this when it has recorded a node in the suspect list, so that other runs
    do without it."""

    host: str
    """Slurm's name of the node."""
    problem: str
    """The problem, as text for people."""
    expires: Seconds
    """When the record stops to count, in seconds since the epoch."""
    path: str
    """The file of the record."""


@event_kind("exclusion_withdrawn")
class ExclusionWithdrawn(RunEvent):
    """The supervisor emits this when the next job may get nodes again that it was not to get, as
    Slurm could not place the job without them."""

    job: str
    """Slurm's id of the next job."""
    hosts: list[str]
    """Slurm's names of the nodes that it may get again."""
    reason: str
    """Why, as text for people."""


@event_kind("node_ended")
class NodeEnded(RunEvent):
    """The agent emits this when all workers of its node have ended."""

    exit: str
    """How they ended, such as `done`, `left`, `failed` or `hang`."""
    step: Count
    """The number of steps that all of them have finished."""
    attempts: Count
    """The number of attempts in the generation."""


@event_kind("successor_queued")
class SuccessorQueued(RunEvent):
    """The supervisor emits this when Slurm has accepted a job that continues the run."""

    job: str
    """Slurm's id of the successor job."""


@event_kind("successor_cancelled")
class SuccessorCancelled(RunEvent):
    """The supervisor emits this when the successor job is cancelled, or has left the queue without
    a request."""

    job: str
    """Slurm's id of the successor job."""


@event_kind("successor_blocked")
class SuccessorBlocked(RunEvent):
    """The supervisor emits this when the successor job cannot start before a person changes
    something, once for each reason."""

    job: str
    """Slurm's id of the successor job."""
    reason: str
    """What Slurm says, and what it means, as text for people."""
    advice: str
    """What to do, as text for people."""


@event_kind("successor_unblocked")
class SuccessorUnblocked(RunEvent):
    """The supervisor emits this when nothing blocks the successor job any more."""

    job: str
    """Slurm's id of the successor job."""


@event_kind("successor_released")
class SuccessorReleased(RunEvent):
    """An agent emits this when the successor job no longer waits for the end of the former job,
    which has lost its supervisor's node and is cancelled, but would end late."""

    job: str
    """Slurm's id of the successor job."""
    former: str
    """Slurm's id of the cancelled job."""


@event_kind("job_requeued")
class JobRequeued(RunEvent):
    """The supervisor emits this when Slurm will run its own job again."""

    job: str
    """Slurm's id of the job."""


@event_kind("begins_soon")
class StartExpedited(RunEvent):
    """The supervisor emits this when Slurm has accepted an earlier start time of the requeued
    job."""

    job: str
    """Slurm's id of the job."""
    seconds: Seconds
    """The seconds from the end of the present job to the start time."""


@event_kind("worker_started")
class WorkerStarted(RunEvent):
    """Each rank emits this when its process begins."""

    pid: Count | None = None
    """The id of the process."""


@event_kind("fork_unusable")
class ForkUnusable(RunEvent):
    """Each rank emits this when it is started as a new process because it cannot be forked."""

    why: str
    """The reason why it cannot be forked, as text for people."""


@event_kind("worker_lost")
class WorkerLost(RunEvent):
    """The agent emits this when a worker has ended without a report."""

    local_rank: Count | None = None
    """The rank of the worker among those of its node."""
    pid: Count | None = None
    """The id of its process."""
    step: Count
    """The number of steps that it had finished."""


@event_kind("out_of_memory")
class OutOfMemory(RunEvent):
    """The agent emits this when a worker has ended because it ran out of memory."""

    local_rank: Count
    """The rank of the worker among those of its node."""
    memory: str
    """The kind of memory: `gpu` or `host`."""
    step: Count
    """The number of steps that it had finished."""
    by_kernel: bool | None = None
    """Whether the kernel killed the worker or one of its child processes."""


@event_kind("hang", added=("phase",))
class HangDetected(RunEvent):
    """The agent emits this when it ends workers that have not finished a step for too long."""

    step: Count
    """The number of steps that the slowest of them had finished."""
    phase: str | None
    """The phase that this worker was in."""
    local_ranks: list[Count]
    """The ranks of these workers among those of their node."""
    stacks: list[str]
    """The files with their stacks and with the collectives of the node."""
    explanation: str | None = None
    """What the hang comes from, as in `hang_explained`; absent if it was not known in time."""


@event_kind("hang_explained")
class HangExplained(RunEvent):
    """The supervisor emits this at a hang, when it has compared what all ranks were doing."""

    step: Count
    """The number of steps that the slowest rank had finished."""
    cause: str
    """The cause: `stuck` (ranks have not entered a collective in which others wait), `mismatch`
    (ranks have entered different collectives), `cycle` (ranks wait for each other in several
    groups), `transfer` (all ranks have entered a collective that does not end), `slow` (ranks
    advance), or `unknown`."""
    text: str
    """The ranks, hosts, lines and collectives in words."""
    culprits: list[Count]
    """The first 64 of the ranks that the others wait for; empty if they are unknown."""
    hosts: list[str]
    """The hosts of these ranks."""
    waiting: Count
    """The number of ranks that wait for others."""
    examined: Count
    """The number of ranks whose nodes have answered."""
    seconds: Seconds
    """The seconds from the first alarm to this finding."""
    snapshots: str
    """The file with what each rank was doing."""


@event_kind("all_reduce")
class AllReduceMeasured(RunEvent):
    """Rank 0 emits this when the check of an all-reduce before training has passed."""

    seconds: Seconds
    """The seconds that the all-reduce took."""
    world_size: Count
    """The number of ranks."""


@event_kind("attention")
class AttentionChosen(RunEvent):
    """Rank 0 emits this when the model is built."""

    backend: str | None
    """The implementation of attention that is used; null if the model has no attention."""


@event_kind("parameters_read")
class ParametersRead(RunEvent):
    """Rank 0 emits this when the parameters of another model have been loaded to start from."""

    path: str
    """The folder or store that they were read from."""
    id: str | None = None
    """The name of the checkpoint, if it was one."""
    item: str | None = None
    """The item of that checkpoint."""


@event_kind("training_started", added=("samples",))
class TrainingStarted(RunEvent):
    """Rank 0 emits this when all ranks have restored their state and train."""

    generation: Count = field(init=False)
    """The number of the generation."""
    step: Count
    """The number of steps that are finished already."""
    world_size: Count
    """The number of ranks."""
    global_batch: Count | None = None
    """The number of samples of each step, once it has its full size."""
    batch_ramp: list[int] | None = None
    """The start, increment, samples and full size of a batch that grows."""
    seen: Count | None = None
    """The number of samples, or of sequences of packed documents, of all finished steps, if the
    loader counts them."""
    samples: Count | None
    """The number of samples of the dataset; null if documents are packed."""
    loader: str | None = None
    """The class of the loader, with its module, if it is of another library."""
    position: Count | None = None
    """The number of samples that all finished steps took, or the loader's cursor if documents are
    packed."""
    restore_s: Seconds | None = None
    """The seconds that the ranks took to restore their state."""


@event_kind("checkpoint_reported")
class CheckpointReported(RunEvent):
    """Rank 0 of a program emits this when the program reports, by `hpckit.client.checkpointed`,
    that it has saved a checkpoint of its own."""

    step: Count
    """The number of finished steps that the checkpoint has."""


@event_kind("step")
class StepLogged(RunEvent):
    """Rank 0 emits this as the record of each logged step. Means over ranks of what the training
    function logs are fields under the names that it gives them, beside those here."""

    generation: Count = field(init=False)
    """The number of the generation."""
    step: Count
    """The number of finished steps, this one included."""
    step_s: Seconds
    """The seconds of a step since the record before."""
    loss: float | None = None
    """The loss, if the training function logs it."""
    grad_norm: float | None = None
    """The norm of the gradients, if the training function logs it."""
    lr: float | None = None
    """The learning rate, if the training function logs it."""
    tokens_per_s: float | None = None
    """The tokens per second of all ranks."""
    samples_per_s: float | None = None
    """The samples per second of all ranks."""
    mfu: float | None = None
    """The model FLOPs utilization, as a share of the peak of all devices."""
    peak_memory_bytes: float | None = None
    """The highest peak of allocated memory of a GPU, in bytes."""
    peak_rss_bytes: float | None = None
    """The highest peak of resident memory of a rank without a GPU, in bytes."""
    data_wait_share: float | None = None
    """The share of the time in which loaders had no batch ready."""
    data_hits: float | None = None
    """The number of shards that the node store had."""
    data_misses: float | None = None
    """The number of shards that were fetched."""
    data_bypasses: float | None = None
    """The number of reads that a source answered and not the node store: each is a request."""
    data_peer_bytes_per_s: float | None = None
    """The bytes per second that nodes got from the caches of each other."""
    data_peer_failures: float | None = None
    """The number of times that a node did not answer, was slow or sent wrong bytes, so that a shard
    came from elsewhere."""
    data_errors: float | None = None
    """The number of errors while data was read."""
    traced_step_s: float | None = None
    """The seconds of a step that was traced since the record before, as a mean over ranks."""
    communication_exposed_s: float | None = None
    """The seconds of that step in which a rank only waited for communication."""
    data_wait_s: float | None = None
    """The seconds of a step in which a rank waited for data, as a mean over ranks."""
    host_to_device_s: float | None = None
    """The seconds of a step in which batches were copied to the device."""
    forward_s: float | None = None
    """The seconds of the forward pass of a step."""
    backward_s: float | None = None
    """The seconds of the backward pass of a step."""
    compute_s: float | None = None
    """The seconds of forward and backward passes that are interleaved, as in a pipeline."""
    optimizer_s: float | None = None
    """The seconds of the optimizer in a step."""
    checkpoint_stall_s: float | None = None
    """The seconds of a step in which training waited for a save."""
    certification_s: float | None = None
    """The seconds of checks of computations (`checkpoint.certify`), per step since the record
    before."""
    validation_s: float | None = None
    """The seconds of validation, per step since the record before."""
    other_s: float | None = None
    """The seconds of a step that belong to no other phase."""


@event_kind("mixture")
class MixtureLogged(RunEvent):
    """Rank 0 emits this beside the record of a logged step if several datasets are mixed."""

    step: Count
    """The number of finished steps, this one included."""
    sources: dict[str, Any]
    """For each source, by name: `weight`, its share of the samples that come next; `samples`, those
    that the run has read of it (of packed documents, an estimate within a block); `epochs`, these
    divided by the samples that it has; `tokens`, if documents are packed; and `loss`, the mean
    since the record before, if the training function tells it."""


@event_kind("batch_ramp_changed")
class BatchRampChanged(RunEvent):
    """Rank 0 emits this when the run continues with another ramp of the batch than its checkpoint
    was saved with. The batch is from then on what the new one has after as many samples."""

    step: Count
    """The number of finished steps."""
    before: list[int] | None = None
    """The start, increment, samples and full size of the ramp before; null: there was none."""
    after: list[int] | None = None
    """Those of the ramp from then on; null: the batch has its full size."""


@event_kind("dataset_grown")
class DatasetGrown(RunEvent):
    """Rank 0 emits this when the run continues with a dataset that has more shards than before
    (`data.grow`)."""

    step: Count
    """The number of finished steps."""
    before: Count
    """The number of shards so far."""
    after: Count
    """The number of shards now."""
    position: Count
    """The sample of the stream from which on all of them are read."""
    epoch: Count
    """The epoch, from 0, that begins there."""


@event_kind("mixture_changed")
class MixtureChanged(RunEvent):
    """Rank 0 emits this when sources are mixed by other weights than before."""

    step: Count
    """The number of finished steps; of a stage, those at the first record after it began."""
    position: Count | None = None
    """The sample of the stream from which on the weights are used, if the run resumed with them."""
    before: dict[str, Any]
    """The share of each source before, by name."""
    after: dict[str, Any]
    """The share of each source from then on."""
    reason: str
    """`resume`: the run resumed with other weights; `stage`: a stage of the curriculum began."""


@event_kind("validated")
class Validated(RunEvent):
    """Rank 0 emits this with the results of a validation, which are fields whose names begin with
    `val_`."""

    step: Count
    """The number of finished steps."""
    seconds: Seconds | None = None
    """The seconds that the validation took."""


@event_kind("evaluation_submitted")
class EvaluationSubmitted(RunEvent):
    """The supervisor emits this when it has submitted the evaluation of a checkpoint, or has found
    that a former supervisor did."""

    step: Count
    """The number of finished steps in the checkpoint."""
    id: str
    """The name of the checkpoint in its store."""
    job: str | None = None
    """Slurm's id of the job, of a task of an array with its number; absent outside of Slurm."""
    pid: Count | None = None
    """The process id of the evaluation; absent on Slurm."""


@event_kind("evaluation_skipped")
class EvaluationSkipped(RunEvent):
    """The supervisor emits this when it leaves the evaluation of a checkpoint out."""

    step: Count
    """The number of finished steps in the checkpoint."""
    id: str
    """The name of the checkpoint in its store."""
    why: str
    """The reason, as text for people."""


@event_kind("evaluation_started")
class EvaluationStarted(RunEvent):
    """The process of an evaluation emits this in its own file, each time that it starts."""

    step: Count
    """The number of finished steps in the checkpoint."""
    id: str
    """The name of the checkpoint in its store."""
    host: str
    """The machine."""
    pid: Count
    """The process id."""
    job: str | None = None
    """Slurm's id of the job; absent outside of Slurm."""
    nproc: Count = 1
    """The number of processes that evaluate."""


@event_kind("evaluation_ended")
class EvaluationEnded(RunEvent):
    """The process of an evaluation emits this in its own file, with the metrics, which are fields
    whose names begin with `eval_`."""

    step: Count
    """The number of finished steps in the checkpoint."""
    id: str
    """The name of the checkpoint in its store."""
    seconds: Seconds
    """The seconds since its start."""
    error: str | None = None
    """Why it has failed, as text for people; absent if it has succeeded."""


@event_kind("not_finite")
class NotFinite(RunEvent):
    """Rank 0 emits this when a loss, a norm of gradients or a parameter is NaN or infinite."""

    step: Count
    """The number of the step at which it was found."""
    what: str
    """What is not finite, as text for people."""


@event_kind("spike")
class SpikeFound(RunEvent):
    """Rank 0 emits this when steps in a row are far from those before them, before the attempt ends
    for it."""

    first_step: Count
    """The first step whose samples are left out."""
    step: Count
    """The last one, at which the spike was found."""
    what: str
    """What is far from the steps before, as text for people."""
    first_position: Count
    """The position of the loader before the first step."""
    end_position: Count
    """The position after the last one."""
    is_left_out: bool
    """Whether the run continues without these samples; false: there were too many spikes, or no
    sample would be left."""


@event_kind("update_skipped")
class UpdateSkipped(RunEvent):
    """Rank 0 emits this when a step is far from those before it, so that the optimizer does not
    make it (`heal=skip`)."""

    step: Count
    """The number of the step, from 1."""
    what: str
    """What is far from the steps before, as text for people."""
    is_skipped: bool
    """Whether the run continues without this update; false: there were too many of them."""
    first_position: Count | None = None
    """The position of the loader before the step; none: the loader has no positions."""
    end_position: Count | None = None
    """The position after it."""


@event_kind("certified")
class CheckpointCertified(RunEvent):
    """Rank 0 emits this when every rank has computed the gradients of another one's micro-batch
    and found the same, before the checkpoint of the step is saved."""

    step: Count
    """The number of finished steps."""
    how: str
    """How gradients were compared: `bits`, or `band` where computing them again gives slightly
    different ones."""
    tensors: Count
    """The number of gradients of a rank that were compared."""
    seconds: Seconds
    """The seconds that the check took, on the slowest rank."""
    step_s: Seconds
    """The seconds of a step, on the fastest rank."""
    next_step: Count
    """The least step of the next check."""


@event_kind("wrong_computation")
class WrongComputation(RunEvent):
    """Rank 0 emits this when ranks have computed different gradients from one micro-batch, before
    the attempt ends for it. No checkpoint of the step is saved."""

    step: Count
    """The number of finished steps."""
    good_step: Count
    """The last step of which all ranks computed alike, or at which checks began. Checkpoints that
    were made since are not used."""
    ranks: list[int]
    """The ranks that were wrong; or of which one was, if it is not known which."""
    hosts: list[str]
    """The name of the node of each of them."""
    nodes: list[int]
    """The number of the node of each of them in its job."""
    tensors: list[str]
    """The first of the parameters whose gradients differ."""
    is_persistent: bool
    """Whether they were wrong again when they computed the same once more."""
    is_excluded: bool
    """Whether the node is left out because of it."""
    what: str
    """What was found, as text for people."""


@event_kind("data_bound")
class DataBound(RunEvent):
    """Rank 0 emits this when what limits the loaders has changed."""

    step: Count | None = None
    """The number of finished steps."""
    bound: str
    """What limits the loaders, such as `consumer`, which is training itself."""
    diagnosis: str
    """The diagnosis, as text for people."""


@event_kind("straggler")
class StragglerFound(RunEvent):
    """A rank emits this when it has taken longer than ranks with the same work in several traced
    steps in a row."""

    rank: Count = field(init=False)
    """The rank."""
    host: str
    """The name of its node."""
    step: Count
    """The number of finished steps."""
    z: float
    """The robust z-score of its time."""
    excess: float
    """The share by which its time is longer than that of the others."""
    traces: Count | None = None
    """The number of traced steps in a row."""


@event_kind("straggler_over")
class StragglerOver(RunEvent):
    """A rank that was a straggler emits this when it keeps up again."""

    rank: Count = field(init=False)
    """The rank."""
    host: str | None = None
    """The name of its node."""
    step: Count | None = None
    """The number of finished steps."""


@event_kind("straggler_cost")
class StragglerCost(RunEvent):
    """Rank 0 emits this after each window of traced steps, with what slow nodes have cost in it.
    The lists have one entry for each slow node, the slowest first; a window without a straggler has
    empty ones."""

    step: Count
    """The number of finished steps."""
    traces: Count
    """The number of traced steps."""
    seconds: Seconds
    """The seconds from the begin of the window to its end."""
    step_s: Seconds
    """The median seconds of a traced step."""
    share: float
    """The share of a step that would be saved if the slow nodes were as fast as the others."""
    spread: float
    """The share of a step that would be saved if all ranks were as fast as the median of those with
    the same work, at each step; it includes noise."""
    collectives: float
    """The share of a step in which even the rank that waits least waits for collectives."""
    nodes: list[Count]
    """The numbers of the slow nodes."""
    ranks: list[Count]
    """The slowest rank of each slow node."""
    hosts: list[str]
    """The names of the slow nodes."""
    excesses: list[float]
    """The share by which the own time of each of these ranks is longer than that of the others."""
    phases: list[str]
    """The step phase in which each of these ranks takes longer; `compute` is any of forward and
    backward."""


@event_kind("straggler_evicted")
class StragglerEvicted(RunEvent):
    """The supervisor emits this when it ends a generation, after a save, to replace slow nodes
    (`elastic.evict_stragglers`)."""

    generation: Count = field()
    """The number of the generation."""
    step: Count
    """The number of finished steps at the decision."""
    nodes: list[Count]
    """The numbers of the nodes in their job."""
    hosts: list[str]
    """The names of the nodes."""
    ranks: list[Count]
    """The slowest rank of each node."""
    share: float
    """The share of a step that is expected to be saved."""
    step_s: Seconds
    """The median seconds of a step before."""
    restart_s: Seconds
    """The seconds that the restart is expected to cost."""
    by: str
    """What replaces the nodes: `spare` or `job`."""
    reason: str
    """The reason, as text for people."""


@event_kind("straggler_kept")
class StragglerKept(RunEvent):
    """The supervisor emits this when it does not replace slow nodes although
    `elastic.evict_stragglers` is set, once for each reason in a row."""

    generation: Count = field()
    """The number of the generation."""
    step: Count
    """The number of finished steps."""
    hosts: list[str]
    """The names of the nodes."""
    answer: str
    """The kind of the reason, such as `unproven`, `too_late` or `no_node`."""
    reason: str
    """The reason, as text for people."""


@event_kind("straggler_eviction_result")
class StragglerEvictionResult(RunEvent):
    """The supervisor emits this when enough steps after an eviction were recorded to judge it."""

    step: Count
    """The number of finished steps."""
    hosts: list[str]
    """The names of the nodes that were replaced."""
    before_s: Seconds
    """The median seconds of a step before the eviction."""
    after_s: Seconds
    """The median seconds of a step after it."""
    restart_s: Seconds
    """The seconds from the last step before to the first step after, less one step."""
    saved_s: float
    """The seconds that the run saves until its last step, less the restart; negative: it loses."""
    has_paid: bool
    """Whether the run saves more than the restart took."""


@event_kind("profiled")
class Profiled(RunEvent):
    """A rank emits this when it has written a trace of torch's profiler."""

    steps: str
    """The steps of the trace, as text for people."""
    trace: str
    """The file with the trace."""


@event_kind("canary")
class CanaryEnded(RunEvent):
    """Rank 0 emits this at the end of a canary, which records or compares the first steps of a
    run."""

    steps: Count
    """The number of steps of the canary."""
    recorded: str | None = None
    """The file that the steps were written to, if there was no record to compare with."""
    checked: str | None = None
    """The file with the record that the steps were compared with."""
    largest_difference: float | None = None
    """The largest relative difference from the record."""


@event_kind("tracker_undelivered")
class TrackerUndelivered(RunEvent):
    """Rank 0 emits this when a tracker will not get records: too many wait for it, it rejected
    them, or the attempt has ended."""

    tracker: str
    """The name of the tracker."""
    records: Count
    """The number of these records."""


@event_kind("tracker_back")
class TrackerBack(RunEvent):
    """Rank 0 emits this when a tracker that could not be reached accepts records again."""

    tracker: str
    """The name of the tracker."""


@event_kind("alert_sent")
class AlertSent(RunEvent):
    """The supervisor emits this when a target of alerts has accepted a message."""

    target: str
    """The name of the target: `slack`, `mattermost`, `webhook` or `email`."""
    alert: str
    """The kind of the alert, such as `verdict`."""
    tries: Count
    """The number of tries that it took."""


@event_kind("alert_undelivered")
class AlertUndelivered(RunEvent):
    """The supervisor emits this when a target of alerts will not get messages: it refuses them, too
    many wait for it, or it could not be reached until the end of the run."""

    target: str
    """The name of the target."""
    alerts: list[str]
    """The kinds of these alerts."""
    why: str
    """The reason, as text for people."""


@event_kind("degraded", added=("subject",))
class Degraded(RunEvent):
    """Supervisors, agents and ranks emit this when the run gets less than was requested, and
    continues without it."""

    subject: DegradedSubject | None
    """What is degraded, for programs that read the event."""
    what: str
    """What the run continues without, and why, as text for people."""

    @property
    def is_of_successor(self) -> bool:
        """Whether no job is queued to continue the run. In files of earlier releases, only the text
        tells this."""
        if self.subject is None:
            return any(word in self.what for word in _SUCCESSOR_WORDS)
        return self.subject == DegradedSubject.SUCCESSOR


_SUCCESSOR_WORDS = ("queued", "successor")
"""The words that, in a degradation without a subject, only appear if it is about the successor
job."""


def event_of(time: float, kind: str, fields: Mapping[str, Any]) -> Event:
    """Returns the event of the class of `kind`, or an `UnknownEvent`, with all given fields.

    Args:
        time: in seconds since the epoch.
    """
    return event_taking(time, kind, dict(fields))


def event_taking(time: float, kind: str, fields: dict[str, Any]) -> Event:
    """Does the same as `event_of`, but the event keeps `fields` itself and changes it."""
    if cls := EVENT_KINDS.get(kind):
        return event_with(cls, time, fields)
    fields["kind"] = kind
    return event_with(UnknownEvent, time, fields)
