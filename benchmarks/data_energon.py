"""Energon's encoder that leaves samples as they are. Imported where Energon is installed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from megatron.energon import Cooker, DefaultTaskEncoder, basic_sample_keys
from megatron.energon.flavors import Sample
from megatron.energon.task_encoder import stateless

from benchmarks.data_sets import EXTENSION


@dataclass
class One(Sample):  # type: ignore[misc, unused-ignore]
    content: bytes


@dataclass
class Many(Sample):  # type: ignore[misc, unused-ignore]
    contents: list[bytes]


@stateless  # type: ignore[untyped-decorator, unused-ignore]
def cook(sample: dict[str, Any]) -> One:
    """A crude sample's one member."""
    return One(**basic_sample_keys(sample), content=sample[EXTENSION])


class Encoder(DefaultTaskEncoder):  # type: ignore[misc, unused-ignore]
    """Cooks, and keeps the samples of a batch in a list."""

    decoder = None
    cookers = [Cooker(cook)]  # noqa: RUF012 (as it is asked for)

    def batch(self, samples: list[One]) -> Many:
        return Many.derive_from(samples[0], contents=[sample.content for sample in samples])
