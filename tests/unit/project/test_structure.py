"""Imports point one way, and nothing on the login node imports torch."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

from data import pack_folder
from tests.unit.hpckit.specs_and_processes import CHECKOUT

# Who may import whom, by rooms: the folders right below a top-level package, and the files beside
# them, which the packages' faces are made of. A face is what users import from: it reaches for
# everything, lazily, and nothing inside imports from it, but for examples and integrations.
LOW = {"hpckit.config", "hpckit.system", "hpckit.text"}
RECORDS = LOW | {"hpckit.rundir", "hpckit.events", "hpckit.slurm", "hpckit.ipc"}
NODE = RECORDS | {"hpckit.exporter", "hpckit.report"}
LIBRARIES = {"checkpointing", "data"}
FACES = {"hpckit", *LIBRARIES}
MAY_IMPORT = {
    "launch": {"hpckit.submit", "hpckit.distribution"},
    "hpckit": {
        *("hpckit.config", "hpckit.trainer", "hpckit.version", "hpckit.earlier_names"),
        "hpckit.distribution",
    },
    "hpckit.__main__": {"hpckit.cli"},
    "hpckit.distribution": set(),
    "hpckit.torch_internals": set(),
    "hpckit.version": set(),
    "hpckit.earlier_names": set(),
    "hpckit.system": LIBRARIES,
    "hpckit.text": set(),
    "hpckit.config": {"hpckit.system", "hpckit.text", *LIBRARIES},
    "hpckit.rundir": {*LOW, *LIBRARIES},
    "hpckit.events": {*LOW, "hpckit.rundir", "checkpointing"},
    "hpckit.slurm": {*LOW, "hpckit.rundir", "hpckit.events", "checkpointing"},
    "hpckit.suspects": {*LOW, "hpckit.slurm"},
    "hpckit.ipc": {*LOW, "hpckit.rundir", "hpckit.events", "checkpointing"},
    "hpckit.hangs": set(),
    "hpckit.client": {"hpckit.ipc"},
    "hpckit.integrations": {"hpckit.client", "checkpointing"},  # which nothing here imports
    "hpckit.report": {*RECORDS, *LIBRARIES},
    "hpckit.planner": {*LOW, "checkpointing"},
    "hpckit.exporter": {*RECORDS, "hpckit.report", "checkpointing"},
    "hpckit.trainer": {
        *(*RECORDS, "hpckit.planner", "hpckit.torch_internals", "hpckit.hangs", *LIBRARIES),
    },
    "hpckit.agent": {*NODE, "hpckit.hangs", *LIBRARIES},
    "hpckit.alerts": {*RECORDS, "hpckit.report", "hpckit.agent", "checkpointing"},
    "hpckit.submit": {
        "hpckit.alerts",
        *(*NODE, "hpckit.planner", "hpckit.trainer", "hpckit.agent", "hpckit.earlier_names"),
        *("hpckit.suspects", *LIBRARIES),
    },
    "hpckit.evaluation": {
        *(*NODE, "hpckit.trainer", "hpckit.agent", "hpckit.submit", *LIBRARIES),
    },
    "hpckit.supervisor": {
        *(*NODE, "hpckit.suspects", "hpckit.trainer", "hpckit.agent", "hpckit.submit"),
        *("hpckit.alerts", "hpckit.evaluation", "hpckit.hangs", *LIBRARIES),
        "hpckit.distribution",
    },
    "hpckit.faults": {
        *(*NODE, "hpckit.planner", "hpckit.trainer", "hpckit.agent", "hpckit.submit"),
        *("hpckit.supervisor", *LIBRARIES),
    },
    "hpckit.doctor": {
        *(*RECORDS, "hpckit.submit", "hpckit.version", "hpckit.distribution", *LIBRARIES),
        "hpckit",
    },
    "hpckit.init": {*RECORDS, "hpckit.doctor", "hpckit.submit"},
    "hpckit.examples": {*RECORDS, "hpckit.report", "hpckit.submit"},
    "hpckit.serve": {*RECORDS, "hpckit.report", "hpckit.agent", "hpckit.suspects", "checkpointing"},
    "hpckit.cli": {
        *(*NODE, "hpckit.planner", "hpckit.trainer", "hpckit.agent", "hpckit.submit"),
        *("hpckit.supervisor", "hpckit.faults", "hpckit.doctor", "hpckit.init", "hpckit.version"),
        *("hpckit.alerts", "hpckit.suspects", "hpckit.distribution", "hpckit.earlier_names"),
        *("hpckit", "hpckit.evaluation", "hpckit.serve", *LIBRARIES),
    },
}
# Within the libraries. What stands beside their rooms:
CKPT_LEAVES = {
    *("checkpointing.errors", "checkpointing.events", "checkpointing.retention"),
    *("checkpointing.distributed_classes", "checkpointing.torch_internals"),
}
CKPT_STORE = {
    *(*CKPT_LEAVES, "checkpointing.store_url", "checkpointing.storage", "checkpointing.codec"),
    *("checkpointing.format", "checkpointing.store"),
}
CKPT_STATE = CKPT_STORE | {
    *("checkpointing.layout", "checkpointing.staging", "checkpointing.ranks"),
    *("checkpointing.state", "checkpointing.service"),
}
CKPT_ALL = CKPT_STATE | {
    *("checkpointing.save", "checkpointing.restore", "checkpointing.checkpointer"),
    *("checkpointing.connections", "checkpointing.options", "checkpointing.event_file"),
    *("checkpointing.runs", "checkpointing.save_policy"),
}
MAY_IMPORT_INSIDE = {
    **{name: {"checkpointing.errors"} for name in (*CKPT_LEAVES, "checkpointing.save_policy")},
    "checkpointing.torch_internals": {"checkpointing.distributed_classes"},
    "checkpointing": CKPT_ALL | {"checkpointing.follower", "checkpointing.retention_pruner"},
    "checkpointing.event_file": {"checkpointing.events"},
    "checkpointing.store_url": {"checkpointing.errors"},
    "checkpointing.authenticated_channel": {"checkpointing.errors"},
    "checkpointing.channel_listener": {
        *("checkpointing.errors", "checkpointing.authenticated_channel"),
    },
    "checkpointing.storage": {"checkpointing.errors", "checkpointing.store_url"},
    "checkpointing.codec": {"checkpointing.errors", "checkpointing.storage"},
    "checkpointing.format": {*CKPT_LEAVES, "checkpointing.storage", "checkpointing.codec"},
    "checkpointing.store": CKPT_STORE,
    "checkpointing.retention_pruner": CKPT_STORE,
    "checkpointing.layout": {*CKPT_LEAVES, "checkpointing.format"},
    "checkpointing.staging": {*CKPT_LEAVES, "checkpointing.format"},
    "checkpointing.ranks": {
        *(*CKPT_LEAVES, "checkpointing.staging"),
        *("checkpointing.authenticated_channel", "checkpointing.channel_listener"),
    },
    "checkpointing.service": {
        *(*CKPT_STORE, "checkpointing.retention_pruner", "checkpointing.staging"),
        *("checkpointing.authenticated_channel", "checkpointing.channel_listener"),
    },
    "checkpointing.state": {
        *(*CKPT_STORE, "checkpointing.layout", "checkpointing.staging", "checkpointing.ranks"),
    },
    "checkpointing.save": {
        *(*CKPT_STATE, "checkpointing.connections", "checkpointing.save_policy"),
    },
    "checkpointing.restore": {
        *(*CKPT_STATE, "checkpointing.connections", "checkpointing.save"),
        "checkpointing.authenticated_channel",
    },
    "checkpointing.runs": CKPT_STORE,
    "checkpointing.connections": CKPT_STATE,
    "checkpointing.options": {
        *(*CKPT_STATE, "checkpointing.save", "checkpointing.restore", "checkpointing.save_policy"),
    },
    "checkpointing.checkpointer": CKPT_ALL,
    "checkpointing.interop": CKPT_STORE,
    "checkpointing.follower": {*CKPT_STORE, "checkpointing.interop"},
    "checkpointing.integrations": {*CKPT_ALL, "checkpointing"},
    "checkpointing.examples": {"checkpointing", "checkpointing.integrations"},
    "data.errors": set(),
    "data.keyword_options": {"data.errors"},
    "data.torch_internals": set(),
    "data.durable_files": {"data.errors"},
    "data.source": {"data.errors", "checkpointing.errors", "checkpointing.storage"},  # for S3
    "data.index": {"data.errors", "data.durable_files", "data.source"},
    "data.order": {"data.errors"},
    "data.cache": {
        *("data.errors", "data.keyword_options", "data.source", "data.index"),
        "data.durable_files",
        "checkpointing.errors",  # this and the next ones for the caches of other nodes
        *("checkpointing.authenticated_channel", "checkpointing.channel_listener"),
    },
    "data.read": {
        *("data.errors", "data.keyword_options", "data.source", "data.index", "data.order"),
        "data.cache",
    },
    "data.wds": {
        *("data.errors", "data.keyword_options", "data.source", "data.index", "data.order"),
        *("data.cache", "data.read", "data.torch_internals"),
    },
    "data.write": {
        *("data.errors", "data.keyword_options", "data.durable_files", "data.index", "data.read"),
    },
    "data": {
        *("data.errors", "data.source", "data.index", "data.order", "data.cache", "data.read"),
        *("data.wds", "data.write"),
    },
}
_ONLY = re.compile(r"Only ((?:`[\w.]+`(?:, | and )?)+) imports? (?:it|them)\b")
MOST_FILES = 16
"""Of a room, beside its `__init__`."""
OURS = {"launch", "hpckit", "checkpointing", "data"}
STARTER = CHECKOUT / "hpckit" / "init" / "starter"  # what becomes a user's code
FILES = [
    CHECKOUT / "launch.py",
    *(
        file
        for name in ("hpckit", "checkpointing", "data")
        for file in (CHECKOUT / name).rglob("*.py")
        if not file.is_relative_to(STARTER)
    ),
]


ROOMS = sorted(
    {path.parent for path in FILES} - {CHECKOUT}
    | {
        path.parent
        for name in ("benchmarks", "slurm/devcluster")
        for path in (CHECKOUT / name).rglob("*.py")
    }
)


def module_name(path: Path) -> str:
    parts = path.relative_to(CHECKOUT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def unit(module: str) -> str:
    """The unit that a module of ours belongs to: a room of hpckit, or a library as a whole."""
    words = module.split(".")
    return ".".join(words[: 2 if words[0] == "hpckit" else 1])


def room(module: str) -> str:
    """The room within a library: a folder of it, or a file beside its folders."""
    words = module.split(".")
    found = ".".join(words[:2])
    return found if found in MAY_IMPORT_INSIDE else words[0]


def imported(tree: ast.AST) -> Iterator[str]:
    """Modules that are imported anywhere in `tree`, functions and conditions included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            if node.module in FACES:  # from hpckit import run: a room, or a name of the face
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            else:
                yield node.module


