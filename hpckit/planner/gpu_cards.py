"""GPUs that people train on: peak rates and sizes, from the makers' data sheets.

Dense rates, without structured sparsity. NVLink is one direction of what data sheets add up for
both; the network is that of the maker's own node, for each of its GPUs.

- V100: NVIDIA V100 data sheet (2020), SXM2 32 GB; DGX-1V: 4 x 100 Gb/s for 8 GPUs.
- A100: NVIDIA A100 data sheet (2021), SXM4; DGX A100: 8 x 200 Gb/s.
- H100: NVIDIA H100 data sheet (2023), SXM5; DGX H100: 8 x 400 Gb/s.
- H200: NVIDIA H200 data sheet (2024), SXM; DGX H200: 8 x 400 Gb/s.
- B200: NVIDIA Blackwell data sheet (2025), HGX B200; DGX B200: 8 x 400 Gb/s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class GpuCard:
    """A GPU as it sits in its maker's node."""

    name: str
    memory_gib: float
    """Memory in what the maker calls GB."""
    tflops: Mapping[str, float]
    """Peak of matrix products by format; a format that the hardware lacks is missing."""
    memory_gbps: float
    """Bandwidth of its memory in GB/s."""
    nvlink_gbps: float
    """Bandwidth to its neighbours in the node in GB/s, one direction."""
    network_gbps: float
    """Bandwidth to other nodes in GB/s, one direction."""
    host_gbps: float
    """Bandwidth to its host's memory in GB/s: PCI Express of its generation, 16 lanes, one
    direction."""

    def peak(self, compute: str) -> float | None:
        """Return the peak FLOP/s in a format; None: the card lacks it."""
        found = self.tflops.get(compute)
        return None if found is None else found * 1e12


def _card(
    name: str,
    memory: float,
    fp32: float,
    fp16: float,
    bf16: float | None,
    fp8: float | None,
    *links: float,
) -> GpuCard:
    known = {"fp32": fp32, "fp16": fp16, "bf16": bf16, "fp8": fp8}
    rates = MappingProxyType({name: rate for name, rate in known.items() if rate is not None})
    return GpuCard(name, memory, rates, *links)


_TABLE = (
    # name, GiB, TFLOP/s of fp32, fp16, bf16 and fp8, GB/s of memory, NVLink, network and host
    _card("V100", 32, 15.7, 125, None, None, 900, 150, 6.25, 16),
    _card("A100-40", 40, 19.5, 312, 312, None, 1555, 300, 25, 32),
    _card("A100-80", 80, 19.5, 312, 312, None, 2039, 300, 25, 32),
    _card("H100", 80, 67, 989, 989, 1979, 3350, 450, 50, 64),
    _card("H200", 141, 67, 989, 989, 1979, 4800, 450, 50, 64),
    _card("B200", 180, 75, 2250, 2250, 4500, 7700, 900, 50, 64),
)
CARDS: Mapping[str, GpuCard] = MappingProxyType({card.name: card for card in _TABLE})
"""The cards by name, oldest first."""
_ALIASES = {"A100": "A100-80"}


def find_card(text: str) -> GpuCard:
    """Return the card that a person names: "h100", "A100", "a100-40".

    Raises:
        KeyError: it is none of `CARDS`.
    """
    name = text.upper()
    return CARDS[_ALIASES.get(name, name)]


def recognise(text: str) -> GpuCard | None:
    """Return the card in a name of a site or driver: "nvidia_h100_80gb_hbm3"; None: none of
    `CARDS`."""
    found = re.search(r"(?:^|[^a-z0-9])(v100|a100|h100|h200|b200)(?:[^0-9]|$)", text.lower())
    if found is None:
        return None
    if found[1] == "a100":
        return CARDS["A100-40" if re.search(r"(?<!\d)40", text) else "A100-80"]
    return CARDS[found[1].upper()]
