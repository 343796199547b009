"""Parsers for what NVIDIA's tools and driver report about a node's GPUs. Pure functions."""

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
"""Output of an nvidia-smi that does not know one of the queried fields."""

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
"""Xids after which a GPU has to be reset, or its machine rebooted or examined, by the catalog at
docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. By the catalog, 63 and 92 are ignored,
and after 94 the application is restarted: nvidia-smi reports what is left to repair. 155 and 156
are left out, as they may be intended."""
_RECOVERED = "to 0x0 (None)"
_RECOVERY = 154  # its text names the recovery that is needed, and later that it was done
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+),?\s*(.*)")
_YES = {"yes", "1"}
_BROKEN = re.compile(r"\[?(GPU is lost|GPU requires reset|Unknown Error)\]?", re.IGNORECASE)


@dataclass(frozen=True)
class Gpu:
    """A GPU that nvidia-smi lists."""

    index: str
    uuid: str
    bus: str
    """PCI address as normalised by `bus_of`."""
    ecc_errors: int | None
    """Uncorrected errors since the driver was loaded; None: not counted."""
    is_page_pending: bool
    """Whether memory pages wait for a reset to be retired."""
    broken: str | None
    """The error that nvidia-smi prints in place of values, if any."""


@dataclass(frozen=True)
class Xid:
    """An error of a GPU in the kernel's log."""

    bus: str
    code: int


def parse_gpus(text: str) -> list[Gpu]:
    """Parses the output of `GPUS`; other lines are skipped."""
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
    """Parses the output of `ROWS` and returns the problems by the GPU's UUID."""
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
    """Returns the hardware faults in lines of the kernel's log, each once, without those of a GPU
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
    """Returns the part of a PCI address that all spellings share: 00000000:3B:00.0 and 0000:3b:00
    give 0:3b:00."""
    domain, _, rest = address.lower().partition(":")
    if ":" not in rest:  # without a domain
        domain, rest = "0", f"{domain}:{rest}"
    return f"{domain.lstrip('0') or '0'}:{rest.partition('.')[0]}"