def test_the_units_are_all_named_here() -> None:
    assert {unit(module_name(path)) for path in FILES} == MAY_IMPORT.keys() | LIBRARIES
    inside = [name for name in map(module_name, FILES) if name.split(".")[0] in LIBRARIES]
    assert {".".join(name.split(".")[:2]) for name in inside} == MAY_IMPORT_INSIDE.keys()
    assert len(FILES) > 60


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def wrong_imports(path: Path) -> set[str]:
    """Rooms that this file may not import, and does."""
    here = module_name(path)
    names = {name for name in imported(parsed(path)) if name.split(".")[0] in OURS}
    if unit(here) in LIBRARIES:
        names -= {unit(here)}  # `import data`, to know where it lies
        return {room(name) for name in names} - MAY_IMPORT_INSIDE[room(here)] - {room(here)}
    return {unit(name) for name in names} - MAY_IMPORT[unit(here)] - {unit(here)}


def test_imports_point_one_way() -> None:
    found = {module_name(path): wrong_imports(path) for path in FILES}
    assert {module: wrong for module, wrong in found.items() if wrong} == {}


@pytest.mark.parametrize("allowed", [MAY_IMPORT, MAY_IMPORT_INSIDE], ids=["hpckit", "libraries"])
def test_no_imports_are_allowed_in_a_circle(allowed: dict[str, set[str]]) -> None:
    TopologicalSorter({name: others - {name} for name, others in allowed.items()}).prepare()


