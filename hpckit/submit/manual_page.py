"""The manual page of `hpckit launch`, and the reference of all keys, which is read from the spec
itself."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import NamedTuple

from hpckit.config import spec as spec_package
from hpckit.config.config_trees import Groups
from hpckit.config.renamed_keys import current_key
from hpckit.config.spec_error import SpecError
from hpckit.text.suggestions import did_you_mean

PAGE = """\
{program} - compose a config, start the run, keep it running until it is done

Usage
  {program} [GROUP=OPTION ...] [KEY=VALUE ...]   start or resume a run
  {program} [OVERRIDES] -- PROGRAM [ARGUMENT ...]  run your own program in each worker
  {program} --dry-run [OVERRIDES]                show what would run; start nothing
  {program} --cfg [OVERRIDES]                    show the composed config
  {program} --fake-world [OVERRIDES]             measure the memory of one rank alone
  {program} -m [KEY=A,B,C ...] cluster=slurm     start a run for each combination
  {program} --help keys [PREFIX]                 every key: its meaning, type and bounds

Options
  -m           start several runs: key=a,b,c key2=x,y starts one per combination, as one job array
  --detach     return as soon as the run has started; it continues without a terminal
  --json       as --detach, and print JSON: run, path, submission (null: it is done), job; with
               -m, a list of these under runs
  --fresh      start from scratch: the earlier directory of this run is renamed, never deleted

Examples
  {program} experiment=demo
  {program} model=gpt_tiny launch.nodes=2 train.steps=500 name=first
  {program} data=shards data.shards='/data/train-{{000..127}}.tar' precision=bf16
  {program} entry=mycode.train:main user_config.dropout=0.1
  {program} cluster=slurm cluster.slurm.partition=gpu launch.nodes=2 launch.nproc_per_node=8
  {program} launch.nproc_per_node=8 -- python train.py --lr 0.1

What it does
  The config is checked as a whole before anything starts. The run gets a directory,
  <root>/<name>-<hash of what identifies it>: the same experiment finds its directory, and so its
  checkpoints, again. After an interruption, the same command resumes from the newest committed
  checkpoint, at the exact next sample. While the run is active, a second start is refused.

  This command prints the process id of the supervisor when that starts, and passes signals on to
  it. SIGUSR2, to either of them, is a preemption: all ranks save and exit at the same step, and the
  next generation continues. Ctrl-C (SIGINT) and SIGTERM to this command save and stop the run; if
  its terminal closes (SIGHUP), the run continues. SIGTERM to the supervisor is a preemption, too.
  If a worker dies, the workers are restarted in place; if a node is lost, a new generation starts.

  With cluster=slurm it submits a job and returns. A second job waits in the queue and continues the
  run when the first job ends; it is cancelled when the run is done. There,
  scancel --batch --signal=USR2 JOB is a preemption, and hpckit cancel --save RUN saves and stops.

  The copy of your code leaves out run directories, checkpoint stores, shards, virtual environments,
  caches and files over 4 MiB, and says so; what the entry imports is always copied. What git
  ignores, and what .hpckitignore lists in the same syntax, is not part of it.

Groups
{groups}

Exit status
  0    done (or started, with --detach or on Slurm)
  2    refused: bad config, missing data, or the run is in use; nothing was started
  70   failed permanently; `verdict.json` in the run directory says why
  75   gave up for now, or detached (Ctrl-C twice); start again to continue
  130  stopped with Ctrl-C or SIGTERM, after a save

