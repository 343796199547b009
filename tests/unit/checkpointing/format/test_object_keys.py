"""Keys of objects: what is made is read back, and nothing else is taken for one's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpointing.format import object_keys
from checkpointing.format.object_keys import MAX_STEP, SaveId
from checkpointing.storage.key_rules import check_key

RUNS = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,20}", fullmatch=True)
SESSIONS = st.from_regex(r"[0-9a-f]{8}", fullmatch=True)
SAVES = st.builds(SaveId, RUNS, st.integers(0, MAX_STEP), SESSIONS)


@given(SAVES, st.integers(0, 200), st.integers(0, 200_000))
def test_keys_are_read_back(save: SaveId, revision: int, rank: int) -> None:
    assert object_keys.parse_manifest(save.manifest(revision)) == (save, revision)
    assert object_keys.parse_part(save.part(rank)) == (save, rank)
    assert save.part(rank).startswith(save.parts)
    for key in (save.manifest(revision), save.part(rank)):
        assert check_key(key) == key


@given(SESSIONS)
def test_packs_and_leases_are_read_back(session: str) -> None:
    pack = object_keys.new_pack(session)
    assert object_keys.parse_pack(object_keys.pack_key(pack)) == pack
    assert object_keys.pack_session(pack) == session
    assert object_keys.parse_lease(object_keys.lease(session, 7)) == (session, "lease")
    assert object_keys.parse_lease(object_keys.fence(session)) == (session, "fence")


def test_names_that_are_made_are_all_different() -> None:
    assert len({object_keys.new_pack("0" * 8) for _ in range(1000)}) == 1000
    assert len({object_keys.new_session() for _ in range(1000)}) > 990
    assert all(object_keys.is_session(object_keys.new_session()) for _ in range(100))


@given(SAVES, SAVES)
def test_keys_of_one_run_sort_by_step(one: SaveId, other: SaveId) -> None:
    later = SaveId(one.run, other.step, other.session)
    assert (one.manifest() < later.manifest()) == (
        (one.step, one.session) < (later.step, later.session)
    )


def test_how_keys_look() -> None:
    save = SaveId("gpt-7b", 100, "89abcdef")
    assert save.id == "0000000100-89abcdef"
    assert save.manifest() == "runs/gpt-7b/steps/0000000100-89abcdef.manifest"
    assert save.manifest(2) == "runs/gpt-7b/steps/0000000100-89abcdef.2.manifest"
    assert save.part(7) == "runs/gpt-7b/parts/0000000100-89abcdef.00007"
    assert save.part(123_456).endswith(".123456")
    assert (
        object_keys.pack_key(bytes(range(16))) == "packs/00/000102030405060708090a0b0c0d0e0f.pack"
    )
    assert object_keys.lease("89abcdef", 12) == "leases/89abcdef.0000000012.lease"
    assert object_keys.owner("gpt-7b", 12) == "runs/gpt-7b/owners/0000000012"
    assert object_keys.parse_owner("runs/gpt-7b/owners/0000000012") == ("gpt-7b", 12)
    assert object_keys.parse_owner("runs/gpt-7b/owners/0000000012~claims/1.body") is None
    assert object_keys.mark("gpt-7b", "best") == "runs/gpt-7b/marks/best"


@pytest.mark.parametrize(
    "key",
    [
        "hpckit.json",
        "runs/r/lock",
        "runs/r/steps/0000000100-89abcdef.manifest.tmp",
        "runs/r/steps/.0000000100-89abcdef.manifest",
        "runs/r/steps/0000000100-89abcdef.manifest~claim-1",
        "runs/r/steps/100-89abcdef.manifest",
        "runs/r/steps/0000000100-89ABCDEF.manifest",
        "runs/r/steps/0000000100-89abcdef..manifest",
        "runs/r/steps/0000000100-89abcdef.x.manifest",
        "runs/r/steps/0000000100-89abcdef.manifest\n",
        "runs/a/b/steps/0000000100-89abcdef.manifest",
        "runs/r/parts/0000000100-89abcdef.1",
        "runs/r/parts/0000000100-89abcdef.00001.tmp",
        "packs/00/000102030405060708090a0b0c0d0e0f.pack.tmp",
        "packs/01/000102030405060708090a0b0c0d0e0f.pack",
        "packs/000102030405060708090a0b0c0d0e0f.pack",
        "packs/00/000102030405060708090A0B0C0D0E0F.pack",
        "leases/clock-0123abcd",
        "leases/0123abcd.lease.tmp",
        "leases/0123abcg.lease",
        "leases/0123abcd.lock",
        "tombs/0123456789abcdef",
        "",
    ],
)
def test_other_objects_are_none_of_ours(key: str) -> None:
    assert object_keys.parse_manifest(key) is None
    assert object_keys.parse_part(key) is None
    assert object_keys.parse_pack(key) is None
    assert object_keys.parse_lease(key) is None


@pytest.mark.parametrize(
    "name", ["", ".", "..", ".x", "-x", "a/b", "a b", "a~b", "ä", "a\n", "a\0"]
)
def test_what_cannot_be_a_folder_is_no_name(name: str) -> None:
    with pytest.raises(ValueError, match="use letters, digits"):
        object_keys.check_run(name)
    with pytest.raises(ValueError, match="use letters, digits"):
        object_keys.check_mark(name)


@pytest.mark.parametrize("name", ["a", "gpt-7b", "2026.01_x", "a.old1", "0"])
def test_plain_names_are_let_through(name: str) -> None:
    assert object_keys.check_run(name) == object_keys.check_mark(name) == name
