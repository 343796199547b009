"""The private parts of torch that this package uses, and nothing else of it.

No other file of the package names one of them. `INTERNALS` says what fails once torch has one no
more; a test looks for each of them in the installed torch. Seen in torch 2.7 to 2.15.
"""

from __future__ import annotations

from typing import Any

INTERNALS = {
    "torch.utils.data._utils.pin_memory.pin_memory": "Samples of data.wds in a DataLoader with "
    "pin_memory=True are not pinned in nested containers.",
}
"""What fails without each of them. Public functions for these do not exist."""


def pin_memory(item: Any, *device: Any) -> Any:
    """Pin the tensors of a nested container, as `DataLoader` does with those that it knows."""
    from torch.utils.data._utils import pin_memory as module

    return module.pin_memory(item, *device)  # type: ignore[no-untyped-call]
