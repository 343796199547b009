"""Decides what becomes of the variables by which `sbatch` takes options.

sbatch prefers them to the options in a batch script, so a job would not be what the spec and
--dry-run say. They are never passed to sbatch. Instead, each is taken into the spec if the spec
leaves that open, has no effect, which a note says, or refuses the launch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hpckit.config.spec import RunSpec, SlurmSpec
from hpckit.config.spec_parser import SpecError, parse_spec, spec_values
from hpckit.slurm.scontrol import cluster_name
from hpckit.text.slurm_times import format_time, parse_time

Treatment = Literal["key", "option", "flag", "unused", "refused", "silent"]
"""What becomes of a variable.

- `key`: a null key of `cluster.slurm` gets its value.
- `option`: an option of `cluster.slurm.options` that is not given gets its value.
- `flag`: as `option`, for an option without a value.
- `unused`: it has no effect, and a note says so.
- `refused`: nothing is submitted.
- `silent`: it has no effect on the job, with or without hpckit.
"""


@dataclass(frozen=True)
class SbatchVariable:
    """The decision about one variable."""

    treatment: Treatment
    name: str = ""
    """The key of `cluster.slurm`, or the option of sbatch."""
    reason: str = ""
    """Why it has no effect or is refused: the end of a sentence."""


_SIZE = "cluster.slurm.gpus, gpu_type and launch.nproc_per_node request the GPUs"
_TASKS = "hpckit runs one agent on each node, which starts the workers"
_LOGS = "the job writes to the run directory"
_CONTAINER = "cluster.slurm.container sets the container of a run"
_OTHER_CLUSTER = (
    "hpckit would not find its jobs on another cluster: unset it, and launch on a login node of "
    "that cluster"
)

_KEYS = {
    **{"ACCOUNT": "account", "PARTITION": "partition", "QOS": "qos", "CONSTRAINT": "constraint"},
    **{"RESERVATION": "reservation", "TIMELIMIT": "time_limit", "MEM_PER_NODE": "memory"},
}
_OPTIONS = {
    **{"ACCTG_FREQ": "acctg-freq", "BATCH": "batch", "BURST_BUFFER": "bb", "HINT": "hint"},
    **{"CORE_SPEC": "core-spec", "THREAD_SPEC": "thread-spec", "CPU_FREQ_REQ": "cpu-freq"},
    **{"DELAY_BOOT": "delay-boot", "GRES_FLAGS": "gres-flags", "GPU_FREQ": "gpu-freq"},
    **{"NETWORK": "network", "POWER": "power", "PROFILE": "profile", "WCKEY": "wckey"},
    **{"REQ_SWITCH": "switches", "WAIT_ALL_NODES": "wait-all-nodes", "SEGMENT_SIZE": "segment"},
    **{"THREADS_PER_CORE": "threads-per-core", "MEM_PER_CPU": "mem-per-cpu"},
    **{"MEM_PER_GPU": "mem-per-gpu", "CPUS_PER_GPU": "cpus-per-gpu"},
}
_FLAGS = {
    **{"SPREAD_JOB": "spread-job", "USE_MIN_NODES": "use-min-nodes"},
    **{"CONSOLIDATE_SEGMENTS": "consolidate-segments", "SPREAD_SEGMENTS": "spread-segments"},
}
_UNUSED = {
    "JOB_NAME": "the job has the name of the run",
    "ARRAY_INX": "an array is a sweep, which -m starts",
    **dict.fromkeys(("OUTPUT", "ERROR", "INPUT", "OPEN_MODE"), _LOGS),
    "SIGNAL": "cluster.slurm.notice_s sets the signal before the time limit",
    **dict.fromkeys(("REQUEUE", "NO_REQUEUE"), "launch.continuation decides about a requeue"),
    "NO_KILL": "elastic decides whether the job survives the loss of a node",
    **dict.fromkeys(
        ("EXPORT", "GET_USER_ENV"),
        "the job gets the environment of this shell without what other jobs have set in it",
    ),
    "WAIT": "hpckit status and hpckit logs -f follow a job",
    "EXCLUSIVE": "cluster.slurm.exclusive decides about it",
    **dict.fromkeys(("GPUS", "GPUS_PER_NODE", "GPUS_PER_SOCKET", "GPUS_PER_TASK", "GRES"), _SIZE),
    **dict.fromkeys(("DISTRIBUTION", "OVERCOMMIT", "TRES_PER_TASK"), _TASKS),
    **dict.fromkeys(("GPU_BIND", "TRES_BIND", "MEM_BIND"), _TASKS),
}
_REFUSED = {
    **dict.fromkeys(("CLUSTERS", "CLUSTER_CONSTRAINT"), _OTHER_CLUSTER),
    **dict.fromkeys(("CONTAINER", "CONTAINER_ID", "RUNTIME"), f"{_CONTAINER}: unset it"),
    "WAIT4SWITCH": "cluster.slurm.options={switches: COUNT@TIME} sets it: unset it",
}
TABLE: dict[str, SbatchVariable] = {
    **{f"SBATCH_{name}": SbatchVariable("key", key) for name, key in _KEYS.items()},
    **{f"SBATCH_{name}": SbatchVariable("option", key) for name, key in _OPTIONS.items()},
    **{f"SBATCH_{name}": SbatchVariable("flag", key) for name, key in _FLAGS.items()},
    **{f"SBATCH_{name}": SbatchVariable("unused", "", why) for name, why in _UNUSED.items()},
    **{f"SBATCH_{name}": SbatchVariable("refused", "", why) for name, why in _REFUSED.items()},
    **{f"SBATCH_{name}": SbatchVariable("silent") for name in ("DEBUG", "IGNORE_PBS")},
    "SLURM_CLUSTERS": SbatchVariable("refused", "", _OTHER_CLUSTER),
}
"""Every variable that sbatch of Slurm 22.05 to 26.05 reads as an option."""

_CLUSTERS = ("SBATCH_CLUSTERS", "SLURM_CLUSTERS")
_UNKNOWN = SbatchVariable("unused", "", "hpckit does not know it, and sbatch does not get it")
_GPU_WORD = re.compile(r"(gres[:/])?gpu([:=].*)?")
_SAME_RESOURCE = {
    "mem-per-cpu": "memory",
    "mem-per-gpu": "memory",
    "cpus-per-gpu": "cpus_per_node",
}
"""The keys that set the resource of an option in another way."""


@dataclass(frozen=True)
class SbatchDefaults:
    """What the variables of a shell add to a spec."""

    values: dict[str, Any]
    """Values by keys of `cluster.slurm`."""
    options: dict[str, str | bool]
    """Further options of sbatch."""
    notes: list[str]
    problems: list[str]


def with_sbatch_variables(
    spec: RunSpec,
    env: Mapping[str, str],
    local_cluster: Callable[[], str | None] = cluster_name,
) -> tuple[RunSpec, list[str]]:
    """Returns the spec with what the variables of `env` set that the spec leaves open, and notes
    that name each variable that was taken or has no effect.

    Args:
        local_cluster: returns Slurm's name of the cluster of this machine; it is called if a
            variable names a cluster.

    Raises:
        SpecError: a variable asks for what hpckit cannot give, or its value is not valid.
    """
    if spec.cluster.slurm is None:
        return spec, []
    here = local_cluster() if any(env.get(name) for name in _CLUSTERS) else None
    wants_gpus = spec.cluster.device != "cpu"
    found = sbatch_defaults(spec.cluster.slurm, env, wants_gpus=wants_gpus, local_cluster=here)
    if found.problems:
        raise SpecError(found.problems)
    if not (found.values or found.options):
        return spec, found.notes
    values = spec_values(spec)
    slurm = values["cluster"]["slurm"]
    slurm |= found.values
    slurm["options"] = {**slurm["options"], **found.options}
    try:
        return parse_spec(values, may_override=True), found.notes
    except SpecError as error:
        raise SpecError([*found.notes, *error.violations]) from None


def sbatch_defaults(
    slurm: SlurmSpec,
    env: Mapping[str, str],
    *,
    wants_gpus: bool,
    local_cluster: str | None = None,
) -> SbatchDefaults:
    """Returns what the variables of `env` add to a spec. Pure.

    Args:
        wants_gpus: whether the run may use GPUs.
        local_cluster: Slurm's name of the cluster of this machine; None: unknown.
    """
    found = SbatchDefaults({}, {}, [], [])
    for name, value in _given(env):
        it, shown = TABLE.get(name, _UNKNOWN), f"{name}={value}"
        problem = _gpu_problem(name, value, slurm, wants_gpus=wants_gpus)
        if name in _CLUSTERS and value.strip() == local_cluster:
            found.notes.append(f"{shown} has no effect: it names the cluster of this machine")
        elif it.treatment == "refused" or problem:
            found.problems.append(f"{shown}: {problem or it.reason}")
        elif it.treatment == "unused":
            found.notes.append(f"{shown} has no effect: {it.reason}")
        elif it.treatment != "silent" and (why := _set_otherwise(it, slurm)) is not None:
            found.notes.append(f"{shown} has no effect: {why} is set")
        elif it.treatment == "key":
            _take_key(found, it.name, name, value)
        elif it.treatment in ("option", "flag"):
            found.options[it.name] = True if it.treatment == "flag" else value
            found.notes.append(f"cluster.slurm.options.{it.name} is taken from {shown}")
    return found


def _given(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yields the variables that this decides about, without those that Slurm sets in a job."""
    for name in sorted(env):
        is_ours = name.startswith("SBATCH_") or name == "SLURM_CLUSTERS"
        is_output = re.fullmatch(r"SBATCH_(CPU|MEM)_BIND_\w+", name) is not None
        has_value = env[name] != "" or TABLE.get(name, _UNKNOWN).treatment == "flag"
        if is_ours and has_value and not is_output:
            yield name, env[name]


