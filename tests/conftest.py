"""Options of the whole suite."""

from __future__ import annotations

import signal
from collections.abc import Generator

import pytest

# What was started in the background of a shell ignores it, and so would every run under test
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["tests.services.fixtures"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--no-skips",
        action="store_true",
        help="count a skipped test as failed: on a machine that has to have everything",
    )


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
