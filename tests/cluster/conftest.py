"""The clusters of `slurm.devcluster` as fixtures: one of each form, shared by all tests."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from hpckit.submit.continuation.continuation_choice import parse_version
from slurm.devcluster import tools
from slurm.devcluster.cluster import Cluster
from slurm.devcluster.errors import MissingToolError
from slurm.devcluster.files import debian_packages
from slurm.devcluster.options import ClusterOptions, Form
from tests.cluster import guard
from tests.cluster.slurm import Slurm
from tests.startup.fork_request import IN_JOBS

# As soon as a busy machine allows, a silent node is down; and a cancelled job has time to save
_QUICK = ("MessageTimeout=3", "TCPTimeout=2", "KillWait=30")


_SLURM = "HPCKIT_TEST_SLURM"
"""The variable that names another release of Slurm than this machine's for all tests on clusters,
as `devcluster/up --slurm` does; see `make test-slurm`."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave tests marked `since_slurm` to a release of Slurm that is new enough."""
    marked = {item: item.get_closest_marker("since_slurm") for item in items}
    since = {item: parse_version(marker.args[0]) for item, marker in marked.items() if marker}
    if not since:
        return
    name = os.environ.get(_SLURM)
    release = None if name is None else parse_version(name)
    if release is None and tools.are_there(tools.SLURM):
        release = tools.version_of(None)
    early = [item for item, version in since.items() if version and (release or (0, 0)) < version]
    if early:
        config.hook.pytest_deselected(items=early)
        items[:] = [item for item in items if item not in early]


def options(form: Form, nodes: int = 3) -> ClusterOptions:
    """Slurm 24.11 with a `SlurmdTimeout` of 5 took nodes that answered for lost within the first 6
    seconds of 4 clusters of 48; with 10, and this machine's Slurm with 5, it took none."""
    slurm = other_slurm()
    return ClusterOptions(
        nodes=nodes,
        form=form,
        grace_s=2,
        slurmd_timeout_s=15 if slurm else 5,
        slurm=slurm,
        settings=_QUICK,
    )


def other_slurm() -> str | None:
    """The folder of the Slurm that the environment asks for; None: this machine's."""
    name = os.environ.get(_SLURM)
    return str(debian_packages.unpack(name)) if name else None


_SIGNALLED_BY_SLURM = (
    *("test_beginning", "test_endings", "test_expedited_requeue", "test_own_jobs", "test_runs"),
    "test_wrappers",
)
"""Files of tests about what Slurm's signals do to the processes of a job."""


@pytest.fixture(autouse=True)
def _forks_in_jobs(request: pytest.FixtureRequest) -> Iterator[None]:
    """Supervisors and watchdogs of other tests are forks that have their imports done."""
    with pytest.MonkeyPatch.context() as patch:
        if request.path.stem not in _SIGNALLED_BY_SLURM:
            patch.setenv(IN_JOBS, "1")
        yield


@pytest.fixture(scope="session")
def ports_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes on this host."""
    need("ports")
    with guard.cluster(tmp_path_factory.mktemp("ports"), options("ports")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def namespaces_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three nodes, each with namespaces of its own."""
    need("namespaces")
    with guard.cluster(tmp_path_factory.mktemp("spaces"), options("namespaces")) as cluster:
        yield cluster


@pytest.fixture
def ports(ports_cluster: Cluster) -> Iterator[Slurm]:
    """Without jobs, all nodes idle."""
    slurm = Slurm(ports_cluster)
    yield slurm
    slurm.reset()


@pytest.fixture
def namespaces(namespaces_cluster: Cluster) -> Iterator[Slurm]:
    """Without jobs, all nodes idle."""
    slurm = Slurm(namespaces_cluster)
    yield slurm
    slurm.reset()


@pytest.fixture(params=["ports", "namespaces"])
def slurm(request: pytest.FixtureRequest) -> Slurm:
    """Both of them, one after the other."""
    found: Slurm = request.getfixturevalue(request.param)
    return found


def need(form: Form, *, accounting: bool = False) -> None:
    """Skip the test where something is not installed, or may not be done."""
    try:
        needed = tools.needed(namespaces=form == "namespaces", accounting=accounting)
        tools.check(needed, other_slurm())
    except MissingToolError as error:
        pytest.skip(str(error))
    if form == "namespaces" and os.geteuid() != 0:
        pytest.skip("only root makes namespaces; run the tests as root")
