"""Which shards of a dataset differ from those that a run has read."""

from data.index.manifest import make_manifest
from data.index.manifest_rows import ShardRow
from hpckit.trainer.batches.recorded_loader import differing_shards

A, B, C = (
    ShardRow(f"https://me:password@host/{name}.tar?signature=1", 1, 10, None, None, "00" * 32)
    for name in "abc"
)


def test_shards_that_differ_are_named_without_their_secrets() -> None:
    found = differing_shards(make_manifest([A, B]), make_manifest([B._replace(digest="01" * 32)]))
    assert found == "https://host/a.tar?… are missing; https://host/b.tar?… have changed"
    assert differing_shards(make_manifest([A, B]), make_manifest([A, B, C])) is None
