"""Which variables of a submitter reach Slurm's programs and a job."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
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

MANUAL: dict[str, list[str]] = {
    key: names.split()
    for key, names in yaml.safe_load(
        Path(__file__).with_name("manual_variables.yaml").read_text()
    ).items()
}
USES: tuple[Use, ...] = ("submission", "job", "step", "query")
OF_A_JOB = (
    *("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"),
    *("SLURM_JOB_NAME", "SLURM_JOB_PARTITION", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_SUBMIT_DIR"),
    *("SLURM_TASKS_PER_NODE", "SLURM_CPUS_ON_NODE", "SLURM_GPUS_ON_NODE", "SLURM_RESTART_COUNT"),
    *("SLURM_JOB_END_TIME", "SLURM_CLUSTER_NAME", "SLURM_PROCID", "SLURM_NODEID"),
    *("SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_HET_SIZE"),
    *("SLURM_MEM_PER_NODE", "SLURM_TMPDIR", "SLURMD_NODENAME", "SLURM_TOPOLOGY_ADDR"),
    *("SLURM_NETWORK", "SLURM_CPU_FREQ_REQ", "SLURM_NO_KILL", "SLURM_WORKING_CLUSTER"),
    *("SLURM_JOB_GPUS",),
)
READ_BY_SRUN = (
    *("SLURM_GPUS", "SLURM_GPUS_PER_TASK", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET"),
    *("SLURM_NTASKS_PER_GPU", "SLURM_NTASKS_PER_TRES", "SLURM_NTASKS_PER_CORE", "SLURM_HINT"),
    *("SLURM_DISTRIBUTION", "SLURM_DIST_PLANESIZE", "SLURM_CPUS_PER_TASK", "SLURM_CPUS_PER_GPU"),
    *("SLURM_TRES_PER_TASK", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_GPU", "SLURM_MEM_BIND"),
    *("SLURM_CPU_BIND", "SLURM_NTASKS_PER_NODE", "SLURM_GPU_BIND", "SLURM_TRES_BIND", "SLURM_GRES"),
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
    "HPCKIT_SNAPSHOTS",
)
OF_A_STEP = (
    *("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_STEP_GPUS", "SLURM_LAUNCH_NODE_IPADDR"),
    *("SLURM_SRUN_COMM_HOST", "SLURM_GTIDS", "SLURM_CPU_BIND_TYPE", "SLURM_MEM_BIND_LIST"),
)
OF_SBATCH = ("SBATCH_JOB_NAME", "SBATCH_TIMELIMIT", "SBATCH_EXPORT", "SALLOC_PARTITION")
WANTED_BY_STEPS = {
    "SLURM_CONF": "the controller",
    "SLURM_JOB_ID": "the job that the step belongs to",
    "SLURM_UMASK": "the mask that the job was submitted with",
    **dict.fromkeys(
        ("SLURM_CPU_FREQ_REQ", "SLURM_GPU_FREQ", "SLURM_NETWORK", "SLURM_PROFILE"),
        "a request of the job that holds for its steps",
    ),
    **dict.fromkeys(("SLURM_NO_KILL", "SLURM_OOMKILLSTEP"), "a policy of the job for its steps"),
    **dict.fromkeys(
        ("SLURM_JOB_NAME", "SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_NPROCS", "SLURM_NTASKS"),
        "an option on srun's command line wins",
    ),
    **dict.fromkeys(("SLURM_MEM_PER_NODE", "SLURM_MPI_TYPE"), "--mem and --mpi win"),
}
"""What the srun of an agent reads, with the reason."""
REQUESTS_OF_JOBS = (
    *("SLURM_CPU_BIND", "SLURM_GRES", "SLURM_GRES_FLAGS", "SLURM_HINT", "SLURM_MPI_TYPE"),
    *("SLURM_NO_KILL", "SLURM_TRES_BIND"),
)
"""Options of srun that are facts of a job, too."""
WANTED = (
    *("PATH", "HOME", "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_SACK_SOCKET", "HYDRA_FULL_ERROR"),
    *("NCCL_DEBUG", "OMPI_MCA_btl", "PMIX_MCA_gds", "HPCKIT_PYTHON", "HPCKIT_RUNTIME_DIR"),
    *("HPCKIT_PEER_ADDRESS", "OMP_NUM_THREADS", "RANKS", "MY_SLURM_JOB_ID", "PMI", "LC_ALLOW"),
)
OF_PYTHON = ("PYTHONDONTWRITEBYTECODE",)
EVERYTHING = (
    *OF_A_JOB,
    *READ_BY_SRUN,
    *BREAK_STEPS,
    *OF_QUERIES,
    *OF_LAUNCHERS,
    *OF_A_STEP,
    *OF_SBATCH,
    *WANTED,
    *("SLURM_JWT", "CUDA_VISIBLE_DEVICES", "SUBMITIT_EXECUTOR", "TMPDIR", "LC_ALL"),
    *OF_PYTHON,
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


@pytest.mark.parametrize(
    "name", [*BREAK_STEPS, *OF_QUERIES, *OF_LAUNCHERS, *OF_A_STEP, *OF_SBATCH, *OF_PYTHON]
)
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


def test_each_variable_of_the_manuals_that_a_call_gets_is_wanted_with_a_reason() -> None:
    every = dict.fromkeys((name for names in MANUAL.values() for name in names), "x")
    assert environment_for("submission", every).keys() == {"SLURM_CONF"}
    assert environment_for("query", every).keys() == {"SLURM_CONF", *PARSED}
    read_by_srun = environment_for("step", dict.fromkeys(MANUAL["read_by_srun"], "x"))
    assert read_by_srun.keys() == WANTED_BY_STEPS.keys()
    in_job = environment_for("job", every).keys()
    assert in_job - {*MANUAL["set_by_slurm"]} == {"SLURM_CONF", *REQUESTS_OF_JOBS}
    not_in_job = {*MANUAL["set_by_slurm"]} - in_job
    assert {rule.reason.partition(":")[0] for name in not_in_job if (rule := rule_of(name))} == {
        "is set by srun for the processes of one step",
        "is an option of a command",
    }


def test_a_chain_of_any_length_has_the_search_paths_of_its_first_job() -> None:
    """Of one that a job submits, whose set-up lines add the same folders each time."""
    mine = {"PYTHONPATH": "/r/submissions/001/code:/mine", "PATH": "/bin:/usr/bin", "A": "1:1"}
    mine["DATA_PATH"] = "s3://one/a:s3://two/a"
    counts = {"__LMOD_REF_COUNT_PATH": "/a:1;/b:1", "__MODULES_SHARE_X": "/a:2:/b:2"}
    first = environment_for("submission", mine | counts)
    assert first == {**mine, **counts, "PYTHONPATH": "/mine"}
    env = first
    for _ in range(5):
        job = env | {"SLURM_JOB_ID": "7", "XDG_DATA_DIRS": "/d", "LD_LIBRARY_PATH": "/l"}
        for name, added in (("PATH", "/opt"), ("PYTHONPATH", "/r/t/submissions/012/code")):
            job[name] = f"{added}:{job[name]}"
        env = environment_for("submission", job)
        assert env == {
            **first,
            **{"PATH": "/opt:/bin:/usr/bin", "XDG_DATA_DIRS": "/d", "LD_LIBRARY_PATH": "/l"},
        }
    alone = {"PYTHONPATH": "/r/submissions/012/code", "SLURM_JOB_ID": "7"}
    assert environment_for("submission", alone) == {}


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
