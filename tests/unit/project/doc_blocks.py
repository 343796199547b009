"""What pages show to be typed: their blocks of code, and what stands in a line as `code`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CODE = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
_DOTS = ("...", "…")
_SET = re.compile(r"[A-Z_]+=")
_PYTHON = re.compile(
    r"(?:import|from|for|with|def|class|assert) |run\.|load\(|saver\b|config = |\w+ = |@", re.ASCII
)
PROGRAMS = {
    *("hpckit", "python", "torchrun", "make", "pip", "sbatch", "srun", "squeue", "eval"),
    *("export", "cd", "sleep", "./up", "./down", "./node", "slurm/devcluster/up"),
}


@dataclass(frozen=True)
class Block:
    """Indented lines of a page, without their indent."""

    page: Path
    line: int
    text: str
    about: str = ""
    """A comment that stands above it: the program that it shows lines of."""

    @property
    def kind(self) -> str:
        """`command`, `python`, `lines` of a program, or `output`: what something has printed."""
        first = self.text.splitlines()[0]
        if _program(first) in PROGRAMS:
            return "command"
        if self.about.endswith(".py"):
            return "lines"
        return "python" if _PYTHON.match(first) else "output"

    def commands(self) -> list[list[str]]:
        """Words of each command, as a shell cuts them; what stands for more is left out."""
        joined = self.text.replace("\\\n", "")
        parts = [_cut(line) for line in joined.splitlines()]
        return [words for line in parts for words in line]


def blocks(page: Path) -> Iterator[Block]:
    """The code of `page`, in its order."""
    lines = [*page.read_text(encoding="utf-8").splitlines(), ""]
    begun, is_free = None, True
    for number, line in enumerate(lines):
        indented = line.startswith("    ")
        if begun is None and indented and is_free:
            begun = number
        elif begun is not None and not indented and (line.strip() or not _goes_on(lines, number)):
            text = "\n".join(one[4:] for one in lines[begun:number])
            yield Block(page, begun + 1, text, _comment(lines[:begun]))
            begun = None
        is_free = not line.strip()


def _comment(above: list[str]) -> str:
    last = next((line for line in reversed(above) if line.strip()), "")
    found = re.fullmatch(r"<!-- (.*) -->", last)
    return found[1] if found else ""


def _goes_on(lines: list[str], number: int) -> bool:
    rest = (line for line in lines[number:] if line.strip())
    return next(rest, "").startswith("    ")


def spans(page: Path) -> list[str]:
    """What stands as `code` in sentences and tables of `page`, each on one line."""
    inside = {n for block in blocks(page) for n in range(block.line, block.line + _height(block))}
    lines = page.read_text(encoding="utf-8").splitlines()
    text = "\n".join("" if n in inside else line for n, line in enumerate(lines, 1))
    return [" ".join(found.split()).replace("\\|", "|") for found in _CODE.findall(text)]


def _height(block: Block) -> int:
    return block.text.count("\n") + 1


def cut(span: str) -> list[str]:
    """The words of one command."""
    return [word for word in shlex.split(span, comments=True) if word not in _DOTS]


def _cut(line: str) -> list[list[str]]:
    """A line may hold several commands, with `;` and `&&`; a value of a variable may go before."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=";&")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    found: list[list[str]] = [[]]
    for word in lexer:
        if word in (";", "&&"):
            found.append([])
        elif word not in _DOTS and (found[-1] or not _SET.match(word)):
            found[-1].append(word)
    return [words for words in found if words]


def _program(line: str) -> str:
    words = [word for word in line.split() if not _SET.match(word)]
    return words[0].removeprefix(".venv/bin/") if words else ""
