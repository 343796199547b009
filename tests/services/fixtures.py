"""The servers as fixtures: started when the first test asks, shared by all, gone at the end.

HPCKIT_TEST_S3 says which server `s3_server` and `s3_url` are: "ceph", "ministack", or "auto", the
default: Ceph where it is installed, else ministack.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest

from tests.services import browser, ceph, clock, fault_fs, inject, nfs
from tests.services.fault_proxy import FaultProxy, fault_proxy
from tests.services.ministack import MinistackServer, ministack
from tests.services.processes import MissingToolError, ServiceError, find_tools
from tests.services.s3 import S3Place, S3Server

RunInNfs: TypeAlias = Callable[..., nfs.Finished]  # as nfs.run_in_nfs
Inject: TypeAlias = Callable[[list[str]], AbstractContextManager[inject.Injected]]


@dataclass(frozen=True)
class FaultyS3:
    """One place in a bucket, behind a proxy and past it."""

    proxy: FaultProxy
    place: S3Place  # through the proxy
    direct: S3Place


@pytest.fixture(scope="session")
def ceph_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ceph.CephServer]:
    """A real S3 server, over http and https. Whoever sets a quota or stops it puts it right."""
    _need(lambda: find_tools(ceph.TOOLS))
    with ceph.ceph(tmp_path_factory.mktemp("services")) as server:
        yield server


@pytest.fixture(scope="session")
def ministack_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinistackServer]:
    """The emulator of today's AWS, over http."""
    with ministack(tmp_path_factory.mktemp("services")) as server:
        yield server


@pytest.fixture(scope="session")
def s3_server(request: pytest.FixtureRequest) -> S3Server:
    """The server that HPCKIT_TEST_S3 names."""
    server: S3Server = request.getfixturevalue(f"{chosen_server(os.environ)}_server")
    return server


@pytest.fixture
def s3_url(s3_server: S3Server) -> S3Place:
    """A prefix in a new bucket: `.url`, and `.options` or `.env` that lead a client to it."""
    return s3_server.new_place()


@pytest.fixture
def faulty_s3(s3_url: S3Place, s3_server: S3Server) -> Iterator[FaultyS3]:
    """A new place behind a fault proxy, which the test tells what to do."""
    with fault_proxy(s3_server.http) as proxy:
        yield FaultyS3(proxy, s3_url.through(proxy.endpoint), s3_url)


@pytest.fixture(scope="session")
def run_in_nfs() -> RunInNfs:
    """`nfs.run_in_nfs`, where user-mode Linux and NFS are installed."""
    _need(lambda: find_tools(nfs.TOOLS))
    return nfs.run_in_nfs


@pytest.fixture(scope="session")
def inject_faults() -> Inject:
    """`inject.inject`, where strace is installed."""
    _need(lambda: find_tools(inject.TOOLS))
    return inject.inject


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[browser.Browser]:
    """A real browser with one page, where it is installed."""
    _need(lambda: find_tools(browser.TOOLS))
    with browser.browser(tmp_path_factory.mktemp("browser")) as running:
        yield running


@pytest.fixture
def stepped_clock(tmp_path: Path) -> clock.SteppedClock:
    """A clock that the test sets."""
    _need(lambda: find_tools(clock.TOOLS))
    return clock.stepped_clock(tmp_path)


@pytest.fixture
def faulty_folder(tmp_path: Path) -> Iterator[fault_fs.FaultFs]:
    """A folder on a FUSE file system, which the test tells what to do."""
    _need(fault_fs.find_fuse)
    with fault_fs.fault_fs(tmp_path) as fs:
        yield fs


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    with disk_of(4, tmp_path) as path:
        yield path


@contextmanager
def disk_of(mib: int, folder: Path) -> Iterator[Path]:
    """A file system of that size; the test is skipped for who cannot mount one."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts a small disk; run the tests as root")
    with fault_fs.small_disk(folder, mib) as path:
        yield path


def _need(find: Callable[[], object]) -> None:
    """Skip the test where something is not installed, and say what."""
    try:
        find()
    except ServiceError as error:
        pytest.skip(str(error))


def chosen_server(env: Mapping[str, str]) -> str:
    """ "ceph" or "ministack".

    Raises:
        pytest.UsageError: HPCKIT_TEST_S3 names neither.
    """
    choice = env.get("HPCKIT_TEST_S3", "auto")
    if choice in ("ceph", "ministack"):
        return choice
    if choice != "auto":
        raise pytest.UsageError(f"HPCKIT_TEST_S3={choice!r}: say auto, ceph or ministack")
    try:
        find_tools(ceph.TOOLS)
    except MissingToolError:
        return "ministack"
    return "ceph"
