"""The training functions of hpckit, constants of their data, and which keys a run uses."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a command that only composes does without pydantic
    from hpckit.config.spec import RunSpec

LANGUAGE_MODEL = "hpckit.training.language_model:main"
"""The training function that trains a decoder of `conf/model/` on bytes or tokens of text."""
BYTES_AND_END = 257
"""The number of tokens when text is read as bytes: all bytes, and the end of a document."""
IMAGES = "hpckit.training.images:main"
"""The training function that trains a model of `conf/model/` that classifies images."""
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")


def is_built_in(spec: RunSpec) -> bool:
    """Returns whether the run is one of hpckit's own training functions, which use every group of
    the spec. A training function of the user may use none of model, optim, precision, memory,
    data, init_from and lora, so no rule about how their keys fit together applies to it."""
    return (spec.entry or "").startswith("hpckit.")


def is_training_function(spec: RunSpec) -> bool:
    """Returns whether the run calls a training function, which iterates over `run.steps`: it uses
    `train.steps`, the mesh of `parallel` and the options of `debug`. A program (`command`) uses
    none of them."""
    return spec.command is None


def is_data_used(spec: RunSpec) -> bool:
    """Returns whether the run reads `data.shards`, as far as the spec tells: a training function of
    the user may not read the standard library, which is the default."""
    pack = spec.data.pack
    is_given = pack is None or pack.source != "stdlib"
    return is_built_in(spec) or (is_training_function(spec) and is_given)


def is_python(name: str) -> bool:
    """Returns whether a program with this name, which is without a folder, is a Python
    interpreter."""
    return _PYTHON.fullmatch(name) is not None
