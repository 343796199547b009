"""Energon's loader, with an encoder that leaves samples as they are."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from benchmarks.data.data_sets import EXTENSION


def loader(folder: str, batch: int, workers: int) -> Any:
    """Its savable one: batches with `contents`, without end."""
    energon = import_module("megatron.energon")
    found = energon.get_train_dataset(
        folder,
        worker_config=energon.WorkerConfig(rank=0, world_size=1, num_workers=workers),
        batch_size=batch,
        shuffle_buffer_size=None,
        max_samples_per_sequence=None,
        task_encoder=_encoder(energon),
    )
    return energon.get_savable_loader(found)


def _encoder(energon: Any) -> Any:
    base: Any = import_module("megatron.energon.flavors").Sample
    stateless = import_module("megatron.energon.task_encoder").stateless

    @dataclass
    class One(base):  # type: ignore[misc]
        content: bytes

    @dataclass
    class Many(base):  # type: ignore[misc]
        contents: list[bytes]

    def cook(sample: dict[str, Any]) -> One:
        return One(**energon.basic_sample_keys(sample), content=sample[EXTENSION])

    default: Any = energon.DefaultTaskEncoder

    class Encoder(default):  # type: ignore[misc]
        decoder = None
        cookers = (energon.Cooker(stateless(cook)),)

        def batch(self, samples: list[One]) -> Any:
            return Many.derive_from(samples[0], contents=[sample.content for sample in samples])

    return Encoder()
