"""Checks a config against the version of the installed torch, without importing torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hpckit.config.entry_points import is_built_in
from hpckit.config.rules.experts import experts_of
from hpckit.config.spec import RunSpec
from hpckit.system.installed_versions import installed_version

Version = tuple[int, int]

OLDEST: Version = (2, 7)
"""The oldest version with which tests are run (docs/versions.md)."""


@dataclass(frozen=True)
class TorchRequirement:
    """A feature that an older torch lacks, or in which it has a bug."""

    feature: str
    """The keys that enable it."""
    since: Version
    """The oldest version with which the feature was tested."""
    why: str
    is_asked: Callable[[RunSpec], bool]


NEEDS = (
    TorchRequirement(
        "memory.compile=true with memory.activation_checkpointing=selective",
        (2, 13),
        "torch 2.9 recompiles each block, and stops after the eighth",
        lambda spec: spec.memory.compile and spec.memory.activation_checkpointing == "selective",
    ),
    TorchRequirement(
        "parallel.pipeline",
        (2, 13),
        "with torch 2.9 the stages of some pipelines misread each other's first messages",
        lambda spec: spec.parallel.pipeline != 1,
    ),
    TorchRequirement(
        "model.experts",
        (2, 9),
        "older ones do not have the matrix product of groups of rows for CPUs",
        lambda spec: experts_of(spec.model) is not None,
    ),
    TorchRequirement(
        "memory.attention=varlen",
        (2, 12),
        "the attention of older ones has no windows, or no shared key heads",
        lambda spec: spec.memory.attention == "varlen" and spec.cluster.device == "cuda",
    ),
)


def torch_problems(spec: RunSpec, installed: str | None = None) -> list[str]:
    """Returns the features that the installed torch cannot run, with the version that can.

    Args:
        installed: the version. None: that of this environment.
    """
    slurm = spec.cluster.slurm
    if slurm is not None and slurm.container is not None and slurm.container.python is not None:
        return []  # the image has its own torch
    text = installed_version("torch") if installed is None else installed
    if text is None:
        return ["torch is not installed in this environment: pip install torch"]
    return list(_problems(spec, text))


def age_problem(text: str) -> str | None:
    """Returns why a version of torch is too old, or None; a custom build has no age. Pure."""
    has = _numbers(text)
    if has is None or has >= OLDEST:
        return None
    return f"torch {text} is installed, and hpckit needs {_formatted(OLDEST)} or newer"


def _numbers(text: str) -> Version | None:
    found = re.match(r"(\d+)\.(\d+)", text)
    return None if found is None else (int(found[1]), int(found[2]))


def _problems(spec: RunSpec, text: str) -> Iterator[str]:
    has = _numbers(text)
    if has is None:  # a custom build
        return
    if (problem := age_problem(text)) is not None:
        yield problem
    for need in NEEDS:
        if is_built_in(spec) and has < need.since and need.is_asked(spec):
            yield f"{need.feature}: needs torch {_formatted(need.since)}, not {text}: {need.why}"


def _formatted(wanted: Version) -> str:
    return f"{wanted[0]}.{wanted[1]}"
