"""What becomes of the variables by which sbatch takes options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.config.spec_parser import SpecError, parse_spec, spec_values
from hpckit.slurm.environment import environment_for
from hpckit.slurm.sbatch_variables import TABLE, time_limit_of, with_sbatch_variables
from hpckit.submit.batch_script import BatchJob, minutes, parameters
from tests.unit.hpckit.specs_and_processes import make_spec

# What sbatch of 26.05 reads, from its list of variables
READ = re.findall(
    r"\w+",
    """
ACCOUNT ACCTG_FREQ ARRAY_INX BATCH BURST_BUFFER CLUSTERS CLUSTER_CONSTRAINT CONSOLIDATE_SEGMENTS
CONSTRAINT CONTAINER CONTAINER_ID CORE_SPEC CPUS_PER_GPU CPU_FREQ_REQ DEBUG DELAY_BOOT
DISTRIBUTION ERROR EXCLUSIVE EXPORT GET_USER_ENV GPUS GPUS_PER_NODE GPUS_PER_SOCKET GPUS_PER_TASK
GPU_BIND GPU_FREQ GRES GRES_FLAGS HINT IGNORE_PBS INPUT JOB_NAME MEM_BIND MEM_PER_CPU MEM_PER_GPU
MEM_PER_NODE NETWORK NO_KILL NO_REQUEUE OPEN_MODE OUTPUT OVERCOMMIT PARTITION POWER PROFILE QOS
REQUEUE REQ_SWITCH RESERVATION RUNTIME SEGMENT_SIZE SIGNAL SPREAD_JOB SPREAD_SEGMENTS
THREADS_PER_CORE THREAD_SPEC TIMELIMIT TRES_BIND TRES_PER_TASK USE_MIN_NODES WAIT WAIT4SWITCH
WAIT_ALL_NODES WCKEY
""",
)


NO_GPUS = {"cluster.device": "cuda", "cluster.slurm.gpus": "none"}


def taken(env: dict[str, str], changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """The values of `cluster.slurm` that the variables change."""
    spec = make_spec(changes or {}, "slurm")
    found, _ = with_sbatch_variables(spec, env)
    before, after = (spec_values(one)["cluster"]["slurm"] for one in (spec, found))
    return {key: value for key, value in after.items() if value != before[key]}


def notes(env: dict[str, str], changes: dict[str, Any] | None = None) -> list[str]:
    return with_sbatch_variables(make_spec(changes or {}, "slurm"), env)[1]


@pytest.mark.parametrize("name", ["SBATCH_CLUSTERS", "SLURM_CLUSTERS"])
def test_a_variable_that_names_the_cluster_of_this_machine_has_no_effect(name: str) -> None:
    spec = make_spec({}, "slurm")
    found, said = with_sbatch_variables(spec, {name: "here"}, lambda: "here")
    assert found == spec
    assert said == [f"{name}=here has no effect: it names the cluster of this machine"]
    for named in ("here,there", "all", "there"):
        with pytest.raises(SpecError, match="on another cluster"):
            with_sbatch_variables(spec, {name: named}, lambda: "here")


def test_every_variable_that_sbatch_reads_is_decided_about() -> None:
    assert set(TABLE) == {f"SBATCH_{name}" for name in READ} | {"SLURM_CLUSTERS"}
    for name, it in TABLE.items():
        assert bool(it.reason) is (it.treatment in ("unused", "refused")), name
        assert bool(it.name) is (it.treatment in ("key", "option", "flag")), name


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("ACCOUNT", "physics", {"account": "physics"}),
        ("PARTITION", "gpu", {"partition": "gpu"}),
        ("QOS", "long", {"qos": "long"}),
        ("RESERVATION", "mine", {"reservation": "mine"}),
        ("CONSTRAINT", "a&b", {"constraint": "a&b"}),
        ("TIMELIMIT", "90", {"time_limit": "01:30:00"}),
        ("MEM_PER_NODE", "4096", {"memory": "4096M"}),
        ("MEM_PER_NODE", "64G", {"memory": "64G"}),
        ("WCKEY", "w", {"options": {"wckey": "w"}}),
        ("HINT", "nomultithread", {"options": {"hint": "nomultithread"}}),
        ("MEM_PER_CPU", "4G", {"options": {"mem-per-cpu": "4G"}}),
        ("SPREAD_JOB", "", {"options": {"spread-job": True}}),
    ],
)
def test_what_the_spec_leaves_open_is_taken_into_it_and_told(
    name: str, value: str, expected: dict[str, Any]
) -> None:
    env = {f"SBATCH_{name}": value}
    assert taken(env) == expected
    (line,) = notes(env)
    assert line.endswith(f"is taken from SBATCH_{name}={value}")
    again, _ = with_sbatch_variables(make_spec({}, "slurm"), env)
    assert with_sbatch_variables(again, env)[0] == again


@pytest.mark.parametrize(
    ("name", "value", "key", "by_config"),
    [
        ("ACCOUNT", "a", "account", "b"),
        ("TIMELIMIT", "5", "time_limit", "12:00:00"),
        ("MEM_PER_NODE", "1", "memory", "2G"),
        ("MEM_PER_CPU", "1", "memory", "2G"),
        ("MEM_PER_NODE", "1", "options", {"mem-per-cpu": "2G"}),
        ("CPUS_PER_GPU", "1", "cpus_per_node", 8),
        ("WCKEY", "a", "options", {"wckey": "b"}),
    ],
)
def test_the_config_is_stronger_than_the_shell(
    name: str, value: str, key: str, by_config: Any
) -> None:
    env, changes = {f"SBATCH_{name}": value}, {f"cluster.slurm.{key}": by_config}
    assert taken(env, changes) == {}
    (line,) = notes(env, changes)
    assert re.match(
        rf"SBATCH_{name}={value} has no effect: cluster.slurm.{key}[\w.-]* is set", line
    )


@pytest.mark.parametrize("name", [n for n, it in TABLE.items() if it.treatment == "unused"])
def test_what_the_run_sets_itself_has_no_effect_and_is_told(name: str) -> None:
    assert taken({name: "gpu:1"}) == {}
    (line,) = notes({name: "gpu:1"})
    assert line == f"{name}=gpu:1 has no effect: {TABLE[name].reason}"


def test_an_unknown_one_is_told_and_silent_ones_are_not() -> None:
    assert "does not know" in notes({"SBATCH_NEW": "1"})[0]
    silent = {"SBATCH_DEBUG": "1", "SBATCH_MEM_BIND_TYPE": "none", "SBATCH_ACCOUNT": "", "A": "b"}
    assert notes(silent) == []
    assert taken(silent) == {}


@pytest.mark.parametrize(
    ("env", "changes", "said"),
    [
        ({"SBATCH_CLUSTERS": "b"}, {}, "another cluster"),
        ({"SLURM_CLUSTERS": "b"}, {}, "SLURM_CLUSTERS=b: hpckit would not find"),
        ({"SBATCH_CONTAINER": "/x"}, {}, "cluster.slurm.container"),
        ({"SBATCH_TIMELIMIT": "UNLIMITED"}, {}, "SBATCH_TIMELIMIT=UNLIMITED: must be a limited"),
        ({"SBATCH_GRES": "gpu:2,nvme:1"}, {}, "no key of the spec requests nvme:1"),
        ({"SBATCH_GPUS": "2"}, NO_GPUS, "cluster.slurm.gpus=none"),
        ({"SBATCH_MEM_PER_NODE": "lots"}, {}, "cluster.slurm.memory"),
    ],
)
def test_what_hpckit_cannot_give_is_refused(
    env: dict[str, str], changes: dict[str, Any], said: str
) -> None:
    spec = make_spec(changes, "slurm")
    with pytest.raises(SpecError) as caught:
        with_sbatch_variables(spec, env)
    assert any(said in line for line in caught.value.violations)


def test_a_run_on_this_machine_is_not_concerned() -> None:
    spec = make_spec({}, "local")
    assert with_sbatch_variables(spec, {"SBATCH_CLUSTERS": "b"}) == (spec, [])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90", "01:30:00"),
        ("90:30", "01:30:30"),
        ("12:00:00", "12:00:00"),
        ("1-12", "1-12:00:00"),
        ("1-12:30", "1-12:30:00"),
        ("2-00:00:00", "2-00:00:00"),
        ("50:00:00", "2-02:00:00"),
        *((text, None) for text in ("0", "infinite", "UNLIMITED", "", "x", "1-", "1:2:3:4", "-1")),
    ],
)
def test_a_time_of_sbatch_is_one_of_the_config(text: str, expected: str | None) -> None:
    assert time_limit_of(text) == expected


@given(st.integers(1, 10**6))
def test_a_time_keeps_its_length(total: int) -> None:
    assert minutes(time_limit_of(str(total)) or "") == total


@given(st.dictionaries(st.sampled_from(sorted(TABLE)), st.sampled_from(["1", "gpu:1", "2-00"])))
def test_the_script_has_all_that_sbatch_gets(env: dict[str, str]) -> None:
    """Of the variables nothing is left for sbatch, and a spec that is accepted is a valid one."""
    assert environment_for("submission", env) == {}
    spec = make_spec({}, "slurm")
    try:
        found, lines = with_sbatch_variables(spec, env)
    except SpecError:
        return  # it is submitted with nothing
    assert parse_spec(spec_values(found)) == found
    silent = sum(TABLE[name].treatment == "silent" for name in env)
    assert len(lines) == len(env) - silent
    place = BatchJob("name", Path("/run"), Path("/run/log"), "code")
    assert parameters(found, place)["job_name"] == "name"
