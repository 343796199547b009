"""One file of each package names private parts of torch, and says what fails without them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.project.test_structure import FILES, module_name

HOMES = {name: f"{name}.torch_internals" for name in ("checkpointing", "data", "hpckit")}
USED = [(home, name) for home in HOMES.values() for name in import_module(home).INTERNALS]
ELASTIC = (
    "torch.distributed.run",
    "torch.distributed.launcher.api",
    "torch.distributed.elastic.rendezvous.utils",
)
"""Modules without documentation whose names have no underscore."""
ELSEWHERE = {
    "hpckit.trainer.torchrun.spawned_workers",  # start torchrun as its own command does
    "hpckit.trainer.torchrun.forked_workers",
    "hpckit.trainer.memory.fake_step",  # is made of them, and they take long to import
    "hpckit.hangs.own_snapshot",  # takes what is imported already: it runs while a program hangs
}
OF_OBJECTS = {
    *("_local_tensor", "_spec", "_version", "_buffers", "_op_dispatcher", "_root_mod", "_world"),
    *("_get_sequence_number_for_group", "_dump_nccl_trace_json", "_dump_fr_trace_json"),
}
"""Private attributes of torch's objects, which no import shows."""


def is_private(dotted: str) -> bool:
    """Whether a name has a part with an underscore before it."""
    return any(re.match(r"_[^_]", part) for part in dotted.split("."))


def private_uses(tree: ast.AST) -> Iterator[str]:
    """Private parts of torch that code names, as it names them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "torch":
            named = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in named if is_private(name) or node.module in ELASTIC)
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            yield from (name for name in names if name.startswith("torch.") and is_private(name))
        elif isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            of_torch = re.fullmatch(r"(torch|_aten)(\.\w+)+", text) and is_private(f".{node.attr}")
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if of_torch or (node.attr in OF_OBJECTS and not own):
                yield text
        elif isinstance(node, ast.Constant) and node.value in OF_OBJECTS:  # of a getattr
            yield node.value


@pytest.mark.parametrize(
    "line",
    [
        *("import torch\ntorch._foreach_copy_(a, b)", "from torch._C import x", "t._local_tensor"),
        *("from torch.nn.modules.batchnorm import _NormBase", "import torch._dynamo"),
        *("from torch.distributed.run import parse_args", "torch.cuda._is_in_bad_fork()"),
        *("c10d._world.pg_map", "getattr(native, '_dump_fr_trace_json', None)"),
    ],
)
def test_each_kind_of_use_is_seen(line: str) -> None:
    assert list(private_uses(ast.parse(line)))


def test_public_names_are_not_private() -> None:
    text = "from torch.distributed.checkpoint import save\ntorch.__version__\nself._spec\na._x"
    assert list(private_uses(ast.parse(text))) == []


def test_one_file_of_each_package_names_what_is_private_in_torch() -> None:
    exempt = {*HOMES.values(), *ELSEWHERE}
    found = [
        f"{module_name(path)}: {use}"
        for path in FILES
        if module_name(path) not in exempt and "torch" in (text := _read(path))
        for use in private_uses(ast.parse(text))
    ]
    assert found == [], "move these to the package's torch_internals.py"


@pytest.mark.parametrize("package", HOMES)
def test_what_the_file_uses_is_in_its_table(package: str) -> None:
    path = next(path for path in FILES if module_name(path) == HOMES[package])
    listed = " ".join(import_module(HOMES[package]).INTERNALS)
    uses = {use.rpartition(".")[2] for use in private_uses(ast.parse(_read(path)))}
    assert {name for name in uses if name not in listed} == set()


@pytest.mark.parametrize("module", sorted(ELSEWHERE))
def test_what_is_used_elsewhere_is_in_the_table_of_its_package(module: str) -> None:
    path = next(path for path in FILES if module_name(path) == module)
    listed = " ".join(import_module(HOMES[module.partition(".")[0]]).INTERNALS)
    uses = {use.rpartition(".")[2] for use in private_uses(ast.parse(_read(path)))}
    assert uses, f"{module} uses nothing private: take it out of ELSEWHERE"
    assert {name for name in uses if name not in listed} == set()


@pytest.mark.parametrize(("home", "names"), USED, ids=[name for _, name in USED])
def test_this_torch_has_it(home: str, names: str) -> None:
    module = import_module(home)
    since = getattr(module, "SINCE", {}).get(names, (0, 0))
    if tuple(map(int, torch.__version__.split(".")[:2])) >= since:
        assert any(_exists(name) for name in names.split(" | ")), (
            f"torch {torch.__version__} has no {names}. Without it: {module.INTERNALS[names]}"
        )


def _exists(dotted: str) -> bool:
    """Whether a name leads to something, or is an attribute that its class sets as it begins."""
    name = dotted.rpartition(".")[2]
    try:
        owner = _module_of(dotted, 1)
    except (ImportError, AttributeError):
        return False
    if hasattr(owner, name) or not isinstance(owner, type):
        return hasattr(owner, name)
    code = vars(owner)["__init__"].__code__  # of another function once torch.compile was used
    set_by_class = {*code.co_names, *code.co_consts}
    return name in set_by_class or name in owner.__annotations__


def _module_of(dotted: str, drop: int) -> Any:
    """The module, or the object in it, that the name without its last parts leads to."""
    parts = dotted.split(".")[:-drop]
    for length in range(len(parts), 0, -1):
        try:
            found = import_module(".".join(parts[:length]))
        except ImportError:
            continue
        return reduce(getattr, parts[length:], found)
    raise ImportError(dotted)


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