Files
  conf/        the config tree; one file per option, one experiment/*.yaml per named run.
               The files of your project's conf/ are options beside hpckit's own: cluster=mysite
  runs/        run directories: spec, code snapshot, events.jsonl, logs, checkpoints, report
"""


def manual(groups: Groups) -> str:
    """Returns the page for these groups and options."""
    width = max(map(len, groups))
    lines = "\n".join(f"  {group:<{width}}  {' '.join(o)}" for group, o in groups.items())
    return PAGE.format(groups=lines, program=program())


def program() -> str:
    """Returns the command that starts runs, as this process was started: the file of a checkout, or
    the installed command."""
    is_file = PurePath(sys.argv[0]).name == "launch.py"
    return "python launch.py" if is_file else "hpckit launch"


class SpecKey(NamedTuple):
    """One key of the spec, with its docstring."""

    name: str
    kind: str
    """Type and bounds."""
    meaning: str


def keys(prefix: str = "") -> list[SpecKey]:
    """Returns every key that starts with `prefix`, in the order of the spec."""
    found = _keys("RunSpec", "", _documented_classes())
    return [SpecKey(name, kind, _flat(doc)) for name, kind, doc in found if name.startswith(prefix)]


def key_reference(prefix: str) -> str:
    """Returns the name, type and meaning of every key that starts with `prefix`, as text.

    Raises:
        SpecError: there is none.
    """
    found = keys(current_key(prefix))
    if not found:
        names = [key.name for key in keys()]
        groups = {name[:at] for name in names for at, letter in enumerate(name) if letter == "."}
        hint = did_you_mean(prefix, [*names, *sorted(groups)])
        raise SpecError([f"no key starts with {prefix!r}; {hint}see {program()} --help keys"])
    return "\n".join(f"{key.name:<32} {key.kind}\n    {key.meaning}" for key in found)


Fields = list[tuple[str, str, str]]


def _documented_classes() -> dict[str, Fields]:
    """Returns the name, type and docstring of each field of each dataclass in the spec's source."""
    files = sorted(Path(*spec_package.__path__).glob("*.py"))
    nodes = [node for file in files for node in ast.parse(file.read_text("utf-8")).body]
    classes = {node.name: list(_fields(node)) for node in nodes if isinstance(node, ast.ClassDef)}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp):
            kinds = ast.unparse(node.value).split(" | ")
            classes[ast.unparse(node.targets[0])] = _any_of([classes[kind] for kind in kinds])
    return classes


def _any_of(classes: list[Fields]) -> Fields:
    """Returns the fields of a union of classes, with the values of all their `kind` fields in
    one."""
    fields = {name: (kind, doc) for one in reversed(classes) for name, kind, doc in one}
    ordered = dict.fromkeys(name for one in classes for name, _, _ in one)
    tags = " | ".join(kind for one in classes for name, kind, _ in one if name == "kind")
    return [(n, tags if n == "kind" else fields[n][0], fields[n][1]) for n in ordered]


def _fields(node: ast.ClassDef) -> Iterator[tuple[str, str, str]]:
    for field, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            yield field.target.id, ast.unparse(field.annotation), _docstring(after)


def _docstring(node: ast.stmt | None) -> str:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return str(node.value.value)
    return ""


def _keys(name: str, path: str, classes: dict[str, Fields]) -> Iterator[tuple[str, str, str]]:
    for field, kind, doc in classes[name]:
        inner = re.sub(r"^Annotated\[(\w+), .*\]$", r"\1", kind).removesuffix(" | None")
        if inner in classes:
            yield from _keys(inner, f"{path}{field}.", classes)
        else:
            yield f"{path}{field}", _readable(kind), doc


def _readable(kind: str) -> str:
    names = {
        "Count": "integer >= 1",
        "Natural": "integer >= 0",
        "Vocabulary": "integer >= 2",
        "Context": "integer >= 2",
        "Classes": "integer >= 2",
        "Depths": "list of integer >= 1",
        "Degree": "integer >= 1, or -1 for the rest",
        "Decay": "number in 0..1, below 1",
        "RunName": "name of letters, digits and _ . -",
        "EntryPoint": "module:function",
        "Seed": "integer in 0..2^63-1",
        "Positive": "number > 0",
        "TokenType": "uint8 | int8 | uint16 | int16 | uint32 | int32 | uint64 | int64",
        "MixtureSourceSpec": "settings of a source",
        "MixtureStageSpec": "stages",
        "Fraction": "number in 0..1",
        "None": "null",
        "str": "text",
        "Text": "text",
        "Line": "line of text",
        "TimeLimit": "days-hours:minutes:seconds",
        "Folder": "absolute path",
        "EnvName": "name of an environment variable",
        "Address": "e-mail address",
        "AlertKinds": "list of verdict | done | no_progress | degraded | interrupted",
        "Mount": "path, or source:target",
        "Interfaces": "names of network interfaces",
        "Value": "text",
        "Words": "list of text",
        "Memory": "number with a unit",
        "bool": "true or false",
    }
    kind = re.sub(r"Annotated\[int, Field\(ge=(\d+)(, lt=.*?)?\)\]", r"integer >= \1", kind)
    kind = re.sub(r"Annotated\[int, Field\(ge=(\d+), le=(\d+)\)\]", r"integer in \1..\2", kind)
    kind = re.sub(r"Annotated\[float, Field\(gt=(\d+), le=(\d+)\)\]", r"number in \1..\2", kind)
    kind = re.sub(r"Annotated\[float, Field\(ge=(\d+)\)\]", r"number >= \1", kind)
    kind = re.sub(r"Annotated\[float, Field\(ge=(\d+), le=(\d+)\)\]", r"number in \1..\2", kind)
    kind = kind.replace("dict[str, Any]", "mapping of anything")
    kind = re.sub(r"dict\[\w+, (.*?)\]", r"mapping to \1", kind)
    kind = re.sub(r"tuple\[(\w+), \.\.\.\]", r"list of \1", kind)
    kind = re.sub(r"Literal\[(.*?)\]", lambda m: m[1].replace("'", "").replace(", ", " | "), kind)
    return re.sub(r"\b(\w+)\b", lambda m: names.get(m[1], m[1]), kind)


def _flat(text: str) -> str:
    return " ".join(text.split())
