"""Messages are plain English: no literal of the product has a phrase that the glossary's terms and
standard words replace."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.unit.hpckit.specs_and_processes import CHECKOUT
from tests.unit.project.test_glossary import PACKAGES

PHRASES = {
    "is not a": r"(?<!there )\b(?:is|are) no (?!longer\b|more\b)[a-z]",
    "is not among": r"\b(?:is|are) none of\b",
    "requires": r"\bgo(?:es)? with\b",
    "use": r"; take [a-z]",
    "give, choose or set": r"[;:] say\b",
    "without reporting an error": r"\bwithout a word\b",
    "has no": r"\b(?:has|have|leaves?) none of\b",
    "is not available": r"\bto be had\b",
    "what exists": r"\bwhat there is\b",
    "automatically, or itself": r"\bby (?:itself|themselves)\b",
    "permanently": r"\bfor good\b",
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
