"""Keys of a store's objects, relative to its root."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

STORE = "hpckit.json"
PACKS = "packs/"
RUNS = "runs/"
LEASES = "leases/"
TOMBS = "tombs/"
MAX_STEP = 10**10 - 1  # ten digits, so that names sort as numbers

_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_MARK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SESSION = re.compile(r"[0-9a-f]{8}")
_MANIFEST = re.compile(r"runs/([^/]+)/steps/(\d{10})-([0-9a-f]{8})(?:\.([1-9]\d*))?\.manifest")
_PART = re.compile(r"runs/([^/]+)/parts/(\d{10})-([0-9a-f]{8})\.(\d{5,})")
_OWNER = re.compile(r"runs/([^/]+)/owners/(\d{10})")
_CLOCK = re.compile(r"clock-[0-9a-f]{8}")
_LEASE = re.compile(r"leases/([0-9a-f]{8})(?:\.\d+)?\.(lease|fence)")
_PACK = re.compile(r"packs/([0-9a-f]{2})/([0-9a-f]{32})\.pack")


@dataclass(frozen=True, order=True)
class SaveId:
    """One checkpoint, or a save on its way to become one."""

    run: str
    step: int
    session: str  # 8 hex digits: who saves; a step saved again after going back has another

    @property
    def id(self) -> str:
        """ "0000000100-89abcdef", unique in its run."""
        return f"{self.step:010d}-{self.session}"

    def manifest(self, revision: int = 0) -> str:
        suffix = f".{revision}" if revision else ""
        return f"{steps(self.run)}{self.id}{suffix}.manifest"

    @property
    def parts(self) -> str:
        """What the keys of its part records begin with."""
        return f"{parts(self.run)}{self.id}."

    def part(self, rank: int) -> str:
        return f"{self.parts}{rank:05d}"


def check_run(run: str) -> str:
    """`run` itself.

    Raises:
        ValueError: it is no plain name.
    """
    if not _RUN.fullmatch(run):
        raise ValueError(
            f"run name {run!r}: use letters, digits, '.', '_' and '-', starting with a letter or "
            "digit (it becomes a folder)"
        )
    return run


def check_mark(name: str) -> str:
    """`name` itself.

    Raises:
        ValueError: it is no plain name.
    """
    if not _MARK.fullmatch(name):
        raise ValueError(
            f"name {name!r}: use letters, digits, '.', '_' and '-', starting with a letter or digit"
        )
    return name


def new_session() -> str:
    return secrets.token_hex(4)


def check_step(step: int) -> int:
    """`step` itself.

    Raises:
        ValueError: it cannot be one.
    """
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= MAX_STEP:
        raise ValueError(f"a step is a whole number from 0 to {MAX_STEP}, got {step!r}")
    return step


def is_session(text: str) -> bool:
    return _SESSION.fullmatch(text) is not None


def steps(run: str) -> str:
    return f"{RUNS}{run}/steps/"


def parts(run: str) -> str:
    return f"{RUNS}{run}/parts/"


def parse_manifest(key: str) -> tuple[SaveId, int] | None:
    """The save and revision that a key names; None if it is no manifest's key."""
    match = _MANIFEST.fullmatch(key)
    if match is None:
        return None
    return SaveId(match[1], int(match[2]), match[3]), int(match[4] or 0)


def parse_part(key: str) -> tuple[SaveId, int] | None:
    """The save and the rank."""
    match = _PART.fullmatch(key)
    return (SaveId(match[1], int(match[2]), match[3]), int(match[4])) if match else None


def new_pack(session: str) -> bytes:
    """A name that no other pack has. Its last four bytes are the session that wrote it, so that
    prune can tell whose it is without opening it; its first byte spreads packs over folders."""
    return secrets.token_bytes(12) + bytes.fromhex(session)


def pack_session(pack: bytes) -> str:
    return pack[12:].hex()


def pack_key(pack: bytes) -> str:
    name = pack.hex()
    return f"{PACKS}{name[:2]}/{name}.pack"


def parse_pack(key: str) -> bytes | None:
    match = _PACK.fullmatch(key)
    if match is None or match[1] != match[2][:2]:
        return None
    return bytes.fromhex(match[2])


def lease(session: str, renewal: int) -> str:
    """Each renewal is an object of its own: a write that was given up and lands late must not take
    the place of a newer one. They sort as numbers, so that a listing in order of keys which comes
    too late for one does not miss the next."""
    return f"{LEASES}{session}.{renewal:010d}.lease"


def fence(session: str) -> str:
    return f"{LEASES}{session}.fence"


def parse_lease(key: str) -> tuple[str, str] | None:
    """The session, and "lease" or "fence"."""
    match = _LEASE.fullmatch(key)
    return (match[1], match[2]) if match else None


def clock(name: str) -> str:
    """An object that is made to see what time it is."""
    return f"{LEASES}clock-{name}"


def is_leftover(key: str) -> bool:
    """Whether an object beside the leases may go once it is old: a fence, or a clock."""
    parsed = parse_lease(key)
    return bool(_CLOCK.fullmatch(key.removeprefix(LEASES))) or (parsed or ("", ""))[1] == "fence"


def owners(run: str) -> str:
    return f"{RUNS}{run}/owners/"


def owner(run: str, number: int) -> str:
    """Who took over a run, as the `number`-th from 1 on."""
    return f"{owners(run)}{number:010d}"


def parse_owner(key: str) -> tuple[str, int] | None:
    """The run and the number."""
    match = _OWNER.fullmatch(key)
    return (match[1], int(match[2])) if match else None


def deletion_mark(name: str) -> str:
    return f"{TOMBS}{name}"


def marks(run: str) -> str:
    return f"{RUNS}{run}/marks/"


def mark(run: str, name: str) -> str:
    return f"{marks(run)}{name}"