CIRCULAR = {"checkpointing.store", "hpckit.supervisor", "hpckit.trainer"}
"""Rooms of which some folders import each other both ways; their files do not."""


def folder_imports(parent: Path) -> dict[str, set[str]]:
    """Returns which other folders of a folder each of its folders imports."""
    start, found = f"{module_name(parent / '__init__.py')}.", dict[str, set[str]]()
    for path in FILES:
        if not module_name(path).startswith(start) or path.parent == parent:
            continue
        folder = path.relative_to(parent).parts[0]
        names = (name for name in imported(parsed(path)) if name.startswith(start))
        others = {name.removeprefix(start).split(".")[0] for name in names} - {folder}
        others = {other for other in others if (parent / other).is_dir()}
        found.setdefault(folder, set()).update(others)
    return found


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: str(room.relative_to(CHECKOUT)))
def test_folders_of_a_room_import_each_other_in_no_circle(room: Path) -> None:
    sorter = TopologicalSorter(folder_imports(room))
    if module_name(room / "__init__.py") in CIRCULAR:
        with pytest.raises(CycleError):  # else take it out of `CIRCULAR`
            sorter.prepare()
    else:
        sorter.prepare()


def test_a_room_has_few_files_and_says_what_is_in_it() -> None:
    for folder in ROOMS:
        files = [file for file in folder.glob("*.py") if file.name != "__init__.py"]
        assert len(files) <= MOST_FILES, folder
        assert ast.get_docstring(parsed(folder / "__init__.py")), folder


