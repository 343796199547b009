"""`hpckit data index`, `ls` and `verify` on shards that are read over http."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli.data_commands import EACH, SHARDS, document, hpckit, write_shards
from tests.services.range_server import RangeServer, range_server


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[RangeServer]:
    """Shards without any index at `/b/`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    with range_server() as server:
        for path in write_shards(tmp_path / "shards").glob("*.tar"):
            server.put(f"/b/{path.name}", path.read_bytes())
        yield server


def test_shards_at_urls_are_indexed_listed_and_verified(
    server: RangeServer, tmp_path: Path
) -> None:
    names = sorted(path.name for path in (tmp_path / "shards").glob("*.tar"))
    urls = [f"{server.url}/b/{name}" for name in names]
    place = tmp_path / "far.index"
    told = document("index", f"{server.url}/b/s-{{00..{SHARDS - 1:02d}}}.tar", "--out", place)
    assert (told["shards"], told["samples"]) == (SHARDS, SHARDS * EACH)
    assert [one["url"] for one in document("ls", place)["listed"]] == urls
    assert len(document("ls", place, "--shard", 1)["listed"]) == EACH
    assert hpckit("verify", place).exit_code == 0
    server.put("/b/dataset.index", place.read_bytes())
    assert document("ls", f"{server.url}/b/")["shards"] == SHARDS
    assert hpckit("verify", f"{server.url}/b/").exit_code == 0
    server.put(f"/b/{names[1]}", b"\0" * (tmp_path / "shards" / names[1]).stat().st_size)
    found = document("verify", place, exit_code=1)
    assert [one["url"] for one in found["shards"] if one["problem"]] == [urls[1]]


def test_urls_that_lead_nowhere_are_all_named(server: RangeServer, tmp_path: Path) -> None:
    done = hpckit("index", f"{server.url}/b/none-{{0..1}}.tar", "--out", tmp_path / "x.index")
    assert done.exit_code == 1
    assert "2 of 2 shards cannot be indexed" in done.stderr
    assert all(f"/b/none-{n}.tar: cannot be fetched: 404" in done.stderr for n in (0, 1))
