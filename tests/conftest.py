"""Options of the whole suite."""

from __future__ import annotations

import gc
import importlib
import itertools
import os
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer

from tests.changed import CHECKOUT
from tests.effort import EFFORT, times
from tests.integration.service.running_services import kill_all
from tests.scheduling import LongestFirst, marker_of
from tests.startup.fork_request import ADDRESS, FOR, WORKERS
from tests.startup.shared_imports import SharedImports

# Several processes share each processor here. Threads that wait for each other by turning round
# would take what the others need; OpenMP reads this as torch is imported
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Thousands of processes import the project: not from source each time, whatever the environment
# says. Processes of jobs do not have this variable, and share imports with those like them
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Servers of S3 are those of the tests, whatever a person or a site has set for others. And each
# client would read all certificates of the machine first, which takes longer than most requests
for _name in [name for name in os.environ if name.startswith("AWS_")]:
    del os.environ[_name]
os.environ["SSL_CERT_FILE"] = str(CHECKOUT / "tests/services/nobody.pem")
os.environ.pop("SSL_CERT_DIR", None)

# Processes of the suite, on clusters too, import tests/startup/sitecustomize.py as they start
os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(CHECKOUT / "tests/startup"), *filter(None, [os.environ.get("PYTHONPATH")])]
)

# What was started in the background of a shell ignores it, and so would every run under test
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says something of the machine, and nothing of the code. With an effort
# of 1 a test has the same examples each time, so that a run tells of the change that it tests; a
# greater effort looks for new ones.
settings.register_profile(
    "any machine",
    deadline=None,
    derandomize=EFFORT <= 1,
    max_examples=times(50),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("any machine")

pytest_plugins = ["tests.services.fixtures", "tests.integration.run.run_fixtures"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="count a skipped test as failed: on a machine that has to have everything",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LongestFirst:
    return LongestFirst(config, log)


_IMPORTS = pytest.StashKey[SharedImports]()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput") and ADDRESS not in os.environ:
        config.stash[_IMPORTS] = SharedImports(config.args)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    """Have the workers take forks of the process that has imported the modules of the tests."""
    os.environ[FOR] = WORKERS


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Tell how many processes shared their imports, and why others did not."""
    if imports := config.stash.get(_IMPORTS, None):
        for how, number in Counter(imports.close()).most_common():
            terminalreporter.write_line(f"imports of {number} processes: {how}")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect the tests without garbage collection, and keep what is there by then out of it: to
    go through all modules and tests takes more than a second, and nothing of them is garbage. See
    `kept_results` for what they do once, if they do it."""
    gc.disable()
    try:
        return (yield)
    finally:
        if {"omegaconf", "typer"} & sys.modules.keys():
            importlib.import_module("tests.startup.kept_results").keep_results()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each test the marker of its folder, for `pytest -m unit`, and leave those marked
    `thorough` to an effort above 1."""
    thorough = [item for item in items if item.get_closest_marker("thorough") and EFFORT <= 1]
    if thorough:
        config.hook.pytest_deselected(items=thorough)
        items[:] = [item for item in items if item not in thorough]
    for item in items:
        item.add_marker(marker_of(item.path.relative_to(CHECKOUT)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    skipped = report.skipped and not hasattr(report, "wasxfail")
    if skipped and item.config.getoption("--no-skips"):
        report.outcome = "failed"
        report.longrepr = f"skipped, which --no-skips forbids: {report.longrepr}"
    return report


@pytest.fixture(scope="session", autouse=True)
def _runtime() -> Iterator[None]:
    """The checkpoint services that tests start listen in a folder of their own, and end with it."""
    with (
        tempfile.TemporaryDirectory(prefix="hpckit-") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("HPCKIT_RUNTIME_DIR", folder)
        patch.setenv("XDG_STATE_HOME", f"{folder}/state")
        yield
        kill_all()


_NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def _own_suspect_list() -> Iterator[None]:
    """What a test records about the nodes of a cluster, no other one is to do without. The patches
    of a test itself are undone before its cluster is left, so `monkeypatch` must not begin here."""
    folder = f"{os.environ['HPCKIT_RUNTIME_DIR']}/state-{next(_NUMBERS)}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", folder)
        yield
