"""Pages name files that are there, link to places that are, and say what code says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.hooks import ROOT, links, pages
from docs.reference import pages as written

PAGES = pages()
WRITTEN = written()
_FILE = re.compile(r"`([\w./-]+\.(?:py|yaml|sbatch|md))`")
FILES = [
    path.relative_to(ROOT).as_posix()
    for room in (
        *("hpckit", "checkpointing", "data", "docs", "slurm", "tests", "conf", "benchmarks"),
        "examples",
    )
    for path in (ROOT / room).rglob("*.*")
]
OF_USERS = {"train.py", "first.yaml", "conf/experiment/first.yaml", "mycode/train.py"}
OF_USERS |= {"conf/cluster/mine.yaml"}
"""What is in a project, mostly by `hpckit init`."""


def is_there(name: str) -> bool:
    """From the top, or from any folder in it: pages leave out what they are about."""
    return (
        (ROOT / name).exists()
        or name in OF_USERS
        or any(path.endswith(f"/{name}") for path in FILES)
    )


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_and_links_of_a_page_are_there(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    missing = [name for name in sorted({*_FILE.findall(text)}) if not is_there(name)]
    missing += [link for link in sorted(links(page)) if not (page.parent / link).exists()]
    assert missing == []


def test_a_guarantee_names_its_own_tests() -> None:
    """Not those of the row before it, as another row may come between the two."""
    text = (ROOT / "docs/promises.md").read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line[:2] == "| "]
    wrong = [claim for claim, *where in rows[2:] if not _names_tests(" ".join(where))]
    wrong += [claim for claim, *_ in rows if claim.startswith("The same")]
    assert len(rows) > 50
    assert wrong == []


def _names_tests(text: str) -> bool:
    names = re.findall(r"`([^`]+)`", text)
    return any(name.startswith("make ") or (ROOT / name).exists() for name in names)


RESULTS = {
    "benchmarks.checkpoint.": "Results of the service's tables",
    "benchmarks.store.": "Bytes by depth",
    "benchmarks.data.": "Results of the data benchmarks",
    "benchmarks.run.": "Results of `recovery`",
}
"""The sections of the benchmarks' page with the results of the commands that begin so."""


def test_the_readme_has_the_figures_of_the_benchmarks() -> None:
    page = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    sections = {part.partition("\n")[0]: part for part in page.split("\n## ")}
    readme = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    rows = [line.strip("|").split("|") for line in readme if "| `benchmarks." in line]
    wrong = []
    for what, *values, command in rows:
        (title,) = [name for begin, name in RESULTS.items() if f" `{begin}" in command]
        for figure in re.findall(r"(?<![\w.,])\d+\.\d+", " ".join(values)):
            if not re.search(rf"(?<![\d.]){re.escape(figure)}", sections[title]):
                wrong.append(f"{what}: {figure}")
    assert len(rows) > 10
    assert wrong == []


def test_the_site_has_every_page_once() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert sorted(_leaves(nav)) == sorted(map(named, PAGES))


def test_the_site_has_the_styles_that_it_names() -> None:
    named = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["extra_css"]
    hooks = (ROOT / "docs/hooks.py").read_text(encoding="utf-8")
    assert [css for css in named if not (ROOT / css).is_file() or f'"{css}"' not in hooks] == []


def _leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    inner = nav.values() if isinstance(nav, dict) else nav
    return [leaf for one in inner for leaf in _leaves(one)]


def test_tools_hide_their_pages_from_the_site() -> None:
    assert not any(part.startswith(".") for page in PAGES for part in page.relative_to(ROOT).parts)
    assert len(set(PAGES)) == len(PAGES)


@pytest.mark.parametrize("page", WRITTEN, ids=named)
def test_a_page_of_reference_is_what_is_written_now(page: Path) -> None:
    stale = page.read_text(encoding="utf-8") != WRITTEN[page]
    assert not stale, f"{named(page)} is of an earlier state: run python -m docs.reference"
