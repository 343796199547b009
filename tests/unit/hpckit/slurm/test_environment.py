"""Which variables of a submitter reach Slurm's programs and a job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.slurm.environment import (
    PARSED,
    RULES,
    Use,
    environment_for,
    job_facts,
    leave_submitter,
    removed_variables,
    rule_of,
)

USES: tuple[Use, ...] = ("submission", "job", "step", "query")
OF_A_JOB = (
    *("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"),
    *("SLURM_JOB_NAME", "SLURM_JOB_PARTITION", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_SUBMIT_DIR"),
    *("SLURM_TASKS_PER_NODE", "SLURM_CPUS_ON_NODE", "SLURM_GPUS_ON_NODE", "SLURM_RESTART_COUNT"),
    *("SLURM_JOB_END_TIME", "SLURM_CLUSTER_NAME", "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_NODEID"),
    *("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_HET_SIZE", "SLURM_LAUNCH_NODE_IPADDR"),
    *("SLURM_MEM_PER_NODE", "SLURM_NTASKS_PER_NODE", "SLURM_TMPDIR", "SLURMD_NODENAME"),
    *("SLURM_SRUN_COMM_HOST", "SLURM_STEP_GPUS", "SLURM_JOB_GPUS", "SLURM_TOPOLOGY_ADDR"),
    *("SLURM_NETWORK", "SLURM_CPU_FREQ_REQ", "SLURM_NO_KILL", "SLURM_WORKING_CLUSTER"),
)
READ_BY_SRUN = (
    *("SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET"),
    *("SLURM_NTASKS_PER_GPU", "SLURM_NTASKS_PER_TRES", "SLURM_NTASKS_PER_CORE", "SLURM_HINT"),
    *("SLURM_DISTRIBUTION", "SLURM_DIST_PLANESIZE", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_PER_GPU"),
    *("SLURM_TRES_PER_TASK", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_BIND"),
    *("SLURM_CPU_BIND", "SLURM_CPU_BIND_TYPE", "SLURM_GPU_BIND", "SLURM_TRES_BIND", "SLURM_GRES"),
    *("SLURM_EXPORT_ENV", "SLURM_THREADS_PER_CORE", "SLURM_OVERCOMMIT"),
)
BREAK_STEPS = (
    *("SLURM_CONSTRAINT", "SLURM_LABELIO", "SLURM_STDOUTMODE", "SLURM_STDERRMODE", "SLURM_EXACT"),
    *("SLURM_STDINMODE", "SLURM_ACCOUNT", "SLURM_PARTITION", "SLURM_QOS", "SLURM_RESERVATION"),
    *("SLURM_TIMELIMIT", "SLURM_WCKEY", "SLURM_EXCLUSIVE", "SLURM_IMMEDIATE", "SLURM_HOSTFILE"),
    *("SLURM_WORKING_DIR", "SLURM_REMOTE_CWD", "SLURM_UNBUFFEREDIO", "SLURM_THREADS", "SLURM_WAIT"),
    *("SLURM_OPEN_MODE", "SLURM_TASK_PROLOG", "SLURM_SRUN_MULTI", "SLURM_KILL_BAD_EXIT"),
    *("SRUN_EXPORT_ENV", "SRUN_CONTAINER", "SRUN_OUTPUT", "SLURM_DEBUG", "SLURM_DISABLE_STATUS"),
)
OF_QUERIES = (
    *("SQUEUE_FORMAT", "SQUEUE_FORMAT2", "SQUEUE_SORT", "SQUEUE_STATES", "SQUEUE_PARTITION"),
    *("SINFO_FORMAT", "SINFO_PARTITION", "SCONTROL_FEDERATION", "SACCT_FORMAT", "SCANCEL_STATE"),
    *("SCANCEL_INTERACTIVE", "SCANCEL_NAME", "SLURM_BITSTR_LEN", "SLURM_EXIT_ERROR"),
    *("SLURM_DEBUG_FLAGS", "SLURM_CLUSTERS", "SACCTMGR_X", "SLURM_TOPO_LEN"),
)
OF_LAUNCHERS = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "PET_NNODES", "PMI_RANK", "PMI2_X"),
    *("PMIX_NAMESPACE", "PMIX_SERVER_URI21", "OMPI_COMM_WORLD_RANK", "OMPI_MCA_orte_hnp_uri"),
    *("OMPI_MCA_ess_base_jobid", "HYDRA_HOST_FILE", "HYDRA_LAUNCHER", "HYDI_CONTROL_FD"),
    *("MPI_LOCALRANKID", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_RANK", "PALS_RANKID"),
    *("HPCKIT_RUN", "HPCKIT_NODE", "HPCKIT_STORE_TOKEN", "HPCKIT_JOB", "HPCKIT_SERVICE"),
)
OF_SBATCH = ("SBATCH_JOB_NAME", "SBATCH_TIMELIMIT", "SBATCH_EXPORT", "SALLOC_PARTITION")
WANTED = (
    *("PATH", "HOME", "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_SACK_SOCKET", "HYDRA_FULL_ERROR"),
    *("NCCL_DEBUG", "OMPI_MCA_btl", "PMIX_MCA_gds", "HPCKIT_PYTHON", "HPCKIT_RUNTIME_DIR"),
    *("HPCKIT_PEER_ADDRESS", "OMP_NUM_THREADS", "RANKS", "MY_SLURM_JOB_ID", "PMI", "LC_ALLOW"),
)
EVERYTHING = (
    *OF_A_JOB,
    *READ_BY_SRUN,
    *BREAK_STEPS,
    *OF_QUERIES,
    *OF_LAUNCHERS,
    *OF_SBATCH,
    *WANTED,
    *("SLURM_JWT", "CUDA_VISIBLE_DEVICES", "SUBMITIT_EXECUTOR", "TMPDIR", "LC_ALL"),
)
ENVIRONMENTS = st.dictionaries(
    st.sampled_from(EVERYTHING) | st.from_regex(r"[A-Z_]{1,12}", fullmatch=True), st.text()
)


def kept(name: str) -> set[str]:
    """The uses that have a variable."""
    return {use for use in USES if name in environment_for(use, {name: "x"})}


@pytest.mark.parametrize("name", WANTED)
def test_what_is_of_no_job_and_no_command_is_kept(name: str) -> None:
    assert kept(name) == set(USES)


@pytest.mark.parametrize("name", OF_A_JOB)
def test_what_slurm_sets_in_a_job_stays_in_that_job(name: str) -> None:
    assert kept(name) == {"job", "step"}


@pytest.mark.parametrize("name", READ_BY_SRUN)
def test_a_request_of_the_job_is_hidden_from_srun_and_known_to_the_workers(name: str) -> None:
    assert kept(name) == {"job"}
    assert job_facts({name: "1", "A": "b"}) == {name: "1"}


@pytest.mark.parametrize("name", [*BREAK_STEPS, *OF_QUERIES, *OF_LAUNCHERS, *OF_SBATCH])
def test_an_option_of_a_command_or_a_fact_of_another_launch_is_gone(name: str) -> None:
    assert kept(name) == set()
    assert job_facts({name: "1"}) == {}


def test_the_gpus_of_the_submitter_are_not_those_of_the_job() -> None:
    assert kept("CUDA_VISIBLE_DEVICES") == {"job", "step", "query"}


def test_a_token_of_short_life_is_not_what_a_long_job_authenticates_by() -> None:
    assert kept("SLURM_JWT") == {"submission", "query"}


def test_the_temporary_folder_of_the_job_that_submits_is_left_out_and_another_is_not() -> None:
    here = {"SLURM_JOB_ID": "12", "TMPDIR": "/tmp/slurm.12", "TEMP": "/tmp/u/112", "TMP": "/tmp"}
    assert environment_for("submission", here) == {"TEMP": "/tmp/u/112", "TMP": "/tmp"}
    assert environment_for("step", here) == here
    assert environment_for("submission", {"TMPDIR": "/tmp/slurm.12"}) == {"TMPDIR": "/tmp/slurm.12"}


def test_the_output_that_is_parsed_depends_on_no_variable() -> None:
    env = {"LC_ALL": "de_DE", "SLURM_TIME_FORMAT": "relative", "SQUEUE_FORMAT": "%i", "A": "b"}
    assert environment_for("query", env) == {"A": "b", **PARSED}


def test_a_site_may_pass_a_variable_on() -> None:
    env = {"SLURM_MPI_TYPE": "pmix", "PMI_X": "1"}
    assert environment_for("submission", env, ("SLURM_MPI_TYPE",)) == {"SLURM_MPI_TYPE": "pmix"}


def test_each_rule_says_why_and_decides_about_something() -> None:
    decided = {id(rule_of(name)) for name in EVERYTHING}
    for rule in RULES:
        assert rule.reason.startswith(("is ", "tells ", "changes ", "describes "))
        assert id(rule) in decided, rule.pattern


@given(ENVIRONMENTS, st.sampled_from(USES))
def test_it_is_idempotent_and_changes_no_value(env: dict[str, str], use: Use) -> None:
    once = environment_for(use, env)
    assert environment_for(use, once) == once
    added = PARSED if use == "query" else {}
    assert all(once[name] == env[name] for name in once.keys() - added.keys())
    assert set(removed_variables(use, env)) == env.keys() - (
        once.keys() - (added.keys() - env.keys())
    )


@given(ENVIRONMENTS)
def test_a_successor_is_submitted_from_a_job_as_the_job_was_from_a_login_node(
    env: dict[str, str],
) -> None:
    job = dict(env)
    leave_submitter(job)
    assert environment_for("submission", job).items() <= environment_for("submission", env).items()
    assert not set(WANTED) & env.keys() - environment_for("submission", job).keys()
    facts, step = job_facts(job), environment_for("step", job)
    assert facts | step == {k: v for k, v in job.items() if not k.startswith("SUBMITIT_")}
