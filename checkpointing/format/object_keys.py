"""The keys of a store's objects, relative to its root."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

STORE = "hpckit.json"
PACKS = "packs/"
RUNS = "runs/"
LEASES = "leases/"
DELETION_MARKS = "tombs/"
MAX_STEP = 10**10 - 1  # ten digits, so that keys sort as numbers

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
    """The name of a checkpoint, or of a save that may become one."""

    run: str
    step: int
    # 8 hex digits of the session that saves; a step saved again after a restore has another
    session: str

    @property
    def id(self) -> str:
        """The id, such as "0000000100-89abcdef", unique within its run."""
        return f"{self.step:010d}-{self.session}"

    def manifest(self, revision: int = 0) -> str:
        suffix = f".{revision}" if revision else ""
        return f"{steps(self.run)}{self.id}{suffix}.manifest"

    @property
    def parts(self) -> str:
        """The prefix of the keys of its part records."""
        return f"{parts(self.run)}{self.id}."

    def part(self, rank: int) -> str:
        return f"{self.parts}{rank:05d}"


def check_run(run: str) -> str:
    """Returns `run`.

    Raises:
        ValueError: it is not a valid name.
    """
    if not _RUN.fullmatch(run):
        raise ValueError(
            f"run name {run!r}: use letters, digits, '.', '_' and '-', starting with a letter or "
            "digit (it becomes a folder)"
        )
    return run


def check_mark(name: str) -> str:
    """Returns `name`.

    Raises:
        ValueError: it is not a valid name.
    """
    if not _MARK.fullmatch(name):
        raise ValueError(
            f"name {name!r}: use letters, digits, '.', '_' and '-', starting with a letter or digit"
        )
    return name


def new_session() -> str:
    return secrets.token_hex(4)


def check_step(step: int) -> int:
    """Returns `step`.

    Raises:
        ValueError: it is not a valid step.
    """
    if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step <= MAX_STEP:
        raise ValueError(f"a step must be a whole number from 0 to {MAX_STEP}, got {step!r}")
    return step


def is_session(text: str) -> bool:
    return _SESSION.fullmatch(text) is not None


def steps(run: str) -> str:
    return f"{RUNS}{run}/steps/"


def parts(run: str) -> str:
    return f"{RUNS}{run}/parts/"


def parse_manifest(key: str) -> tuple[SaveId, int] | None:
    """Returns the save and the revision in a manifest's key; None if it is another key."""
    match = _MANIFEST.fullmatch(key)
    if match is None:
        return None
    return SaveId(match[1], int(match[2]), match[3]), int(match[4] or 0)


def parse_part(key: str) -> tuple[SaveId, int] | None:
    """Returns the save and the rank in a part record's key; None if it is another key."""
    match = _PART.fullmatch(key)
    return (SaveId(match[1], int(match[2]), match[3]), int(match[4])) if match else None


def new_pack(session: str) -> bytes:
    """Returns a name that no other pack has. Its last four bytes are the session that wrote it, so
    that a sweep knows it without opening the pack; its first byte spreads packs over folders."""
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
    """Returns the key of a renewal of a lease. Each renewal is an object of its own: a write that
    timed out and lands late must not replace a newer one. The keys sort as numbers, so that a
    listing in order of keys that is too late for one renewal does not miss the next."""
    return f"{LEASES}{session}.{renewal:010d}.lease"


def fence(session: str) -> str:
    return f"{LEASES}{session}.fence"


def parse_lease(key: str) -> tuple[str, str] | None:
    """Returns the session in the key, and "lease" or "fence"."""
    match = _LEASE.fullmatch(key)
    return (match[1], match[2]) if match else None


def clock(name: str) -> str:
    """Returns the key of an object that is written to read the storage's time."""
    return f"{LEASES}clock-{name}"


def is_leftover(key: str) -> bool:
    """Whether an object beside the leases (a fence or a clock) may be removed once it is old."""
    parsed = parse_lease(key)
    return bool(_CLOCK.fullmatch(key.removeprefix(LEASES))) or (parsed or ("", ""))[1] == "fence"


def owners(run: str) -> str:
    return f"{RUNS}{run}/owners/"


def owner(run: str, number: int) -> str:
    """Returns the key of the `number`-th run owner of a run, counted from 1."""
    return f"{owners(run)}{number:010d}"


def parse_owner(key: str) -> tuple[str, int] | None:
    """Returns the run and the number in a run owner's key."""
    match = _OWNER.fullmatch(key)
    return (match[1], int(match[2])) if match else None


def deletion_mark(name: str) -> str:
    return f"{DELETION_MARKS}{name}"


def marks(run: str) -> str:
    return f"{RUNS}{run}/marks/"


def mark(run: str, name: str) -> str:
    return f"{marks(run)}{name}"
