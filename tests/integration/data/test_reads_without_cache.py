"""Without a cache, each read is a request: neighbours of a batch are read by one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from data import FetchError, Loader, ObjectChangedError, SampleError, open_dataset
from data.index.index_build import build_index
from data.source.retry import SourceRetryPolicy
from data.source.sources import Sources
from tests.integration.cli.data_commands import EACH, SHARDS, SIZE, serve
from tests.services.range_server import RangeServer
from tests.unit.data.tars import write_tar

QUICK = SourceRetryPolicy(budget_s=0.5, first_s=0.01, longest_s=0.05, least_tries=2)
KEYS = [f"{number:03d}" for number in range(SHARDS * EACH)]


@pytest.fixture(autouse=True)
def _indexes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))


def loader_of(place: str, **options: object) -> Loader:
    dataset = open_dataset(place, sources=Sources(retry=QUICK))
    for shard in range(SHARDS):
        dataset.opened(shard)  # its index, by requests of its own
    return Loader(dataset, global_batch=EACH, epochs=1, **options)  # type: ignore[arg-type]


def test_a_batch_of_neighbours_is_one_request(
    server: RangeServer, local: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loader = loader_of(serve(server, local), shuffle=False)
    server.headers.clear()
    found = [sample for batch in loader for sample in batch.data]
    assert [sample["__key__"] for sample in found] == KEYS
    contents = [sample["bin"] for sample in found]
    assert contents == [number.to_bytes(2, "little") * (SIZE // 2) for number in range(len(KEYS))]
    assert len(server.headers) == SHARDS
    assert not caplog.messages
    loader.close()


def test_a_shuffled_epoch_has_each_sample_once(
    server: RangeServer, local: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loader = loader_of(serve(server, local))
    server.headers.clear()
    assert sorted(key for batch in loader for key in batch.keys) == KEYS
    said = "is a request, as they are shuffled and there is no cache"
    assert sum(said in message for message in caplog.messages) == 1
    assert len(server.headers) <= len(KEYS)
    loader.close()


@pytest.mark.parametrize("hashes", [False, True])
def test_all_members_of_a_large_sample_are_one_request(
    server: RangeServer, tmp_path: Path, hashes: bool
) -> None:
    folder = tmp_path / "large"
    folder.mkdir()
    contents = [bytes([number]) * 60_000 for number in range(6)]
    files = [
        (f"{number}.{kind}", content if kind == "bin" else b"label")
        for number, content in enumerate(contents)
        for kind in ("bin", "cls")
    ]
    build_index(write_tar(folder / "s-0.tar", files), hash=hashes)
    dataset = open_dataset(serve(server, folder))
    dataset.opened(0)  # its index, by requests of its own
    loader = Loader(dataset, global_batch=1, epochs=1)
    server.headers.clear()
    found = {batch.keys[0]: batch.data[0] for batch in loader}
    assert [found[str(number)]["bin"] for number in range(6)] == contents
    assert {sample["cls"] for sample in found.values()} == {b"label"}
    assert len(server.headers) == 6
    loader.close()


def test_a_sample_that_is_wrong_is_an_error_of_its_own(server: RangeServer, local: Path) -> None:
    place = serve(server, local)
    shard = server.objects["/set/s-00.tar"]
    at = shard.body.index((7).to_bytes(2, "little") * (SIZE // 2))
    shard.body = shard.body[:at] + b"!" + shard.body[at + 1 :]
    loader = loader_of(place, shuffle=False, errors="skip")
    batch = next(iter(loader))
    assert list(batch.keys) == [key for key in KEYS[:EACH] if key != "007"]
    assert batch.errors == 1
    loader.close()


def test_samples_of_two_versions_of_a_shard_are_never_mixed(
    server: RangeServer, tmp_path: Path
) -> None:
    """Both versions have the same headers, so only the etag tells them apart."""
    folder = tmp_path / "versions"
    folder.mkdir()
    for version in (b"1", b"2"):
        files = [(f"{number}.bin", version * 3000) for number in range(4)]
        body = write_tar(folder / "s-0.tar", files).read_bytes()
        if version == b"1":
            build_index(folder)
            place = serve(server, folder)
    dataset = open_dataset(place, sources=Sources(retry=QUICK))
    assert dataset.read(0)["bin"] == b"1" * 3000
    server.put("/set/s-0.tar", body, etag='"other"')
    with pytest.raises(ObjectChangedError, match="the object was replaced"):
        dataset.read(1)
    again = open_dataset(place, sources=Sources(retry=QUICK))
    assert {again.read(number)["bin"] for number in range(4)} == {b"2" * 3000}


def test_a_source_that_breaks_off_is_tried_for_all_of_a_group_and_not_for_each_sample(
    server: RangeServer, local: Path
) -> None:
    loader = loader_of(serve(server, local), shuffle=False, threads=0)
    shard = server.objects["/set/s-00.tar"]
    shard.body, shard.more = b"", len(shard.body)
    server.headers.clear()
    with pytest.raises(SampleError) as caught:
        next(iter(loader))
    assert isinstance(caught.value.__cause__, FetchError)
    assert len(server.headers) > 1
    assert len({headers["range"] for headers in server.headers}) == 1
    loader.close()


def test_a_sample_that_a_batch_has_twice_is_two_objects(server: RangeServer, local: Path) -> None:
    loader = Loader(
        open_dataset(serve(server, local)),
        global_batch=2 * SHARDS * EACH,
        tail="pad",
        epochs=1,
        transform=lambda sample, _: sample.pop("bin")[:2],
    )
    (batch,) = loader
    numbers = [int.from_bytes(content, "little") for content in batch.data]
    assert numbers == [int(key) for key in batch.keys]
    assert len(numbers) == 2 * SHARDS * EACH
    loader.close()


def test_samples_before_the_end_of_a_short_object_are_read(
    server: RangeServer, local: Path
) -> None:
    loader = loader_of(serve(server, local), shuffle=False, errors="skip")
    shard = server.objects["/set/s-00.tar"]
    at = shard.body.index((12).to_bytes(2, "little") * (SIZE // 2))
    shard.body = shard.body[: at + 1]
    batch = next(iter(loader))
    assert list(batch.keys) == KEYS[:12]
    loader.close()


def test_a_program_that_fails_ends(server: RangeServer, local: Path) -> None:
    program = (
        "import sys\nfrom data import Loader, open_dataset\n"
        "def failing(*_): raise KeyError('mine')\n"
        "loader = Loader(open_dataset(sys.argv[1]), global_batch=4, transform=failing)\n"
        "for batch in loader: pass\n"
    )
    command = [sys.executable, "-c", program, serve(server, local)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert "KeyError: 'mine'" in ended.stderr
