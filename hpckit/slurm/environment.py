"""Determines which environment variables each call of Slurm's programs gets. Pure.

A job starts with the environment of the process that submits it, and Slurm's programs read options
from theirs. So what an allocation, a job step, torchrun, mpiexec or another run has set for itself
would reach the new job, and what a person has set for `squeue` would change the output that is
parsed here. `RULES` decides for each variable; those that no rule names are kept. Search paths are
kept without what the job of the caller has added to them (`hpckit.rundir.search_path`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Literal

from hpckit.rundir.search_path import (
    PYTHON_PATH,
    is_search_path,
    without_repeats,
    without_snapshots,
)

Use = Literal["submission", "job", "step", "query"]
"""What the environment is for.

- `submission`: `sbatch`, whose environment is that of the job; `srun` outside of its job.
- `job`: the processes of a job of ours: supervisor, agents and workers.
- `step`: `srun` itself inside of the job, which gets all its options on the command line.
- `query`: `squeue`, `sinfo`, `scontrol`, `sacct`, `sacctmgr` and `scancel`.
"""

PARSED = {
    "LC_ALL": "C",
    "SLURM_TIME_FORMAT": "standard",
    # own jobs in a hidden partition, and its nodes, are listed only with --all
    **dict.fromkeys(("SCONTROL_ALL", "SINFO_ALL", "SQUEUE_ALL"), "1"),
}
"""Variables that give a query's output the form and the extent that is parsed."""


@dataclass(frozen=True)
class VariableRule:
    """The decision about the variables whose whole name matches a pattern."""

    pattern: str
    kept: frozenset[Use]
    """The uses whose environment has the variables; the others do without."""
    reason: str


def _rule(reason: str, kept: tuple[Use, ...], *patterns: str) -> VariableRule:
    return VariableRule("|".join(patterns), frozenset(kept), reason)


_ALL: tuple[Use, ...] = ("submission", "job", "step", "query")
_IN_JOB: tuple[Use, ...] = ("job", "step")

