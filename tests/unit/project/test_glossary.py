"""The glossary is whole and in order, and code has no names that it has other terms for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.hpckit.specs_and_processes import CHECKOUT

PAGE = CHECKOUT / "docs" / "glossary.md"
PACKAGES = ("hpckit", "checkpointing", "data", "slurm")
GROUPS = [
    "Runs and jobs",
    "Nodes and ranks",
    "Checkpoints and the store",
    "Staging and the service",
    "Data",
    "Planning and reporting",
]
_WORDS = """
comeback condemn condemned crew doors floor furnish furniture gentle hall handing hosting intake
keeper lodger lodgers muster mustering namesakes outbox overheard reviver reviving roster sealed
seat seating seats shield spoil strike succession thrift tomb tombs trainee viewing
"""
WORDS = frozenset(_WORDS.split())
"""No name has one of these among its words, nor has a variable or an argument."""
KEPT = {"condemned", "condemned_bytes"}
"""Keys of `--json` by which programs read these counts."""
_NAMES = """
accepting adopt alone announcing asking assumed beginning benching board boards carried coding
comparing compiling concluding continuing copying declared defaulting doing dropping ending
exporting fitness fitting flow forking frozen gathering gone grouping growing hints holding
importing introducing joining kept leading leaving lives loading marking member merging metering
mixing naming neighbours objects one openedshard openfile opening openshard origin passes
peering planning playing preparing pruning reading renewing replicas replicating resuming ring
round rounds runner seeding serving shipping shortages sound spent spooling standing starting
struck style sweeping told trouble warming watching wire within
"""
NAMES = frozenset(_NAMES.split())
"""No name is one of these as a whole."""


class Row:
    """One row of the glossary."""

    def __init__(self, line: str) -> None:
        self.term, self.definition, self.elsewhere = (
            cell.strip() for cell in line.strip().strip("|").split("|")
        )


def glossary_groups() -> dict[str, list[Row]]:
    """The rows of each group of the page, in their order."""
    groups: dict[str, list[Row]] = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n## ")[1:]:
        title, *lines = section.splitlines()
        table = [line for line in lines if line.startswith("|")]
        assert table[0] == "| term | definition | elsewhere |"
        groups[title] = [Row(line) for line in table[2:]]
    return groups


def words_of(name: str) -> list[str]:
    """The words of a name in snake case or camel case, in small letters."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def has_old_name(name: str) -> bool:
    words = words_of(name)
    return not WORDS.isdisjoint(words) or "".join(words) in NAMES


def names_in(path: Path) -> Iterator[str]:
    """The names of a module, its folders, its classes and its public functions."""
    yield from (*path.parent.relative_to(CHECKOUT).parts, path.stem)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    yield from (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    named = (node.name for node in tree.body if isinstance(node, functions))
    yield from (name for name in named if not name.startswith("_"))


def variables_in(path: Path) -> Iterator[str]:
    """The names of methods, arguments, variables and attributes of a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.arg(arg=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield name


def test_the_glossary_has_its_groups() -> None:
    assert list(glossary_groups()) == GROUPS


@pytest.mark.parametrize("group", GROUPS)
def test_each_definition_is_one_sentence(group: str) -> None:
    wrong = [
        row.term
        for row in glossary_groups()[group]
        if not re.fullmatch(r"(?:A|An|The|To) [^|]+[^.]\.", row.definition)
        or re.search(r"\. [A-Z]", row.definition)
        or not row.elsewhere
    ]
    assert wrong == []


@pytest.mark.parametrize("group", GROUPS)
def test_terms_are_in_alphabetical_order(group: str) -> None:
    terms = [row.term for row in glossary_groups()[group]]
    assert terms == sorted(terms, key=str.casefold)


def test_each_term_and_each_definition_is_there_once() -> None:
    rows = [row for group in glossary_groups().values() for row in group]
    for cells in ([row.term.casefold() for row in rows], [row.definition for row in rows]):
        assert sorted(cells) == sorted(set(cells))


def test_an_old_name_is_seen_in_every_spelling() -> None:
    assert all(map(has_old_name, ["hall", "_Hall", "TheHall", "find_seats", "OpenShard", "Told"]))
    assert not any(map(has_old_name, ["shallow", "RunRing", "SnapshotRegistry", "whole_boxes"]))


@pytest.mark.parametrize("package", PACKAGES)
def test_no_file_class_or_function_bears_an_old_name(package: str) -> None:
    old = [
        f"{path.relative_to(CHECKOUT)}: {name}"
        for path in sorted((CHECKOUT / package).rglob("*.py"))
        for name in names_in(path)
        if has_old_name(name)
    ]
    assert old == []


@pytest.mark.parametrize("package", PACKAGES)
def test_no_variable_has_an_old_word(package: str) -> None:
    old = [
        f"{path.relative_to(CHECKOUT)}: {name}"
        for path in sorted((CHECKOUT / package).rglob("*.py"))
        for name in {*variables_in(path)} - KEPT
        if not WORDS.isdisjoint(words_of(name))
    ]
    assert old == []