def test_a_folder_is_imported_only_where_it_says() -> None:
    imports = {module_name(path): set(imported(parsed(path))) for path in FILES}
    for folder in ROOMS:
        words = " ".join((ast.get_docstring(parsed(folder / "__init__.py")) or "").split())
        room_ = module_name(folder / "__init__.py")
        for found in _ONLY.finditer(words):
            may = re.findall(r"`([\w.]+)`", found[1])
            users = {one for one in imports if any(is_below(name, room_) for name in imports[one])}
            users -= {one for one in users for place in (room_, *may) if is_below(one, place)}
            assert not users, room_


def is_below(module: str, place: str) -> bool:
    """Whether the module is the place or in it; of a package, the files beside its folders."""
    if place in FACES:
        return place in (module, module.rpartition(".")[0])
    return module == place or module.startswith(f"{place}.")


def test_a_unit_test_is_in_the_folder_of_the_file_it_is_named_after() -> None:
    tests = CHECKOUT / "tests" / "unit"
    for test in tests.rglob("test_*.py"):
        room, name = CHECKOUT / test.parent.relative_to(tests), test.name.removeprefix("test_")
        if not (room / name).exists():  # if several have the name, it is a test of all of them
            assert len([*room.rglob(name)]) != 1, test


@pytest.mark.parametrize(
    "file", sorted((CHECKOUT / "benchmarks").glob("*/*.py")), ids=lambda file: file.stem
)
def test_a_benchmark_is_found_without_its_folder(file: Path) -> None:
    if file.name != "__init__.py":
        found = find_spec(f"benchmarks.{file.stem}")
        assert found is not None
        assert found.origin == str(file)


def test_a_class_has_a_name_of_its_own() -> None:
    """Names with an underscore are their files'."""
    found: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found.setdefault(node.name, []).append(module_name(path))
    twice = {name: modules for name, modules in found.items() if len(modules) > 1}
    assert twice.keys() == {"Config"}, twice  # torchtitan finds options by the name


def test_an_import_inside_a_function_counts() -> None:
    text = "def f():\n    from hpckit.trainer.run_loop import x\n    import hpckit.agent.agent\n"
    assert sorted(imported(ast.parse(text))) == ["hpckit.agent.agent", "hpckit.trainer.run_loop"]