RULES: tuple[VariableRule, ...] = (
    _rule(
        "tells Slurm's programs where the controller is, and how a node's authentication is used",
        _ALL,
        "SLURM_CONF(_SERVER)?",
        "SLURM_SACK_(SOCKET|KEY|JWKS)",
    ),
    _rule(
        "is a login token of short life: a job authenticates by its node, and would fail by a "
        "token that has expired",
        ("submission", "query"),
        "SLURM_JWT",
    ),
    _rule(
        "is an option of a command: the spec and the command line set all of them, so that "
        "--dry-run shows what Slurm gets",
        (),
        "SBATCH_.*",
        "SALLOC_.*",
        "SRUN_.*",
        "SLURM_CLUSTERS",
    ),
    _rule(
        "changes what a query selects, or how it prints it",
        (),
        "(SQUEUE|SINFO|SCONTROL|SACCT|SACCTMGR|SCANCEL|SPRIO|SSHARE|SDIAG)_.*",
        "SLURM_(TIME_FORMAT|BITSTR_LEN|TOPO_LEN|DEBUG_FLAGS|JSON|YAML)",
        "SLURM_EXIT_(ERROR|IMMEDIATE)",
    ),
    _rule(
        "is set by srun for the processes of one step: the agents' steps set their own, and the "
        "supervisor is in none",
        (),
        "SLURM_STEP_(?!KILLED_MSG).*",
        "SLURM_(CPU|MEM)_BIND_.*",
        "SLURM_(STEPID|GTIDS|SRUN_COMM_HOST|SRUN_COMM_PORT|LAUNCH_NODE_IPADDR)",
    ),
    _rule(
        "describes the job, but srun would read it as a request of the agent's step, which is one "
        "task with all that the job has on the node",
        ("job",),
        "SLURM_GPUS(_PER_(NODE|SOCKET|TASK))?",
        "SLURM_(GPU|TRES|MEM)_BIND.*",
        "SLURM_(GRES|GRES_FLAGS|HINT|OVERCOMMIT|THREADS_PER_CORE)",
        "SLURM_NTASKS_PER_(CORE|GPU|NODE|SOCKET|TRES)",
        "SLURM_(CPUS|MEM|TRES)_PER_(GPU|TASK)",
        "SLURM_DIST(RIBUTION|_PLANESIZE|_LLLP)",
        "SLURM_CPU_BIND.*",
        "SLURM_(EXPORT_ENV|MEM_PER_CPU)",
    ),
    _rule(
        "is an option of srun that no job sets, and that would change the agents' steps or where "
        "their messages go",
        (),
        "SLURM_(ACCOUNT|PARTITION|QOS|RESERVATION|TIMELIMIT|WCKEY|CONSTRAINT|DEPENDENCY|SIGNAL)",
        "SLURM_(LABELIO|UNBUFFEREDIO|STD(OUT|ERR|IN)MODE|OPEN_MODE|DISABLE_STATUS|DEBUG)",
        "SLURM_(PROLOG|EPILOG|TASK_PROLOG|TASK_EPILOG|SRUN_MULTI|SRUN_REDUCE_TASK_EXIT_MSG)",
        "SLURM_(BCAST|BCAST_EXCLUDE|COMPRESS|SEND_LIBS|TEST_EXEC|THREADS|WAIT|WAIT4SWITCH)",
        "SLURM_(EXACT|EXCLUSIVE|OVERLAP|IMMEDIATE|KILL_BAD_EXIT)",
        "SLURM_(CORE_SPEC|THREAD_SPEC|DELAY_BOOT|POWER|REQ_SWITCH|RESV_PORTS)",
        "SLURM_(SPREAD_JOB|SPREAD_SEGMENTS|CONSOLIDATE_SEGMENTS|CLUSTER_CONSTRAINT)",
        "SLURM_(USE_MIN_NODES|ACCTG_FREQ|BURST_BUFFER|WORKING_DIR|REMOTE_CWD|HOSTFILE)",
        "SLURM_(NCORES_PER_SOCKET|NSOCKETS_PER_NODE|EXTERNAL_LAUNCHER|ARBITRARY_NODELIST)",
        "SLURM_STEP_KILLED_MSG_NODE_ID",
        "SLURM_PMI.*",
        "SLURMD_DEBUG",
    ),
    _rule("is set by Slurm for the processes of one job", _IN_JOB, "SLURM_.*", "SLURMD_.*"),
    _rule("is set by submitit for one job", ("job",), "SUBMITIT_.*"),
    _rule(
        "is set by Slurm or a person for the GPUs of one machine",
        ("job", "step", "query"),
        "(CUDA|ROCR|HIP)_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "ZE_AFFINITY_MASK",
    ),
    _rule(
        "is set by torchrun for one worker, or is an option of torchrun",
        (),
        "(LOCAL_|GROUP_|ROLE_)?RANK",
        "(LOCAL_|GROUP_|ROLE_)?WORLD_SIZE",
        "ROLE_NAME",
        "MASTER_(ADDR|PORT)",
        "TORCHELASTIC_.*",
        "PET_.*",
    ),
    _rule("is a setting of Hydra", _ALL, "HYDRA_FULL_ERROR"),
    _rule(
        "is a setting of an MPI library, and not of one launch by it",
        _ALL,
        "PMIX_MCA_.*",
        "OMPI_MCA_(?!(orte|ess|plm|pmix|prte|initial|shmem)_).*",
    ),
    _rule(
        "is set by a launcher of MPI for one process",
        (),
        "PMI(X|[0-9])?_.*",
        "(OMPI|PRTE|HYDRA|HYDI|PALS|ALPS)_.*",
        "MV2_COMM_WORLD_.*",
        "MPI_LOCALN?RANK(S|ID)",
    ),
    _rule(
        "is a wish for the submitter's files: a code snapshot comes without bytecode, and each "
        "process of a job would compile it again",
        (),
        "PYTHONDONTWRITEBYTECODE",
    ),
    _rule(
        "is set by hpckit for the processes of one run",
        (),
        "HPCKIT_(RUN|SUBMISSION|GENERATION|NODES?|JOB|JOB_HOST|STORE_TOKEN|ATTEMPT|DEVICE)",
        "HPCKIT_(BOARD|MEMORY_HERE|HEALTH_CHECK|SERVICE|SNAPSHOTS)",
    ),
)
"""The rules in the order in which they are looked up; the first that matches decides."""

