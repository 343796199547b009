"""The shards that a spec names, by their keys: one dataset, or those of a mixture, and those of
validation."""

from __future__ import annotations

from hpckit.config.spec import DataSpec


def training_places(data: DataSpec) -> dict[str, str]:
    """Returns where the datasets of training are, by the keys that say it."""
    found = {} if data.shards is None else {"data.shards": data.shards}
    if data.mixture is not None:
        for name, source in data.mixture.sources.items():
            found[f"data.mixture.sources.{name}.shards"] = source.shards
    return found


def shard_places(data: DataSpec) -> dict[str, str]:
    """Returns where all datasets are, those of validation too, by the keys that say it."""
    found = training_places(data)
    return found if data.validation is None else {**found, "data.validation": data.validation}
