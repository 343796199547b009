"""The program after `--` on the command line of `hpckit launch`, as pure functions.

    hpckit launch launch.nodes=2 -- python train.py --lr 0.1
    hpckit launch -- torchrun --nproc-per-node 8 train.py

Options of torchrun that have a key become overrides. Those by which torchrun's processes find each
other are left out, since hpckit does this itself.
"""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from hpckit.config.entry_points import is_python
from hpckit.config.spec_error import SpecError
from hpckit.text.undecodable_text import is_undecodable

if TYPE_CHECKING:
    from hpckit.config.spec import RunSpec

SEPARATOR = "--"
_RUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_STARTS_PROCESSES = (
    "only starts processes, which hpckit does: give the script as `-- python train.py` and the "
    "number of processes as launch.nproc_per_node=N"
)
_MPI = (
    "hpckit starts the processes itself: give the program alone, and launch.nodes, "
    "launch.nproc_per_node"
)
_LAUNCHERS = {
    "accelerate": f"`accelerate launch` {_STARTS_PROCESSES}",
    "composer": f"the composer launcher {_STARTS_PROCESSES}",
    "fabric": f"`fabric run` {_STARTS_PROCESSES}",
    "deepspeed": "the deepspeed launcher only starts processes, which hpckit does: give the script "
    "as `-- python train.py --deepspeed ...` and launch.nodes, launch.nproc_per_node",
    "srun": "hpckit calls srun itself: give the program alone, and its resources as launch.nodes, "
    "launch.nproc_per_node and cluster.slurm.* keys",
    "sbatch": "hpckit calls sbatch itself: give the program alone, and cluster=slurm",
    "mpirun": _MPI,
    "mpiexec": _MPI,
}
_LAUNCHER_MODULES = {
    "accelerate.commands.launch": "accelerate",
    "composer.cli.launcher": "composer",
    "deepspeed.launcher.runner": "deepspeed",
}
"""Modules that `python -m` runs, and the launcher that each is."""
_RENDEZVOUS = {
    *("rdzv-backend", "rdzv-endpoint", "rdzv-id", "rdzv-conf", "node-rank", "master-addr"),
    *("master-port", "local-addr", "log-dir", "redirects", "tee", "monitor-interval", "role"),
    *("start-method", "local-ranks-filter", "logs-specs"),
}
"""Options of torchrun with a value that hpckit sets itself."""
_KEYS_OF_TRAINING = {
    *("model", "init_from", "lora", "train", "data", "optim", "parallel", "precision", "memory"),
    "user_config",
}
"""Groups of keys that only a training function reads."""
_CHECKPOINTS = "checkpoint"
_KEYS_OF_STORES = {"checkpoint", "checkpoint.url", "checkpoint.local", "checkpoint.certify"}
"""Keys of checkpoints that matter to a program, too: where containers and nodes have to reach, and
one that has a rule of its own. What else is done with its checkpoints, the program decides."""
_FLAGS = {"standalone", "run-path", "no-python", "use-env", "module"}
_SHORT = {"-m": "module", "-r": "redirects", "-t": "tee"}
_RANGE = re.compile(r"(\d+):(\d+)")


@dataclass(frozen=True)
class ProgramCommand:
    """A program, with the overrides that its launcher's options stand for."""

    arguments: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    """Options of torchrun that hpckit sets itself."""


