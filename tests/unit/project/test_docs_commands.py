"""What pages show can be typed: commands and options are there, configs compose, code compiles."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from docs.hooks import ROOT, pages
from hpckit.cli.bench.measured_workload import choose_workload
from hpckit.cli.main import app
from hpckit.config.config_trees import conf_dir, group_options
from hpckit.rundir.code_snapshot.snapshot import find_project
from hpckit.submit.arrays import sweep
from hpckit.submit.compose import compose_spec
from hpckit.submit.launch_command import FLAGS
from hpckit.submit.manual_page import keys
from hpckit.submit.preflight.checks import with_absolute_paths
from hpckit.submit.preparation import compose
from hpckit.submit.program.program_command import SEPARATOR, split
from tests.unit.project.doc_blocks import Block, blocks, cut, spans

WRITTEN = {"docs/cli.md", "docs/config.md"}
"""From the commands themselves, whose examples test_all_commands.py types."""
PAGES = [page for page in pages() if page.relative_to(ROOT).as_posix() not in WRITTEN]
BLOCKS = [block for page in PAGES for block in blocks(page)]
COMMANDS: Any = typer.main.get_command(app)
GROUPS = group_options(conf_dir())
KEYS = {key.name for key in keys()}
UsageError: Any = typer.BadParameter.__base__
LEFT_OUT = {"MissingParameter", "BadOptionUsage"}
"""A sentence need not say an argument, or an option's value, that it does not speak of."""
ELSEWHERE = {"cd", "sleep", "cat", "eval", "export", "srun", "squeue", "sinfo", "torchrun"}
"""Of the system, or of torch."""
_KEY = re.compile(r"[a-z]+(?:\.[a-z_]+)*(?:=\S+)?")
FILES = {".py", ".yaml", ".md", ".json", ".safetensors"}
EXAMPLES = sorted((ROOT / "examples").glob("*/before.py"))
SHOWN = {
    "README.md": ["gen  nodes"],
    "checkpointing/FORMAT.md": ["<root>/hpckit.json", "8 ", "  0 ", "  0 ", "  0 ", "8 ", "u32"],
    "docs/site.md": ["slurm:"],
    "docs/tasks/alerts.md": ["gpt-1a2b3c4d: ended"],
    "docs/tasks/data.md": ["defaults: [mixture]"],
    "docs/tasks/dead-run.md": ["$ hpckit why runs/", "runs/NAME-HASH/"],
    "docs/tasks/own-training.md": ["gen  nodes"],
    "docs/tasks/retention.md": ["step id"],
    "docs/tasks/search.md": ["trial 0:"],
    **{f"examples/{path.parent.name}/README.md": ["--- before.py"] for path in EXAMPLES},
}
"""What a program prints, and formats: how these blocks begin."""


def named(block: Block) -> str:
    return f"{block.page.relative_to(ROOT)}:{block.line}"


