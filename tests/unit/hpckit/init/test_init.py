"""What `hpckit init` makes of the texts of a Slurm, and that it never overwrites."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from hpckit.cli.common.exit_status import OUT_OF_REACH
from hpckit.cli.main import app
from hpckit.config.spec_parser import SpecError
from hpckit.doctor.machine import MachineFacts
from hpckit.doctor.scratch_disks import ScratchDisk, kind_of
from hpckit.init import project_files
from hpckit.init.site_choice import SiteRequest, choose_site
from hpckit.init.site_facts import SiteFacts, parse_accounts, parse_walls
from hpckit.init.site_file import is_name, render, scalar, site_name
from hpckit.slurm.cluster_config import gpu_kinds, parse_config, parse_records
from hpckit.submit.compose import compose_spec
from tests.effort import times
from tests.unit.hpckit.doctor.test_doctor import CONFIG, GOOD

PARTITIONS = """PartitionName=cpu Default=YES MaxTime=UNLIMITED PreemptMode=OFF State=UP
PartitionName=gpu GraceTime=120 MaxTime=2-00:00:00 PreemptMode=REQUEUE State=UP \
MaxMemPerNode=UNLIMITED
PartitionName=big MaxTime=12:00:00 PreemptMode=OFF State=UP OverSubscribe=EXCLUSIVE
""".replace("\\\n", "")
NODES = """NodeName=c1 CPUTot=64 Gres=(null) RealMemory=257000 Partitions=cpu OS=Linux 6.1.0 #1 SMP
NodeName=g1 CPUTot=128 CPUEfctv=126 AvailableFeatures=a100,ib Gres=gpu:a100:4(S:0-1) \
RealMemory=515000 MemSpecLimit=3000 Partitions=gpu,big
NodeName=g2 CPUTot=128 AvailableFeatures=a100 Gres=gpu:a100:4(S:0,1),nvme:1 RealMemory=515000 \
Partitions=gpu
NodeName=g3 CPUTot=32 AvailableFeatures=(null) Gres=gpu:3090:8 RealMemory=128000 Partitions=gpu
""".replace("\\\n", "")
FACTS = SiteFacts(
    config={**parse_config(CONFIG), "SelectType": "select/cons_tres", "ClusterName": "My Cluster"},
    partitions=parse_records(PARTITIONS),
    nodes=parse_records(NODES),
    accounts=parse_accounts("physics\n", "physics|normal,long|normal\nchem|normal|\n"),
    walls=dict(parse_walls("normal|1-00:00:00\nlong|\n")),
    has_pyxis=False,
)
NODE = replace(
    GOOD,
    interfaces=("eth0", "ib0"),
    scratch=(ScratchDisk("/local", 800 << 30),),
    containers=("apptainer",),
)


def keys(
    facts: SiteFacts = FACTS, machine: MachineFacts = NODE, **wanted: str
) -> dict[str, tuple[Any, str, str]]:
    site = choose_site(facts, machine, True, SiteRequest(**wanted))
    return {key.name: (key.value, key.how, key.why) for key in site.keys}


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"LOADEDMODULES": "cuda/12:gcc/14"}, ["for any shell: [module load cuda/12 gcc/14]"]),
        ({"CONDA_PREFIX": "/c"}, ["conda's /c is active", "slurm.python names another one"]),
        ({"LOADEDMODULES": "a", "CONDA_PREFIX": "/c"}, ["[module load a]; conda's /c is active"]),
        ({"LOADEDMODULES": "", "CONDA_PREFIX": ""}, None),
    ],
)
def test_modules_and_environments_of_the_shell_are_noted_at_the_set_up_lines(
    env: dict[str, str], words: list[str] | None
) -> None:
    site = choose_site(FACTS, NODE, True, SiteRequest(), env)
    found = [key for key in site.keys if key.name == "setup"]
    assert [key.value for key in found] == ([] if words is None else [()])
    assert all(word in key.why for key in found for word in words or ())


def test_a_partition_with_gpus_comes_before_a_default_without() -> None:
    told = keys()
    assert told["partition"][:2] == ("gpu", "assumed")
    assert "others: cpu, big" in told["partition"][2]
    assert told["account"][0] == "physics"
    assert "others: chem" in told["account"][2]
    assert (told["qos"][0], "normal is your default" in told["qos"][2]) == (None, True)
    assert told["grace_s"][0] == 115, "GraceTime less the time that Slurm needs"
    assert told["time_limit"] == ("1-00:00:00", "found", "MaxWall of your QOS normal")
    assert told["gpus"][0] == "gpus-per-node"
    assert told["gpu_type"][:2] == ("a100", "assumed")
    assert "4 x a100 on 2 nodes, 8 x 3090 on 1 node" in told["gpus"][2]
    assert told["cpus_per_node"][0] == 126, "of the nodes with this type"
    assert told["memory"][0] == "512000M"
    assert "a100, ib" in told["constraint"][2]
    assert (told["interface"][0], told["scratch"][0]) == ("ib0", "/local")
    assert "apptainer" in told["container"][2]
    assert "exclusive" not in told


def test_what_was_said_wins_and_each_partition_has_its_own() -> None:
    told = keys(partition="big", account="chem")
    assert told["partition"][:2] == ("big", "found")
    assert told["account"][0] == "chem"
    assert told["time_limit"][0] == "12:00:00"
    assert told["exclusive"][0] is True
    assert (told["grace_s"][0], told["grace_s"][1]) == (60, "assumed")
    told = keys(partition="cpu")
    assert told["gpus"][:2] == ("none", "assumed")
    assert (told["time_limit"][0], told["memory"][0]) == ("1-00:00:00", "257000M")


def test_a_hidden_partition_is_taken_only_by_its_name() -> None:
    hidden = replace(
        FACTS, partitions=parse_records(PARTITIONS.replace("=gpu ", "=gpu Hidden=YES "))
    )
    assert keys(hidden)["partition"][0] == "big"
    assert "gpu" not in keys(hidden)["partition"][2].partition(";")[2]
    assert keys(hidden, partition="gpu")["partition"][:2] == ("gpu", "found")


def test_whole_nodes_are_told_in_the_words_of_each_release() -> None:
    def is_whole(words: str) -> bool:
        text = f"PartitionName=all Default=YES {words}"
        told = keys(replace(FACTS, partitions=parse_records(text)))
        return told.get("exclusive", (False,))[0] is True

    assert is_whole("OverSubscribe=EXCLUSIVE")
    assert is_whole("Exclusive=NODE OverSubscribe=NO")
    assert not is_whole("Exclusive=NO OverSubscribe=NO")
    assert not is_whole("Exclusive=USER OverSubscribe=FORCE:4")


def test_what_slurm_does_not_tell_is_left_to_it() -> None:
    bare = replace(
        *(FACTS,),
        config={},
        partitions=parse_records("PartitionName=all Default=YES MaxTime=UNLIMITED"),
        nodes=parse_records("NodeName=n1 CPUTot=4 RealMemory=1 Partitions=all Gres=gpu:2"),
        accounts=None,
        walls={},
    )
    told = keys(bare, replace(NODE, interfaces=(), scratch=(), containers=()))
    for key in ("account", "time_limit", "memory", "interface", "scratch", "container"):
        assert told[key][0] is None, key
    assert told["gpus"][0] == "gres", "there may be no select/cons_tres"
    assert "qos" not in told


@pytest.mark.parametrize(
    ("change", "wanted", "says"),
    [
        (
            {},
            {"partition": "none"},
            "--partition none: not found; the partitions are cpu, gpu, big",
        ),
        (
            {"partitions": parse_records("PartitionName=a"), "nodes": []},
            {},
            "give --partition, one of a",
        ),
    ],
)
def test_a_partition_that_cannot_be_told_is_refused(
    change: dict[str, Any], wanted: dict[str, str], says: str
) -> None:
    with pytest.raises(SpecError) as caught:
        keys(replace(FACTS, **change), NODE, **wanted)
    assert says in caught.value.violations[0]


@pytest.mark.parametrize("on_node", [True, False])
@pytest.mark.parametrize("partition", ["cpu", "gpu", "big"])
def test_the_file_composes_to_what_was_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, partition: str, on_node: bool
) -> None:
    env = {"LOADEDMODULES": "cuda/12:gcc", "CONDA_PREFIX": "/c"} if on_node else {}
    site = choose_site(FACTS, NODE, on_node, SiteRequest(partition), env)
    assert ("setup" in {key.name for key in site.keys}) is on_node
    text = render("mine", site, FACTS, date(2026, 11, 23))
    project_files.write([project_files.NewFile("conf/cluster/mine.yaml", text)], tmp_path)
    monkeypatch.chdir(tmp_path)
    spec = compose_spec(["cluster=mine", "launch.nproc_per_node=4"])
    assert spec.cluster.grace_s == {"gpu": 115}.get(partition, 60)
    assert spec.cluster.slurm is not None
    for key in site.keys:
        if key.is_slurm:
            assert getattr(spec.cluster.slurm, key.name) == key.value, key
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    for key in site.keys:
        at = next(n for n, line in enumerate(lines) if line.strip().startswith(f"{key.name}:"))
        above = [line for line in lines[max(0, at - 4) : at] if line.strip().startswith("#")]
        assert any(f"# {key.how}: " in line for line in (lines[at], *above)), key
    assert ("which is not a node" in text) is not on_node


@given(st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=12)))
@settings(max_examples=times(25))
def test_a_value_is_read_back_as_it_is(value: str | int | bool | None) -> None:
    assert yaml.safe_load(scalar(value)) == value


@pytest.mark.parametrize(
    "text", ["12:00:00", "1-00:00:00", "null", "no", "y", "1e3", "a: b", "# c"]
)
def test_text_that_looks_like_something_else_stays_text(text: str) -> None:
    assert yaml.safe_load(f"key: {scalar(text)} # comment") == {"key": text}


@pytest.mark.parametrize(
    ("gres", "kinds"),
    [
        ("gpu:4", [("", 4)]),
        ("gpu:3090:2(S:0-1)", [("3090", 2)]),
        ("gpu:a100:4(S:0,1),gpu:1g.5gb:7,nvme:2", [("a100", 4), ("1g.5gb", 7)]),
        ("(null)", []),
        ("mygpu:4", []),
    ],
)
def test_gpus_are_read_from_gres(gres: str, kinds: list[tuple[str, int]]) -> None:
    assert gpu_kinds(gres) == kinds


def test_a_site_is_named_after_its_cluster() -> None:
    assert site_name("My Cluster!") == "my-cluster"
    assert (site_name(""), site_name("(null)")) == ("site", "site")
    assert is_name(site_name("My Cluster!"))
    assert not any(map(is_name, ("", "a/b", "../x", "a b", "-a")))


def test_a_folder_is_of_the_nearest_mount() -> None:
    kinds = {"/": "overlay", "/local": "xfs", "/local/net": "nfs4"}
    assert [kind_of(Path(p), kinds) for p in ("/local/me", "/local/net/me", "/tmp")] == [
        *("xfs", "nfs4", "overlay")
    ]


def test_nothing_is_overwritten_and_then_nothing_written(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("mine")
    with pytest.raises(SpecError) as caught:
        project_files.write([*project_files.starter(), *project_files.wrappers()], tmp_path)
    assert caught.value.violations == [f"{tmp_path}/train.py already exists and is not changed"]
    assert [path.name for path in tmp_path.rglob("*")] == ["train.py"]
    assert (tmp_path / "train.py").read_text() == "mine"


def test_a_slurm_that_does_not_answer_has_an_exit_status_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "scontrol"
    tool.write_text("#!/bin/sh\necho scontrol: error: no controller >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    made = CliRunner().invoke(app, ["init", str(tmp_path / "mine")])
    assert made.exit_code == OUT_OF_REACH
    assert "no controller" in made.stderr
    assert "--only starter works without it" in made.stderr