_COMPILED = tuple((re.compile(rule.pattern), rule) for rule in RULES)
_TEMPORARY = ("TMPDIR", "TMP", "TEMP", "TEMPDIR", "XDG_RUNTIME_DIR")


def rule_of(name: str) -> VariableRule | None:
    """Returns the rule that decides about a variable, or None if it is kept everywhere."""
    return next((rule for pattern, rule in _COMPILED if pattern.fullmatch(name)), None)


def environment_for(
    use: Use, env: Mapping[str, str], passed: Collection[str] = ()
) -> dict[str, str]:
    """Returns the environment of a call of Slurm's programs, or of a job's processes.

    Args:
        env: the environment of the process that makes the call.
        passed: names that are kept whatever the rules say (`cluster.slurm.pass_environment`).
    """
    removed = set(removed_variables(use, env, passed))
    found = {name: value for name, value in env.items() if name not in removed}
    if use == "submission":
        found |= {k: v for k, v in shortened_variables(env).items() if k not in removed}
    return found | PARSED if use == "query" else found


def removed_variables(
    use: Use, env: Mapping[str, str], passed: Collection[str] = ()
) -> Iterator[str]:
    """Yields the names of the variables that `environment_for` leaves out."""
    for name in env:
        rule = rule_of(name)
        is_out = rule is not None and use not in rule.kept
        is_of_job = use == "submission" and (_is_of_job(name, env) or _is_of_snapshot(name, env))
        if name not in passed and (is_out or is_of_job):
            yield name


def shortened_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Returns the search paths that a job is submitted with, as far as they are not those of `env`:
    without code snapshots and, from inside of a job, without repeated entries."""
    found = {name: env[name] for name in env if name == PYTHON_PATH}
    found = {name: without_snapshots(value) for name, value in found.items()}
    if "SLURM_JOB_ID" in env:
        paths = {name: found.get(name, env[name]) for name in env if is_search_path(name)}
        found |= {name: without_repeats(value) for name, value in paths.items()}
    return {name: value for name, value in found.items() if value not in ("", env[name])}


def job_facts(env: Mapping[str, str], passed: Collection[str] = ()) -> dict[str, str]:
    """Returns the variables of a job that its workers have, but that srun must not read."""
    hidden = set(removed_variables("step", env, passed))
    job = environment_for("job", env, passed)
    own = (name for name in job if name.startswith("SLURM") and name in hidden)
    return {name: job[name] for name in own}


def leave_submitter(env: MutableMapping[str, str], passed: Collection[str] = ()) -> None:
    """Removes from the environment of a job what its submitter should not have passed to it. A job
    that a person submits with `sbatch` has all of the submitter's variables."""
    for name in list(removed_variables("job", env, passed)):
        del env[name]


def _is_of_job(name: str, env: Mapping[str, str]) -> bool:
    """Returns whether the variable names a temporary folder of the job that this process is in,
    which ends with that job."""
    job = env.get("SLURM_JOB_ID", "")
    pattern = rf"(?<!\d){re.escape(job)}(?!\d)"
    return name in _TEMPORARY and job != "" and re.search(pattern, env[name]) is not None


def _is_of_snapshot(name: str, env: Mapping[str, str]) -> bool:
    """Returns whether the variable has nothing but code snapshots."""
    return name == PYTHON_PATH and env[name] != "" and without_snapshots(env[name]) == ""
