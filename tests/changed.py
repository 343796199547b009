"""`python -m tests.changed [REF]`: the unit tests of what differs from REF, as paths for pytest.

Tests are in folders that mirror those of the code, so a changed file needs the tests of its folder,
and those in the folders above that are named after no file there, as they are of several. Those of
the whole project (imports, documentation, dangerous calls) are always among them. REF is HEAD, or
the commit before it if nothing differs from HEAD.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[1]
ALWAYS = "tests/unit/project"
_UNIT = Path("tests/unit")


def needed_tests(changed: Iterable[str], checkout: Path = CHECKOUT) -> list[str]:
    """Paths of the tests that these files need, relative to the checkout, each once."""
    found = {ALWAYS, *(test for file in changed for test in _tests_of(Path(file), checkout))}
    parents = {test for test in found if any(str(p) in found for p in Path(test).parents)}
    return sorted(found - parents)


def changed_files(ref: str, checkout: Path = CHECKOUT) -> list[str]:
    """Files that differ from a commit, and those that git does not know yet."""
    tracked = _git(checkout, "diff", "--name-only", ref)
    return [*tracked, *_git(checkout, "ls-files", "--others", "--exclude-standard")]


def _tests_of(file: Path, checkout: Path) -> Iterator[str]:
    if file.suffix != ".py":
        return
    if file.parts[0] == "tests":
        if file.is_relative_to(_UNIT) and (checkout / file).exists():
            yield str(file if file.name.startswith("test_") else file.parent)
        return
    rooms = [folder for folder in (file.parent, *file.parent.parents) if folder.parts]
    tested = [folder for folder in rooms if (checkout / _UNIT / folder).is_dir()]
    if not tested:
        return
    yield str(_UNIT / tested[0])
    for folder in tested[1:]:
        if len(folder.parts) > 1:
            yield from _tests_of_several(folder, checkout)


def _tests_of_several(folder: Path, checkout: Path) -> Iterator[str]:
    """Tests of a folder of the code that are named after no file of it."""
    for test in sorted((checkout / _UNIT / folder).glob("test_*.py")):
        if not (checkout / folder / test.name.removeprefix("test_")).exists():
            yield str(test.relative_to(checkout))


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