def _take_key(found: SbatchDefaults, key: str, name: str, value: str) -> None:
    taken: str | None = value
    if key == "time_limit":
        taken = time_limit_of(value)
    elif key == "memory" and value.isdigit():
        taken = f"{value}M"
    if taken is None:
        found.problems.append(
            f"{name}={value}: must be a limited time, such as 12:00:00; unset it, or set "
            "cluster.slurm.time_limit"
        )
        return
    found.values[key] = taken
    found.notes.append(f"cluster.slurm.{key} is taken from {name}={value}")


def _set_otherwise(it: SbatchVariable, slurm: SlurmSpec) -> str | None:
    """Returns the key that sets what the variable would set, or None."""
    if it.treatment == "key":
        others = [option for option, key in _SAME_RESOURCE.items() if key == it.name]
        given = next((f"options.{option}" for option in others if option in slurm.options), None)
        name = it.name if getattr(slurm, it.name) is not None else given
        return None if name is None else f"cluster.slurm.{name}"
    if it.name in slurm.options:
        return f"cluster.slurm.options.{it.name}"
    key = _SAME_RESOURCE.get(it.name)
    return f"cluster.slurm.{key}" if key and getattr(slurm, key) is not None else None


def _gpu_problem(name: str, value: str, slurm: SlurmSpec, *, wants_gpus: bool) -> str | None:
    """Returns why a request for GPUs or for other generic resources cannot be left out."""
    if name == "SBATCH_GRES":
        others = [word for word in value.split(",") if not _GPU_WORD.fullmatch(word.strip())]
        if others and value.lower() not in ("none", ""):
            return f"no key of the spec requests {','.join(others)}: unset it"
    is_gpu = name == "SBATCH_GRES" or name.startswith("SBATCH_GPUS")
    if is_gpu and wants_gpus and slurm.gpus == "none" and value.lower() not in ("none", "", "0"):
        return "cluster.slurm.gpus=none requests no GPUs: set it to gpus-per-node or gres, or unset"
    return None


def time_limit_of(text: str) -> str | None:
    """Returns a time of sbatch as cluster.slurm.time_limit has it; None: it is unlimited, as 0 is,
    or not a time."""
    seconds = parse_time(text.strip())
    return format_time(seconds) if seconds else None
