"""Writes torch.save files with holes in place of the tensors' bytes. Requires torch."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from checkpointing.errors import FormatError
from checkpointing.format.item_table import TensorSpec
from checkpointing.format.torch_dtypes import torch_dtype
from checkpointing.torch_internals import FakeTensorMode


def write_skeleton(
    path: Path,
    tensors: Mapping[str, TensorSpec],
    make: Callable[[Mapping[str, Tensor]], dict[str, Any]],
) -> None:
    """Save the tree that `make` builds of tensors by name, with holes for their bytes, which take
    no memory here.

    Raises:
        FormatError: torch.load(weights_only=True) would refuse a value in it.
    """
    with warnings.catch_warnings():
        # no arithmetic is done with complex32
        warnings.filterwarnings("ignore", "ComplexHalf support is experimental", UserWarning)
        with FakeTensorMode():
            empty = {
                name: torch.empty(spec.shape, dtype=torch_dtype(spec.dtype), device="cpu")
                for name, spec in tensors.items()
            }
    with torch.serialization.skip_data(materialize_fake_tensors=True):
        torch.save(make(empty), path)
    try:
        torch.load(path, weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise FormatError(
            "cannot be exported: an item holds a value that torch.load(weights_only=True) refuses, "
            "such as a numpy array or an object of a declared class; export the other items"
        ) from error
