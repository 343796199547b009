"""The program after `--`: what a launcher's options mean, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpckit.config.run_identity import identity
from hpckit.config.spec_parser import SpecError
from hpckit.rundir.code_snapshot.snapshot import Project
from hpckit.submit.preparation import compose
from hpckit.submit.program.program_command import (
    ProgramCommand,
    left_out_note,
    parse_program,
    run_name_of,
    split,
    with_program,
)
from tests.unit.hpckit.specs_and_processes import CHECKOUT

TRICKY = ["${oc.env:HOME}", "???", "a,b", "'", "\\", "[1]", "", "null", "é"]
PROJECT = Project(CHECKOUT, git=True)


def refusal(*words: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        compose([*words], CHECKOUT, PROJECT)
    return caught.value.violations


@pytest.mark.parametrize(
    ("line", "arguments", "overrides"),
    [
        ("python train.py --lr 0.1", "python train.py --lr 0.1", ""),
        ("python -m mine.train a", "python -m mine.train a", ""),
        ("./train --steps=3", "./train --steps=3", ""),
        ("torchrun train.py", "python train.py", ""),
        (
            "torchrun --nproc-per-node=4 --nnodes 2 train.py --nnodes 9",
            "python train.py --nnodes 9",
            "launch.nodes=2 launch.nproc_per_node=4",
        ),
        (
            "torchrun --nnodes=2:4 --nproc_per_node 8 --max_restarts=1 train.py",
            "python train.py",
            "launch.nodes=4 elastic.min_nodes=2 launch.nproc_per_node=8 retry.max_restarts=1",
        ),
        (
            "torchrun --standalone --rdzv-backend=c10d --rdzv_endpoint h:1 -m mine.train x",
            "python -m mine.train x",
            "",
        ),
        ("python -m torch.distributed.run --nproc-per-node 2 t.py", "python t.py", "*=2"),
        ("torchrun --no-python ./train", "./train", ""),
    ],
)
def test_the_line_that_people_have(line: str, arguments: str, overrides: str) -> None:
    found = parse_program(line.split())
    assert found.arguments == tuple(arguments.split())
    expected = overrides.replace("*", "launch.nproc_per_node").split()
    assert list(found.overrides) == expected


def test_options_that_hpckit_sets_itself_are_named() -> None:
    words = ["--", "torchrun", "--rdzv-backend=c10d", "--standalone", "train.py"]
    assert left_out_note(words) == (
        "left out --rdzv-backend, --standalone of torchrun: hpckit connects the nodes itself"
    )
    assert left_out_note(["--", "python", "train.py"]) is None
    assert left_out_note(["train.steps=3"]) is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--", "--: no program follows"),
        ("-- accelerate launch train.py", "-- accelerate: `accelerate launch` only starts"),
        (
            "-- python -u -m accelerate.commands.launch train.py",
            "-- accelerate.commands.launch: `accelerate launch` only starts",
        ),
        ("-- mpiexec -n 2 python train.py", "-- mpiexec: hpckit starts the processes itself"),
        ("-- python -u -m torch.distributed.run", "-- torchrun: no script follows"),
        ("-- srun python train.py", "-- srun: hpckit calls srun itself"),
        ("-- A=1 python train.py", "-- A=1: is an assignment"),
        ("-- python train.py caf\udce9", "-- 'caf\\udce9': is not UTF-8"),
        ("-- torchrun", "-- torchrun: no script follows"),
        ("-- python", "-- python: no script follows; write `-- python train.py`"),
        ("-- python -m", "-- python -m: no module follows; write `-- python -m mine.train`"),
        ("-- torchrun --nnodes", "-- torchrun: --nnodes has no value"),
        ("-- torchrun --what=3 train.py", "-- torchrun: hpckit does not know the option --what"),
        ("-- torchrun --nproc-per-node=gpu t.py", "-- torchrun: --nproc-per-node=gpu depends on"),
        ("entry=a:b -- python t.py", "entry: cannot be given with a program after --"),
        ("command.arguments=[x] -- python t.py", "command.arguments: cannot be given"),
        ("launch.nodes=3 -- torchrun --nnodes=2 t.py", "launch.nodes: launch.nodes=3 contradicts"),
        ("debug.ledger=true -- python t.py", "debug.ledger: must be false"),
        ("-- python t.py --api-key=abcdef", "command.arguments: --api-key would be written"),
        ("command.step_pattern='(' -- python t.py", "command.step_pattern: is not a regular"),
        ("command.step_pattern=loss -- python t.py", "command.step_pattern: has no group named"),
        ("launch.nodez=3 -- python t.py", "launch.nodez: unknown key; did you mean launch.nodes?"),
        ("train.steps=3 -- python t.py", "train.steps: has no effect on a program after --"),
        ("+user_config.a=3 -- python t.py", "user_config.a: has no effect on a program after --"),
        ("checkpoint.replicas=1 -- python t.py", "checkpoint.replicas: has no effect on a program"),
        ("checkpoint.keep.last=1 -- python t.py", "checkpoint.keep.last: has no effect"),
        ("checkpoint.certify=5 -- python t.py", "checkpoint.certify: must be null where"),
        ("data=shards -- python t.py", "data: has no effect on a program after --"),
    ],
)
def test_what_is_refused_names_the_remedy(words: str, told: str) -> None:
    (line,) = refusal(*words.split())
    assert line.startswith(told)


def test_without_a_program_an_entry_is_needed() -> None:
    assert refusal("entry=null") == [
        "entry: has no value; give entry=module:function, or a program as in "
        "`hpckit launch -- python train.py`"
    ]


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))))
def test_arguments_reach_the_spec_as_they_are(words: list[str]) -> None:
    program = parse_program(["python", "train.py", *words])
    assert program.arguments == ("python", "train.py", *words)


@pytest.mark.parametrize("word", TRICKY)
def test_no_argument_means_anything_to_hydra(word: str) -> None:
    spec = compose(["--", "python", "train.py", word], CHECKOUT, PROJECT)
    assert spec.command is not None
    assert spec.command.arguments == ("python", "train.py", word)
    assert spec.command.cwd == str(CHECKOUT)
    assert (spec.entry, spec.name) == (None, "train")


def test_any_number_of_nodes_fits_a_program() -> None:
    """As the configured batch does not matter to it."""
    words = ["launch.nproc_per_node=7", "launch.nodes=3", "--", "python", "t.py"]
    spec = compose(words, CHECKOUT, PROJECT)
    other = compose(["--", "python", "t.py"], CHECKOUT, PROJECT)
    assert identity(spec) == identity(other)
    assert identity(spec) != identity(compose(["--", "python", "u.py"], CHECKOUT, PROJECT))
    assert identity(spec) != identity(compose(["--", "python", "t.py"], CHECKOUT.parent, PROJECT))


@pytest.mark.parametrize("name", ["2024", "1e3", "null", "true"])
def test_the_name_of_a_script_is_text_whatever_it_looks_like(name: str) -> None:
    assert compose(["--", "python", f"{name}.py"], CHECKOUT, PROJECT).name == name


def test_what_the_user_typed_wins() -> None:
    program = ProgramCommand(("python", "t.py"), ("launch.nodes=2",))
    words = with_program(["name=mine", "launch.nodes=2"], program)
    assert words.count("launch.nodes=2") == 1
    assert [word for word in words if word.startswith("name=")] == ["name=mine"]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("python src/train_gpt.py", "train_gpt"),
        ("python -u -m mine.train", "train"),
        ("python3.11 train.py", "train"),
        ("./bin/pre-train.sh", "pre-train"),
        ("./-x", "x"),
        ("é", "program"),
        ("python -u -c print(1)", "program"),
        ("python 2024.py", "2024"),
        ("python " + "a" * 99 + ".py", "a" * 64),
    ],
)
def test_the_run_is_named_after_its_program(line: str, name: str) -> None:
    assert run_name_of(line.split()) == name


def test_only_the_first_separator_splits() -> None:
    assert split(["a=1", "--", "x", "--", "y"]) == (["a=1"], ["x", "--", "y"])
    assert split(["a=1"]) == (["a=1"], None)
