"""The record of a canary: values of a run's first steps, and their comparison with others. This
module does not import torch."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from hpckit.config.last_step import last_step
from hpckit.config.run_identity import identity
from hpckit.config.spec import RunSpec
from hpckit.system.atomic_files import write_json

NAMES = ("loss", "grad_norm")
"""Metrics to compare, if a training function logs them."""

Values = dict[str, float]


@dataclass(frozen=True)
class CanaryRecord:
    """The recorded values of a run, and where they were recorded."""

    identity: str
    """Identity of the run without its canary."""
    torch: str
    world_size: int
    device: str
    steps: list[Values]
    """The values of each step, from step 1 on."""

    @property
    def origin(self) -> str:
        return f"torch {self.torch} on {self.world_size} ranks of {self.device}"

    def write(self, path: Path) -> None:
        """Writes the record to a file atomically."""
        write_json(path, asdict(self))


def read_golden(path: Path) -> CanaryRecord:
    """Reads a record. Raises ValueError if the file does not exist or holds no record."""
    try:
        return TypeAdapter(CanaryRecord).validate_python(
            json.loads(path.read_text(encoding="utf-8"))
        )
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist; debug.canary.mode=record creates it") from None
    except (OSError, ValueError, ValidationError, RecursionError) as error:
        raise ValueError(
            f"{path} does not contain recorded values ({_first_line(error)})"
        ) from None


def identity_of(spec: RunSpec) -> str:
    """Returns the identity of the run that a canary belongs to."""
    none = dataclasses.replace(spec.debug.canary, mode=None, file=None)
    return identity(dataclasses.replace(spec, debug=dataclasses.replace(spec.debug, canary=none)))


def canary_problems(spec: RunSpec) -> list[str]:
    """Returns the reasons why a canary cannot be compared with a record; empty if it can."""
    canary = spec.debug.canary
    if canary.mode != "check" or canary.file is None:
        return []
    try:
        golden = read_golden(Path(canary.file))
    except ValueError as error:
        return [f"debug.canary.file: {error}"]
    if golden.identity != identity_of(spec):
        return [
            f"debug.canary.file: {canary.file} was recorded from another experiment "
            f"({golden.identity}, this is {identity_of(spec)}); record it again"
        ]
    if (held := len(golden.steps)) < (wanted := last_step(spec)):
        return [
            f"debug.canary.steps: {wanted} steps are to be compared, and {canary.file} holds "
            f"{held}; give debug.canary.steps={held}, or record it again with "
            "debug.canary.mode=record"
        ]
    return []


def difference(
    golden: Sequence[Mapping[str, float]], step: int, seen: Mapping[str, float], tolerance: float
) -> str | None:
    """Returns a text that says which value of step `step` (from 1) differs and by how much, or
    None if none does."""
    expected = golden[step - 1]
    if expected.keys() != seen.keys():
        return f"step {step} has {', '.join(seen)}; the record has {', '.join(expected)}"
    for name, value in expected.items():
        if not math.isclose(seen[name], value, rel_tol=tolerance):  # NaN is not close to any number
            by = relative(seen[name], value)
            return (
                f"step {step}: {name} is {seen[name]:.9g}, but {value:.9g} was recorded (relative "
                f"difference {by:.2g})"
            )
    return None


def relative(one: float, other: float) -> float:
    """Returns the difference divided by the larger absolute value."""
    return abs(one - other) / (max(abs(one), abs(other)) or 1.0)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
