"""What goes wrong at a source, as the consumer of a loader sees it: on the very batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from data import (
    DamagedShardError,
    Dataset,
    FetchError,
    Loader,
    NodeStore,
    SampleError,
    build_index,
)
from data.index.manifest import NAME, Manifest
from data.source.retry import SourceRetryPolicy
from data.source.sources import Sources
from tests.integration.cli.data_commands import EACH, SHARDS, write_shards
from tests.services.fault_proxy import FaultProxy, fault_proxy
from tests.services.faults import SLOW_DOWN
from tests.services.range_server import RangeServer

QUICK = SourceRetryPolicy(budget_s=0.3, first_s=0.01, longest_s=0.05, least_tries=2)
BAD = 2  # the shard
FIRST = BAD * EACH  # of its samples
BATCH = 10


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_shards(tmp_path_factory.mktemp("shards"))
    build_index(folder, hash=True)
    return folder


@pytest.fixture
def proxy(server: RangeServer) -> Iterator[FaultProxy]:
    with fault_proxy(server.url) as proxy:
        yield proxy


@pytest.fixture
def manifest(
    proxy: FaultProxy,
    server: RangeServer,
    local: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Manifest:
    """With hashes; the indexes are kept here."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    for path in local.iterdir():
        server.put(f"/{path.name}", path.read_bytes())
    urls = [f"{proxy.endpoint}/s-{number:02d}.tar" for number in range(SHARDS)]
    return build_index(urls, tmp_path / NAME, hash=True, source=Sources())


@pytest.fixture
def dataset(manifest: Manifest, tmp_path: Path) -> Iterator[Dataset]:
    """Of a store that gives no bytes before it has seen their hash."""
    sources = Sources(retry=QUICK)
    with NodeStore(
        tmp_path / "c", 10**9, sources=sources, free_reserve=0, read_growing=False
    ) as store:
        yield Dataset(manifest, store)


def missing(proxy: FaultProxy, server: RangeServer) -> None:
    del server.objects[f"/s-{BAD:02d}.tar"]


def busy(proxy: FaultProxy, server: RangeServer) -> None:
    proxy.inject(SLOW_DOWN, key=rf"s-{BAD:02d}\.tar")


def damaged(proxy: FaultProxy, server: RangeServer) -> None:
    held = server.objects[f"/s-{BAD:02d}.tar"]
    held.body = held.body[:1500] + b"\xff" + held.body[1501:]


FAULTS = [
    pytest.param(missing, FetchError, "404 Not Found", 1, id="404"),
    pytest.param(busy, FetchError, "given up after", 2, id="503"),
    pytest.param(
        damaged, DamagedShardError, "downloaded twice with bytes that differ", 0, id="hash"
    ),
]


def loader_of(dataset: Dataset, **more: Any) -> Loader:
    return Loader(dataset, global_batch=BATCH, epochs=1, shuffle=False, prefetch=1, **more)


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("fault", "kind", "words", "attempts"), FAULTS)
def test_it_is_raised_on_its_batch(
    dataset: Dataset,
    proxy: FaultProxy,
    server: RangeServer,
    fault: Any,
    kind: type[FetchError],
    words: str,
    attempts: int,
    workers: int,
) -> None:
    fault(proxy, server)
    loader = loader_of(dataset, workers=workers)
    batches = iter(loader)
    for number in range(FIRST // BATCH):
        assert next(batches).keys[0] == f"{number * BATCH:03d}"
    with pytest.raises(SampleError, match=words) as caught:
        next(batches)
    assert loader.state_dict()["position"] == caught.value.position == FIRST
    assert str(caught.value.shard).endswith(f"/s-{BAD:02d}.tar")
    cause = caught.value.__cause__
    assert isinstance(cause, kind)
    assert len(cause.attempts) >= attempts
    loader.close()


@pytest.mark.parametrize("policy", ["skip", "substitute"])
@pytest.mark.parametrize(("fault", "kind", "words", "attempts"), FAULTS)
def test_it_is_borne_where_that_is_said(
    dataset: Dataset,
    proxy: FaultProxy,
    server: RangeServer,
    caplog: pytest.LogCaptureFixture,
    fault: Any,
    kind: type[FetchError],
    words: str,
    attempts: int,
    policy: Any,
) -> None:
    fault(proxy, server)
    before = len(proxy.seen)
    loader = Loader(
        dataset,
        global_batch=SHARDS,
        epochs=1,
        streams=1,
        window=SHARDS,
        errors=policy,
        most_errors_in_a_row=200,
        most_errors=1000,
    )
    keys = [key for batch in loader for key in batch.keys]
    loader.close()
    good = {f"{number:03d}" for number in range(SHARDS * EACH) if number // EACH != BAD}
    if policy == "skip":
        assert sorted(keys) == sorted(good)
    else:
        assert len(keys) == SHARDS * EACH
        assert set(keys) == good
    assert loader.usage.errors >= EACH
    assert words in caplog.text
    # each sample of a dead shard is an error of its own, but not a request of its own
    assert len(proxy.seen) - before < 100