HASHES = {"blake3", "xxhash"}


def modules_of(*arguments: str, env: dict[str, str] | None = None) -> set[str]:
    """All modules that a Python process with `arguments` imports."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rsplit("|", 1)[1].strip() for line in lines}


WITHOUT_TORCH = (
    *("hpckit", "hpckit.submit.launch_command", "hpckit.supervisor.supervisor"),
    *("hpckit.submit.job_submission", "hpckit.submit.preparation", "hpckit.submit.run_follower"),
    *("hpckit.agent.watchdog", "hpckit.agent.rendezvous_store", "hpckit.cli.main"),
    *("hpckit.report.terminal.run_summary", "hpckit.report.overview"),
    *("hpckit.submit.run_cancellation", "hpckit.faults.campaign.campaign_runner"),
    *("hpckit.cli.plan.plan_document", "hpckit.cli.plan", "hpckit.report.page.page_file"),
    *("hpckit.serve.site", "hpckit.serve.page_server"),
)


def test_what_starts_and_watches_training_does_not_import_torch() -> None:
    """Asked of one process, whose imports say of each module who was the first to import torch."""
    code = "import sys\n" + "\n".join(
        f"import {module}; assert 'torch' not in sys.modules, '{module}'"
        for module in WITHOUT_TORCH
    )
    assert {*WITHOUT_TORCH} <= modules_of("-c", code)


@pytest.mark.parametrize(
    ("module", "light"),
    [
        ("data", {"checkpointing", "obstore"}),
        ("data.source.sources", {"checkpointing", "obstore"}),
        ("data.source.http", {"checkpointing"}),
        ("data.source.s3", {"torch", "numpy", "botocore", "fsspec"}),
    ],
)
def test_what_reads_shards_imports_access_to_s3_for_s3_alone(module: str, light: set[str]) -> None:
    found = modules_of("-c", f"import {module}")
    assert module in found
    assert not found & light


@pytest.mark.parametrize(
    ("first", "then", "packages"),
    [
        ("torch", "from checkpointing import *", {"checkpointing", *HASHES, "numpy", "zstandard"}),
        ("numpy", "from data import Loader, open_dataset", {"data", *HASHES, "numpy"}),
        ("os", "import hpckit.client", {"hpckit"}),
        ("os", "import data, checkpointing", {"data", "checkpointing"}),
    ],
)
def test_an_import_waits_for_nothing_that_is_needed_later(
    first: str, then: str, packages: set[str]
) -> None:
    """As torch.distributed.tensor, which takes half as long as torch: a state has no DTensor if the
    program has not imported it."""
    code = f"import {first}, sys; had = set(sys.modules); {then}; print(*(set(sys.modules) - had))"
    words = [sys.executable, "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=CHECKOUT)
    found = {name.partition(".")[0] for name in done.stdout.split()} - {"__mp_main__"}
    assert packages >= found - sys.stdlib_module_names
    assert packages - found <= {*HASHES, "numpy"}
    assert not found & {"asyncio", "http", "ssl", "sqlite3", "unittest", "xml"}
    assert first == "torch" or "multiprocessing" not in found


def test_a_dry_run_does_not_import_torch(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    for n in range(4):
        (tmp_path / "texts" / f"{n}.txt").write_text("text")
    pack_folder(tmp_path / "texts", tmp_path / "shards")
    words = ["model=gpt_nano", "data=shards", f"data.shards={tmp_path}/shards"]
    words += ["cluster.device=cpu", f"root={tmp_path}/runs"]
    found = modules_of(str(CHECKOUT / "launch.py"), "--dry-run", *words)
    assert "hpckit.submit.dry_run" in found
    assert "torch" not in found


def test_a_plan_does_not_import_torch(tmp_path: Path) -> None:
    code = "from hpckit.cli.main import app; app()"
    words = ["plan", "model=gpt_nano", "--card", "H100", "-o", str(tmp_path / "plan.html")]
    found = modules_of("-c", code, *words)
    assert "hpckit.cli.plan.plan_document" in found
    assert "torch" not in found
