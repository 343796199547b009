"""What NVIDIA's tools and driver say of a node's GPUs: their text to plain data. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

GPUS = (
    "nvidia-smi",
    "--query-gpu=index,uuid,pci.bus_id,ecc.errors.uncorrected.volatile.total,retired_pages.pending",
    "--format=csv,noheader,nounits",
)
ROWS = (
    "nvidia-smi",
    "--query-remapped-rows=gpu_uuid,remapped_rows.pending,remapped_rows.failure",
    "--format=csv,noheader,nounits",
)
UNKNOWN_FIELD = "is not a valid field"
"""What an nvidia-smi says that knows less, or more, than is asked for."""

HARDWARE_XIDS = {
    46: "GPU stopped processing",
    48: "double bit ECC error",
    54: "auxiliary power is not connected",
    62: "internal micro-controller halt",
    64: "memory remapping failed",
    74: "NVLink error",
    79: "GPU has fallen off the bus",
    95: "uncontained memory error",
    109: "context switch timeout",
    110: "security fault",
    119: "GSP RPC timeout",
    120: "GSP error",
    136: "NVLink training failed",
    140: "unrecovered ECC error",
    143: "GPU initialization error",
    158: "fatal timeout",
}
"""Those after which a GPU has to be reset, its machine rebooted or looked into, by the catalog at
docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. It has 63 and 92 ignored, and after 94
the application started again: nvidia-smi tells what is left to repair. 155 and 156, which may be
intended, are left out."""
_RECOVERED = "to 0x0 (None)"
_RECOVERY = 154  # tells what is to be done, and later that it was
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+),?\s*(.*)")
_YES = {"yes", "1"}
_BROKEN = re.compile(r"\[?(GPU is lost|GPU requires reset|Unknown Error)\]?", re.IGNORECASE)


@dataclass(frozen=True)
class Gpu:
    """One that nvidia-smi shows."""

    index: str
    uuid: str
    bus: str
    """As of `bus_of`."""
    ecc_errors: int | None
    """Uncorrected, since the driver was loaded; None: not counted."""
    is_page_pending: bool
    """Memory pages wait for a reset to be retired."""
    broken: str | None
    """What is said in place of values."""


@dataclass(frozen=True)
class Xid:
    """An error of a GPU, from the kernel's log."""

    bus: str
    code: int


def parse_gpus(text: str) -> list[Gpu]:
    """What `GPUS` prints; lines of another kind are passed over."""
    found = []
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != 5 or not values[0].isdigit():
            continue
        index, uuid, bus, errors, pending = values
        broken = _BROKEN.search(line)
        found.append(
            Gpu(
                index=index,
                uuid=uuid,
                bus=bus_of(bus),
                ecc_errors=int(errors) if errors.isdigit() else None,
                is_page_pending=pending.lower() in _YES,
                broken=broken[1] if broken else None,
            )
        )
    return found


def parse_rows(text: str) -> dict[str, str]:
    """What `ROWS` prints, where there is something wrong: by the GPU's UUID."""
    found = {}
    for line in text.splitlines():
        values = [value.strip() for value in line.split(",")]
        if len(values) != 3:
            continue
        uuid, pending, failure = values
        if failure.lower() in _YES:
            found[uuid] = "a row of its memory could not be remapped"
        elif pending.lower() in _YES:
            found[uuid] = "rows of its memory wait for a reset to be remapped"
    return found


def hardware_xids(lines: Iterable[str]) -> list[Xid]:
    """Faults of the hardware in lines of the kernel's log, each once, and without those of a GPU
    that was recovered since."""
    found: dict[Xid, None] = {}
    for line in lines:
        if (match := _XID.search(line)) is None:
            continue
        xid = Xid(bus_of(match[1]), int(match[2]))
        if xid.code in HARDWARE_XIDS:
            found[xid] = None
        elif xid.code == _RECOVERY and _RECOVERED in match[3]:
            found = {other: None for other in found if other.bus != xid.bus}
    return list(found)


def bus_of(address: str) -> str:
    """Of a PCI address, what is in all spellings: 00000000:3B:00.0 and 0000:3b:00 are 0:3b:00."""
    domain, _, rest = address.lower().partition(":")
    if ":" not in rest:  # without a domain
        domain, rest = "0", f"{domain}:{rest}"
    return f"{domain.lstrip('0') or '0'}:{rest.partition('.')[0]}"
