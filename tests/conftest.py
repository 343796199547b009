"""Options of the whole suite."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Generator, Iterator
from fnmatch import fnmatchcase

import pytest
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from tests.integration.service.running_services import kill_all

# What was started in the background of a shell ignores it, and so would every run under test
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says something of the machine, and nothing of the code
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

pytest_plugins = ["tests.services.fixtures", "tests.integration.run.run_fixtures"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="count a skipped test as failed: on a machine that has to have everything",
    )


# One worker for all tests of a file, and for those that share what takes long to start; those on
# clusters wait most of their time, and no worker is to have all of that
_TOGETHER = {
    "tests/cluster/test_[a-h]*": "clusters",
    "tests/cluster/test_[i-z]*": "other clusters",
    "tests/faults/test_store_nfs*": "nfs",
    "tests/integration/services/test_nfs*": "nfs",
}


class _Together(LoadScopeScheduling):  # type: ignore[misc]
    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        found = (scope for files, scope in _TOGETHER.items() if fnmatchcase(file, files))
        return next(found, file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Together:
    return _Together(config, log)


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
        yield
        kill_all()
