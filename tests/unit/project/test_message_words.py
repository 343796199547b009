"""Messages, pages and docstrings are plain English: they have no phrase that the glossary's terms
and standard words replace."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.hooks import ROOT, pages
from tests.unit.hpckit.specs_and_processes import CHECKOUT
from tests.unit.project.doc_blocks import blocks
from tests.unit.project.test_glossary import PACKAGES

PHRASES = {
    "is not a": r"(?<![Tt]here )\b(?:is|are) no (?!longer\b|more\b|faster\b)[a-z]",
    "is not among": r"\b(?:is|are) none of\b",
    "requires": r"\bgo(?:es)? with\b",
    "use": r"; take [a-z]",
    "give, choose or set": r"[;:] say\b",
    "without reporting an error": r"\bwithout a word\b",
    "has no": r"\b(?:has|have|leaves?) none of\b",
    "is not available": r"\bto be had\b",
    "what exists": r"\bwhat there is\b",
    "automatically, or itself": r"\bby (?:itself|themselves)\b",
    "permanently": r"\bfor good\b(?! ones)",
    "with a warning": r"\baloud\b",
    "informed, recorded or reported": r"\b(?:is|are|was|were|not) told\b|\btells? of\b",
    "skipped": r"\bpassed over\b",
    "is replaced": r"\b(?:gives?|gave) way\b",
    "replaces": r"\bstands? in for\b",
    "continues": r"\bcarr(?:y|ies) on\b|\bgoes on\b|\bwent on\b",
    "exists, or already exists": r"\bthere already\b|\balready there\b|\b(?:is|are) not there\b",
    "is not on this node": r"\b(?:is|are) not here\b",
    "has ended, or no longer exists": r"\b(?:is|are) gone\b",
    "no process, no trainer, another process": r"\b(?:nobody|somebody)\b",
    "again": r"\banew\b",
    "the message, or the received bytes": r"\bwhat came\b",
}
"""What messages say, by the pattern of what they said before."""
PAGES_MAY = {"exists, or already exists", "has ended, or no longer exists", "is not a"}
"""What sentences of pages may say besides."""
OF_DOCSTRINGS = {
    *("what exists", "use", "give, choose or set", "without reporting an error"),
    *("is not available", "permanently", "with a warning", "informed, recorded or reported"),
    *("skipped", "is replaced", "replaces", "exists, or already exists", "again"),
}
"""What docstrings say as well."""


def docstrings(tree: ast.Module) -> set[ast.AST]:
    """The strings that are statements: docstrings of modules, classes, functions and fields."""
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def literals(source: str) -> Iterator[tuple[int, str]]:
    """The line and the text of each literal of a module; `{}` stands for each value in it."""
    tree = ast.parse(source)
    ignored = docstrings(tree)
    for node in ast.walk(tree):
        if node in ignored:
            continue
        if isinstance(node, ast.JoinedStr):
            ignored |= set(node.values)
            parts = (part.value if isinstance(part, ast.Constant) else "{}" for part in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def replaced_phrases(text: str) -> list[str]:
    """What the text would say in place of its phrases."""
    return [words for words, pattern in PHRASES.items() if re.search(pattern, text)]


def sentences(page: Path) -> str:
    """The text of a page on one line, without code."""
    shown = {
        n for one in blocks(page) for n in range(one.line, one.line + one.text.count("\n") + 1)
    }
    lines = page.read_text(encoding="utf-8").splitlines()
    text = " ".join(line.strip() for n, line in enumerate(lines, 1) if n not in shown)
    return re.sub(r"`[^`]*`", "", text)


def test_a_phrase_is_seen_in_literals_and_not_in_docstrings() -> None:
    source = '"""It is no plan."""\nx = f"{place} is no " f"index of {y}; take bf16"\n'
    ((line, text),) = literals(source)
    assert (line, replaced_phrases(text)) == (2, ["is not a", "use"])
    assert replaced_phrases("there is no default partition, which is no longer up") == []


@pytest.mark.parametrize("package", PACKAGES)
def test_messages_have_no_phrase_that_other_words_replace(package: str) -> None:
    found = [
        f"{path.relative_to(CHECKOUT)}:{line}: {text[:80]!r}: {', '.join(words)}"
        for path in sorted((CHECKOUT / package).rglob("*.py"))
        for line, text in literals(path.read_text(encoding="utf-8"))
        if (words := replaced_phrases(text))
    ]
    assert found == []


@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_have_no_phrase_that_other_words_replace(page: Path) -> None:
    assert {*replaced_phrases(sentences(page))} - PAGES_MAY == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_have_no_phrase_that_other_words_replace(package: str) -> None:
    found = [
        f"{path.relative_to(CHECKOUT)}:{node.lineno}: {', '.join(words)}"
        for path in sorted((CHECKOUT / package).rglob("*.py"))
        for node in docstrings(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if (words := OF_DOCSTRINGS.intersection(replaced_phrases(" ".join(node.value.split()))))
    ]
    assert found == []