def split(words: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Returns the words before the first `--`, and those after it; None if there is none."""
    if SEPARATOR not in words:
        return list(words), None
    at = list(words).index(SEPARATOR)
    return list(words[:at]), list(words[at + 1 :])


def typed_overrides(words: Sequence[str]) -> list[str]:
    """Returns the words of a command line without its options: overrides, and a program after
    `--`."""
    own, program = split(words)
    overrides = [word for word in own if not word.startswith("-")]
    return overrides if program is None else [*overrides, SEPARATOR, *program]


def command_overrides(words: Sequence[str]) -> list[str]:
    """Returns the overrides that the spec of a command is composed of.

    Args:
        words: overrides, with a program after `--` if there is one.

    Raises:
        SpecError: the program cannot be run as it is given.
    """
    typed, program = split(words)
    return typed if program is None else with_program(typed, parse_program(program))


def parse_program(words: Sequence[str]) -> ProgramCommand:
    """Returns the program that the words after `--` describe.

    Raises:
        SpecError: there is no program, or hpckit cannot run it as it is given.
    """
    if not words:
        raise SpecError(["--: no program follows; write `hpckit launch -- python train.py`"])
    if is_python(PurePath(words[0]).name) and list(words[1:]) in ([], ["-"], ["-m"]):
        shown, what = shlex.join(words), "module" if words[1:] == ["-m"] else "script"
        given = "-m mine.train" if what == "module" else "train.py"
        raise SpecError([f"-- {shown}: no {what} follows; write `-- {words[0]} {given}`"])
    for word in words:
        if is_undecodable(word):
            raise SpecError(
                [
                    f"-- {word!a}: is not UTF-8, as which the arguments of a run are kept; "
                    "rename the file, or have the program read the value from a file"
                ]
            )
    module, rest = _module_of(words)
    name = PurePath(words[0]).name
    launcher = name if module is None else _LAUNCHER_MODULES.get(module, "")
    if launcher in _LAUNCHERS:
        raise SpecError([f"-- {words[0] if module is None else module}: {_LAUNCHERS[launcher]}"])
    if re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]):
        raise SpecError(
            [
                f"-- {words[0]}: is an assignment, which only a shell understands; export the "
                "variable before you launch, or set cluster.slurm.env"
            ]
        )
    if name == "torchrun":
        return _parse_torchrun(words[1:])
    if module in _RUN_MODULES:
        return _parse_torchrun(rest)
    return ProgramCommand(tuple(words))


def _module_of(words: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    """Returns the module that `python [-u] -m MODULE` runs, or None, and the words after it."""
    if not is_python(PurePath(words[0]).name):
        return None, ()
    at = 2 if words[1:2] == ["-u"] else 1
    if words[at : at + 1] != ["-m"] or len(words) < at + 2:
        return None, ()
    return words[at + 1], words[at + 2 :]


def left_out_note(words: Sequence[str]) -> str | None:
    """Returns a note about the options of torchrun that hpckit sets itself, if the command line has
    any."""
    _, program = split(words)
    if not program or not (names := parse_program(program).left_out):
        return None
    options = ", ".join(f"--{name}" for name in names)
    return f"left out {options} of torchrun: hpckit connects the nodes itself"


@dataclass
class _Options:
    values: dict[str, str] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)
    rest: list[str] = field(default_factory=list)


def _parse_torchrun(words: Sequence[str]) -> ProgramCommand:
    found = _read_options(words)
    if not found.rest:
        raise SpecError(["-- torchrun: no script follows its options"])
    if "no-python" in found.flags:
        arguments = tuple(found.rest)
    elif "module" in found.flags:
        arguments = ("python", "-m", *found.rest)
    else:
        arguments = ("python", *found.rest)
    left_out = sorted({*found.values, *found.flags} & (_RENDEZVOUS | {"standalone", "use-env"}))
    return ProgramCommand(arguments, tuple(_overrides(found.values)), tuple(left_out))


def _read_options(words: Sequence[str]) -> _Options:
    """Returns torchrun's options, and the words from the script on."""
    found, left = _Options(), list(words)
    while left and left[0].startswith("-"):
        word, equals, value = left.pop(0).partition("=")
        name = _SHORT.get(word) or word.lstrip("-").replace("_", "-")
        if name in _FLAGS:
            found.flags.add(name)
        elif name in _RENDEZVOUS or name in _KEYS:
            if not equals and not left:
                raise SpecError([f"-- torchrun: {word} has no value"])
            found.values[name] = value if equals else left.pop(0)
        else:
            raise SpecError(
                [
                    f"-- torchrun: hpckit does not know the option {word}; give the program as "
                    "`-- python train.py`, and launch.nodes, launch.nproc_per_node and retry."
                    "max_restarts as keys"
                ]
            )
    found.rest = left
    return found


_KEYS = {
    "nnodes": "launch.nodes",
    "nproc-per-node": "launch.nproc_per_node",
    "max-restarts": "retry.max_restarts",
}
"""Options of torchrun that have a key."""


def _overrides(values: dict[str, str]) -> Iterator[str]:
    for name, key in _KEYS.items():
        value = values.get(name)
        if value is None:
            continue
        if name == "nnodes" and (match := _RANGE.fullmatch(value)):
            yield f"{key}={match[2]}"
            yield f"elastic.min_nodes={match[1]}"
        elif value.isdigit():
            yield f"{key}={value}"
        else:
            raise SpecError(
                [
                    f"-- torchrun: --{name}={value} depends on the machine that starts the run; "
                    f"leave it out and give {key}=N"
                ]
            )


def with_program(overrides: Sequence[str], program: ProgramCommand) -> list[str]:
    """Returns the overrides of a run of `program`. What the user typed wins over torchrun's
    options.

    Raises:
        SpecError: an override is of a key that the program sets, or that it cannot read.
    """
    typed = {text.lstrip("+~").partition("=")[0] for text in overrides}
    for key in sorted(typed & {"entry", "command.arguments"}):
        raise SpecError([f"{key}: cannot be given with a program after --"])
    if problems := unread_key_problems(overrides):
        raise SpecError(problems)
    implied = [text for text in program.overrides if text.partition("=")[0] not in typed]
    for text in program.overrides:
        key, _, value = text.partition("=")
        for other in overrides:
            if other.lstrip("+").partition("=")[0] == key and other.partition("=")[2] != value:
                raise SpecError([f"{key}: {other} contradicts torchrun's option, {text}"])
    group = [] if "command" in typed else ["command=program"]
    # In quotes, as Hydra would read the name of a script like 2024.py as a number
    named = [] if "name" in typed else [f"name='{run_name_of(program.arguments)}'"]
    placeholder = "command.arguments=[program]"  # Hydra would interpolate arguments such as ${x}
    return [*group, *named, "entry=null", *implied, placeholder, *overrides]


def unread_key_problems(overrides: Sequence[str]) -> list[str]:
    """Returns a problem for each override of a key that no program can read."""
    typed = {text.lstrip("+~").partition("=")[0] for text in overrides}
    return [
        f"{key}: has no effect on a program after --, which cannot read it; give the value as an "
        "argument of the program"
        for key in sorted(typed)
        if (group := key.partition(".")[0]) in _KEYS_OF_TRAINING
        or (group == _CHECKPOINTS and key not in _KEYS_OF_STORES)
    ]


def with_arguments(spec: RunSpec, program: ProgramCommand) -> RunSpec:
    """Returns a spec that was composed of `with_program`, with the arguments of the program.

    Raises:
        SpecError: an argument breaks a rule.
    """
    from hpckit.config.spec_parser import parse_spec, spec_values  # imports pydantic

    assert spec.command is not None
    whole = replace(spec, command=replace(spec.command, arguments=program.arguments))
    return parse_spec(spec_values(whole), origin=None)


def run_name_of(arguments: Sequence[str]) -> str:
    """Returns a name for the run of a program: that of its script, module or binary."""
    name = PurePath(arguments[0]).stem
    if is_python(PurePath(arguments[0]).name):
        words = [word for word in arguments[1:] if not word.startswith("-")]
        options = list(itertools.takewhile(lambda word: word.startswith("-"), arguments[1:]))
        is_module = "-m" in arguments[1:2] or list(arguments[1:3]) == ["-u", "-m"]
        if "-c" in options:
            name = ""
        elif words:
            name = words[0].rpartition(".")[2] if is_module else PurePath(words[0]).stem
    return re.sub(r"[^A-Za-z0-9_.-]+|^[^A-Za-z0-9]+", "-", name).strip("-._")[:64] or "program"