def of_kind(kind: str) -> list[Block]:
    return [block for block in BLOCKS if block.kind == kind]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `hpckit init` makes, which pages begin with."""
    folder = tmp_path_factory.mktemp("project")
    made = CliRunner().invoke(app, ["init", str(folder), "--only", "starter"])
    assert made.exit_code == 0, made.output
    return folder


@pytest.fixture(autouse=True)
def _inside(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)


def test_each_block_is_typed_compiled_or_known_as_what_something_shows() -> None:
    shown: dict[str, list[str]] = {}
    for block in of_kind("output"):
        shown.setdefault(block.page.relative_to(ROOT).as_posix(), []).append(block.text)
    assert shown.keys() == SHOWN.keys()
    for page, texts in shown.items():
        begins = zip(texts, SHOWN[page], strict=True)
        assert [text for text, begin in begins if not text.startswith(begin)] == [], page


@pytest.mark.parametrize("block", of_kind("command"), ids=named)
def test_commands_of_a_block_can_be_typed(block: Block) -> None:
    for words in block.commands():
        look(words)


@pytest.mark.parametrize("block", of_kind("python"), ids=named)
def test_python_of_a_block_compiles(block: Block) -> None:
    ast.parse(block.text.replace("…", "..."))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_stands_in_sentences_is_there(page: Path) -> None:
    for span in spans(page):
        words = span.split()
        for word in words if all(_KEY.fullmatch(word) for word in words) else ():
            look_at_key(word)
        for command in alternatives(span) if span.startswith(("hpckit ", "python ")) else ():
            try:
                look(cut(command))
            except UsageError as error:
                if type(error).__name__ not in LEFT_OUT:
                    raise


def alternatives(span: str) -> Iterator[str]:
    """`hpckit data index|verify X` is two commands."""
    words = span.split()
    several = next(
        (n for n, word in enumerate(words) if re.fullmatch(r"[a-z]+(\|[a-z]+)+", word)), 0
    )
    for word in words[several].split("|"):
        yield " ".join([*words[:several], word, *words[several + 1 :]])


def look(words: list[str]) -> None:
    """Raises where this command line would be refused as it is typed."""
    assert "|" not in words, f"{words} is a pipe when it is copied"
    program, *rest = words
    match program.removeprefix(".venv/bin/"):
        case "hpckit":
            look_at_hpckit(rest)
        case "python" if rest[0] == "launch.py":
            look_at_launch(rest[1:])
        case "python" if rest[0] in {path.name for path in EXAMPLES}:
            assert not rest[1:]
        case "python" if rest[0] == "-m":
            look_at_module(*rest[1:])
        case "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
            assert rest[0] in targets, words
        case "pip":
            look_at_extras(rest)
        case "sbatch" if script := [word for word in rest if word.startswith("slurm/")]:
            assert (ROOT / script[0]).is_file()
            compose_spec(chosen(rest[rest.index(script[0]) + 1 :]))
        case "./up" | "./down" | "./node" | "slurm/devcluster/up":
            known = (ROOT / "slurm/devcluster/commands.py").read_text()
            assert (ROOT / "slurm/devcluster" / Path(program).name).is_file()
            assert [word for word in rest if word[:2] == "--" and f'"{word}"' not in known] == []
        case other:
            assert other in ELSEWHERE | {"sbatch"}, words


def look_at_hpckit(words: list[str]) -> None:
    """By the parser itself; and a config is composed."""
    command, context, rest = COMMANDS, None, words
    while hasattr(command, "commands"):
        if rest in (["--help"], ["--version"]):
            return None
        context = command.make_context(command.name or "hpckit", rest, parent=context)
        _, command, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
    if command.name == "launch":
        return look_at_launch(rest)
    if "--help" not in rest:
        numbered = ["1" if word in ("B", "P") else word for word in rest]
        given = command.make_context(command.name, numbered, parent=context)
        if overrides := given.params.get("overrides"):
            words = chosen(list(overrides))
            if command.name in (
                "collectives",
                "health",
                "mlperf-checkpoint",
            ):  # which runs a program: no batch has to fit
                return look_at_launch([*words, SEPARATOR, "python", "-m", "timeit"])
            if command.name in ("precision", "profile"):  # which add data where there are none
                choose_workload(words)
            else:
                compose_spec(words)
    return None


def look_at_launch(words: list[str]) -> None:
    words, program = split(words)
    flags = [word for word in words if word.startswith("-")]
    if words[:2] == ["--help", "keys"]:
        assert [key for key in KEYS if key.startswith(words[2] if words[2:] else "")]
        return
    assert set(flags) <= {*FLAGS, "--help"}, words
    overrides = chosen([word for word in words if word not in flags])
    if "-m" in flags:
        sweep.plan(overrides, compose_here, lambda spec, run: [], Path.cwd())
    elif program is not None:
        compose([*overrides, SEPARATOR, *program], Path.cwd(), find_project(Path.cwd()))
    else:
        compose_spec(overrides)


def compose_here(overrides: Any) -> Any:
    return with_absolute_paths(compose_spec(overrides), Path.cwd())


def chosen(overrides: list[str]) -> list[str]:
    """Overrides with a site in place of `<site>`; each option of `group=a|b` has to be there."""
    found = []
    for word in overrides:
        known = re.sub(r"^cluster=(<site>|SITE|mine)$", "cluster=slurm", word)
        key, _, value = known.partition("=")
        several = value.split("|")
        if key in GROUPS:
            assert {*several} - {"first", "mine", "…", "..."} <= {*GROUPS[key]}, word
        found.append(f"{key}={several[0]}")
    return found


def look_at_module(name: str, *words: str) -> None:
    """A program of this repository has these options: they stand in its file or those beside it."""
    path = ROOT / f"{name.replace('.', '/')}.py"
    if name == "pytest":
        return
    assert path.is_file(), name
    known = "".join(one.read_text() for one in path.parent.glob("*.py"))
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    assert [option for option in options if f'"{option}"' not in known] == [], name


def look_at_extras(words: list[str]) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for named in re.findall(r"hpckit\[([^\]]*)\]", " ".join(words)):
        assert {*named.split(",")} - {"..."} <= extras.keys()


def look_at_key(word: str) -> None:
    """`group.key` and `group.key=value` is a key of the spec, `group=option` an option."""
    key, _, value = word.partition("=")
    if key in GROUPS and value:
        chosen([f"{key}={value}"])
    elif "." in key and key.split(".")[0] in {one.split(".")[0] for one in KEYS}:
        holds = any(one == key or one.startswith(f"{key}.") for one in KEYS)
        package = (ROOT / key.replace(".", "/")).is_dir()
        assert holds or package or key.startswith("user_config.") or Path(key).suffix in FILES, word


@pytest.mark.parametrize(
    ("typed", "error"),
    [
        ("hpckit ckpt verify RUN --quick", UsageError),
        ("hpckit ckpt export RUN best OUT", typer.BadParameter),
        ("hpckit status | top", AssertionError),
        ("hpckit nosuch RUN", UsageError),
        ("hpckit launch experiment=first --dryrun", AssertionError),
        ("hpckit launch optim.lrr=3", Exception),
        ("python -m benchmarks.none", AssertionError),
        ("python -m benchmarks.run.recovery --nosuch", AssertionError),
        ("pip install 'hpckit[none]'", AssertionError),
        ("make nothing", AssertionError),
        ("hpckit plan model=gpt5", Exception),
    ],
)
def test_what_is_wrong_is_found(typed: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        look(cut(typed))
