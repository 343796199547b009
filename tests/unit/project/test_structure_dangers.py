"""Nothing runs what it reads: no unpickling, no evaluation, no shell, anywhere in the tree."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from hpckit.rundir.directory import RunDir
from hpckit.submit.composition import quick_composition
from hpckit.submit.job_submission import submit
from hpckit.text import plain_yaml
from tests.unit.hpckit.specs_and_processes import CHECKOUT
from tests.unit.project.test_structure import FILES, STARTER

TREE = [*FILES, *STARTER.rglob("*.py"), *(CHECKOUT / "slurm").rglob("*.py")]
MODULES = {"marshal", "shelve", "dill", "cloudpickle", "joblib", "torch.utils.cpp_extension"}
CALLS = {
    *("eval", "exec", "compile", "os.system", "os.popen", "subprocess.getoutput"),
    *("subprocess.getstatusoutput", "yaml.load_all", "yaml.unsafe_load", "yaml.full_load"),
    *("numpy.fromregex", "pandas.read_pickle", "tempfile.mktemp"),
    *("runpy.run_path", "runpy.run_module"),
}
# What unpickles: from a process's own children and parent, through memory that nobody else has.
# A worker of a DataLoader does the same. Nothing of it was ever a file.
# The ranks of a job, which have proved that they know its key, exchange objects as in torch's
# collectives.
OWN_PROCESSES = {
    "checkpointing/ranks/rank_group.py",
    "data/read/processes/shared_memory_slot.py",
    "data/read/processes/remote_errors.py",
}
# Connection.recv() unpickles, too. These are the ends of a socket pair that a reader has made
# before it forked its worker: a file system or a network has no name for it.
OWN_PIPES = {"data/read/processes/reader_process.py", "data/read/processes/reader_worker.py"}
# The program that the user has named on the command line, as `python train.py` would run it.
USER_PROGRAM = "hpckit/trainer/user_program.py"
# Loaders that make plain data only, by the files that use them. The last one reads files that are
# distributed with hpckit.
SAFE_YAML = {
    "hpckit/text/plain_yaml.py": {"_FAST_LOADER", "_PlainLoader"},
    "hpckit/submit/composition/quick_composition.py": {"_OwnLoader"},
}


def dangers(tree: ast.AST, place: str) -> Iterator[str]:
    """What in `tree` can run what it reads, each with its line."""
    names = dict(imported_names(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            modules = [alias.name for alias in node.names]
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            yield from (f"{node.lineno}: imports {name}" for name in MODULES & {*modules})
        elif isinstance(node, ast.Call):
            what = dotted(node.func, names)
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if is_danger(what, given, len(node.args), place):
                yield f"{node.lineno}: {ast.unparse(node)[:80]}"


def is_danger(what: str, given: dict[str | None, str], arguments: int, place: str) -> bool:
    if what in ("pickle.load", "pickle.loads", "pickle.Unpickler"):
        return place not in OWN_PROCESSES
    if what.endswith(".recv") and not arguments:  # a socket's is given a size
        return place not in OWN_PIPES
    if what == "torch.load":
        return given.get("weights_only") != "True"
    if what == "numpy.load":
        return given.get("allow_pickle") != "False"
    if what == "yaml.load":
        return place not in SAFE_YAML
    if what in ("exec", "compile", "runpy.run_module") and place == USER_PROGRAM:
        return False
    return what in CALLS or given.get("shell", "False") != "False"


def imported_names(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """What a name in the file stands for: np for numpy, loads for pickle.loads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((a.asname, a.name) for a in node.names if a.asname)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from ((a.asname or a.name, f"{node.module}.{a.name}") for a in node.names)


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    head, dot, rest = ast.unparse(node).partition(".")
    return f"{names.get(head, head)}{dot}{rest}"


def test_nothing_runs_what_it_reads() -> None:
    found = []
    for path in TREE:
        place = str(path.relative_to(CHECKOUT))
        tree = ast.parse(path.read_text(encoding="utf-8"))
        found += [f"{place}:{danger}" for danger in dangers(tree, place)]
    assert found == []


@pytest.mark.parametrize(
    "line",
    [
        *("import pickle\npickle.loads(x)", "from pickle import loads as l\nl(x)", "eval(x)"),
        *("import numpy as np\nnp.load(x)", "import numpy\nnumpy.load(x, allow_pickle=True)"),
        *("import torch\ntorch.load(x)", "from torch import load\nload(x, weights_only=False)"),
        *("import yaml\nyaml.load(x, yaml.Loader)", "from yaml import unsafe_load\nunsafe_load(x)"),
        *("import os\nos.system(x)", "import subprocess\nsubprocess.run(x, shell=True)"),
        *("def f(pipe):\n    return pipe.recv()", "a.connection.recv()"),
        *("def f():\n    import dill", "from joblib import load", "exec(x)"),
    ],
)
def test_each_danger_is_seen(line: str) -> None:
    assert list(dangers(ast.parse(line), "any.py"))


def test_yaml_is_read_by_a_safe_loader() -> None:
    assert issubclass(plain_yaml._PlainLoader, yaml.SafeLoader)
    assert plain_yaml._FAST_LOADER is getattr(yaml, "CSafeLoader", None)
    assert issubclass(quick_composition._OwnLoader, yaml.CSafeLoader)
    for place, loaders in SAFE_YAML.items():
        tree = ast.parse((CHECKOUT / place).read_text(encoding="utf-8"))
        calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
        loads = [call for call in calls if ast.unparse(call.func) == "yaml.load"]
        assert {ast.unparse(call.args[1]) for call in loads} == loaders
        assert all(len(call.args) == 2 and not call.keywords for call in loads)


def test_submitits_pickle_holds_a_path_and_is_this_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os
    import stat

    run = RunDir(tmp_path / "run")
    monkeypatch.setenv("PLANTED", "hush5ecret")
    before = os.umask(0)
    try:
        job = submit(run, 1)  # there is no such run: its supervisor ends at once
        job.wait()
    finally:
        os.umask(before)
    (path,) = run.submitit.glob("*_submitted.pkl")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = path.read_bytes()
    assert b"hush5ecret" not in content
    sent = pickle.loads(content)  # of our own
    function = f"{sent.function.__module__}.{sent.function.__qualname__}"
    assert (function, sent.args[:2]) == (
        "hpckit.supervisor.supervisor.supervise",
        (str(run.path), 1),
    )
    assert sent.kwargs == {}
