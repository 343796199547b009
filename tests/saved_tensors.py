"""How many bytes autograd keeps for the backward pass, as torch itself hands them over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.tensor import DTensor


class SavedBytes:
    """Each storage counts once, for as long as anybody keeps it; parameters do not."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._keepers: Counter[int] = Counter()

    @contextmanager
    def counting(self) -> Iterator[SavedBytes]:
        """Of all that is saved in the block."""
        with saved_tensors_hooks(self._keep, _give_back):
            yield self

    def _keep(self, tensor: Tensor) -> Any:
        if isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter):
            return tensor
        return _Kept(self, tensor)

    def take(self, key: int, size: int) -> None:
        self._keepers[key] += 1
        self.now += size if self._keepers[key] == 1 else 0
        self.most = max(self.most, self.now)

    def release(self, key: int, size: int) -> None:
        self._keepers[key] -= 1
        self.now -= 0 if self._keepers[key] else size


class _Kept:
    """One saved tensor; it is gone when its node of the graph has been run."""

    def __init__(self, counted: SavedBytes, tensor: Tensor) -> None:
        self.tensor, self._counted = tensor, counted
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
        storage = local.untyped_storage()
        self._what = storage.data_ptr(), storage.nbytes()
        counted.take(*self._what)

    def __del__(self) -> None:
        self._counted.release(*self._what)


def _give_back(kept: Any) -> Tensor:
    tensor: Tensor = kept.tensor if isinstance(kept, _Kept) else kept
    return tensor
