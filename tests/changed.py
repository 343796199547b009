"""`python -m tests.changed [REF]`: the unit tests of what differs from REF, as paths for pytest.

Tests are in folders that mirror those of the code, so a changed file needs the tests of its folder.
Those of the whole project (imports, documentation, dangerous calls) are always among them. REF is
HEAD, or the commit before it if nothing differs from HEAD.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
ALWAYS = "tests/unit/project"
_UNIT = Path("tests/unit")


def needed_tests(changed: Iterable[str], checkout: Path = CHECKOUT) -> list[str]:
    """Paths of the tests that these files need, relative to the checkout, each once."""
    found = {ALWAYS, *(test for file in changed if (test := _test_of(Path(file), checkout)))}
    parents = {test for test in found if any(str(p) in found for p in Path(test).parents)}
    return sorted(found - parents)


def changed_files(ref: str, checkout: Path = CHECKOUT) -> list[str]:
    """Files that differ from a commit, and those that git does not know yet."""
    tracked = _git(checkout, "diff", "--name-only", ref)
    return [*tracked, *_git(checkout, "ls-files", "--others", "--exclude-standard")]


def _test_of(file: Path, checkout: Path) -> str | None:
    if file.suffix != ".py":
        return None
    if file.parts[0] == "tests":
        if not file.is_relative_to(_UNIT) or not (checkout / file).exists():
            return None
        return str(file if file.name.startswith("test_") else file.parent)
    for folder in (file.parent, *file.parent.parents):
        if folder.parts and (checkout / _UNIT / folder).is_dir():
            return str(_UNIT / folder)
    return None


def _git(checkout: Path, *words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=checkout, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def main() -> None:
    ref = sys.argv[1] if len(sys.argv) > 1 else "HEAD"
    files = changed_files(ref)
    if not files and len(sys.argv) == 1:
        files = changed_files("HEAD~1")
    print(*needed_tests(files), sep="\n")


if __name__ == "__main__":
    main()
