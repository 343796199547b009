"""What holds for every command of `hpckit`: an example that can be typed, --json, errors."""

from __future__ import annotations

import ast
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from hpckit.cli.common import exit_status
from hpckit.cli.common.command_output import CommandOutput
from hpckit.cli.main import app

CLI = Path(exit_status.__file__).parents[1]
ROOT: Any = typer.main.get_command(app)
NO_DATA = {"launch", "top", "serve"}
"""A run that is started and followed, a screen, and a server: they print no data for programs."""


def walk(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command with the words that it is called by; groups too."""
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from walk(inner, (*words, name))


ALL = dict(walk(ROOT))
LEAVES = {words: command for words, command in ALL.items() if not hasattr(command, "commands")}


def invoke(*words: str) -> Result:
    result = CliRunner().invoke(app, words, prog_name="hpckit")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception  # a traceback for the user
    return result


def options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_a_command_has_an_example_that_can_be_typed(words: tuple[str, ...]) -> None:
    found = [
        " ".join(paragraph.split())
        for paragraph in LEAVES[words].help.split("\n\n")
        if paragraph.startswith("Example: ")
    ]
    assert len(found) == 1
    typed = shlex.split(found[0].removeprefix("Example: "))
    assert typed[0] == "hpckit"
    command, context, rest = ROOT, None, typed[1:]
    while hasattr(command, "commands"):
        context = command.make_context(command.name or "hpckit", rest, parent=context)
        _, command, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
    assert command is LEAVES[words]
    command.make_context(words[-1], rest, parent=context)


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_a_command_says_what_it_does_and_each_option_too(words: tuple[str, ...]) -> None:
    assert len(ALL[words].help.partition("\n\n")[0]) > 20
    nameless = [p.name for p in ALL[words].params if not getattr(p, "help", None)]
    assert nameless == ["ctx"] * len(nameless)


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_a_command_that_prints_data_has_json(words: tuple[str, ...]) -> None:
    assert ("--json" in options(LEAVES[words])) == (words[0] not in NO_DATA)


@pytest.mark.parametrize("words", [w for w in LEAVES if w != ("launch",)], ids=" ".join)
def test_what_is_not_known_is_refused_on_standard_error(words: tuple[str, ...]) -> None:
    result = invoke(*words, "--frobnicate")
    assert result.exit_code == exit_status.REFUSED
    assert result.stdout == ""
    assert "--frobnicate" in result.stderr


VALUES = {"--format": "safetensors", "--step": "1", "--keep": "last=1", "--into": "into"}
"""Of the options that have to be given."""
RUNS = [
    words
    for words, command in LEAVES.items()
    if any(getattr(p, "metavar", "") in ("RUN", "PLACE") for p in command.params)
    and words != ("ckpt", "status")
]


@pytest.mark.parametrize("words", RUNS, ids=" ".join)
def test_a_run_that_is_not_there(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    needed = [p for p in LEAVES[words].params if p.required]
    given = [
        "nosuch" if p.param_type_name == "argument" else f"{p.opts[0]}={VALUES[p.opts[0]]}"
        for p in needed
    ]
    given += ["nosuch"] if not needed else []
    result = invoke(*words, *given)
    assert result.exit_code == exit_status.REFUSED, result.output
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_exit_statuses_are_told_and_have_one_place() -> None:
    told = " ".join(invoke("--help").stdout.split())
    for status, meaning in exit_status.MEANINGS.items():
        assert f"{status} {meaning}" in told
    assert CLI / "main.py" in CLI.rglob("*.py")
    numbered = [
        f"{path.name}:{node.lineno}"
        for path in CLI.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) == "typer.Exit"
        and any(isinstance(argument, ast.Constant) for argument in node.args)
    ]
    assert numbered == []


INTERRUPTED = """
import sys
class Interrupted:
    def find_spec(self, name, *_):
        if name == "typer":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from hpckit.cli import main
main()
"""


def test_ctrl_c_while_a_command_is_imported_is_no_traceback() -> None:
    command = [sys.executable, "-c", INTERRUPTED]
    done = subprocess.run(command, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (128 + signal.SIGINT, b"", b"")


def test_colours_are_for_terminals_and_can_be_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress, too, is for terminals alone."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    coloured = re.compile(r"\x1b\[[0-9;]*3[0-9]")
    assert coloured.search(shown(monkeypatch, terminal=True))
    assert "\x1b" not in shown(monkeypatch, terminal=False)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not coloured.search(shown(monkeypatch, terminal=True))


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> str:
    """A green line and a bar, as they reach a terminal or a pipe."""
    from rich.text import Text

    reader, writer = pty.openpty() if terminal else os.pipe()
    with open(writer, "w", encoding="utf-8") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        patch.setattr(sys, "stderr", stream)
        out = CommandOutput(False)
        out.line(Text("well", style="green"))
        with out.counting("looking", 2) as advance:
            advance(1)
        with out.waiting("asking"):
            pass
        stream.write("END")
        stream.flush()
        read = b""
        while not read.endswith(b"END"):  # a terminal gives what it has, and the rest later
            read += os.read(reader, 1 << 16)
    os.close(reader)
    text = read.decode()
    assert "well" in text
    assert ("looking" in text, "asking" in text) == (terminal, terminal)
    return text


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("hpckit why fi", ["first-00000001", "fifth-00000002"]),
        ("hpckit status first", ["first-00000001"]),
        ("hpckit logs --rank 1 fif", ["fifth-00000002"]),
        ("hpckit why x", []),
        ("hpckit ckpt pru", ["prune"]),
        ("hpckit ckpt ls --js", ["--json"]),
    ],
)
def test_the_shell_completes(
    line: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first-00000001", "fifth-00000002"):
        (tmp_path / "runs" / name / "submissions").mkdir(parents=True)
    (tmp_path / "runs" / "first-sweep-001").mkdir()
    monkeypatch.chdir(tmp_path)
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    asked = {"_HPCKIT_COMPLETE": "complete_bash", **words}
    result = CliRunner().invoke(app, [], env=asked, prog_name="hpckit")
    assert sorted(result.stdout.split()) == sorted(found)
