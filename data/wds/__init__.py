"""Webdataset's pipelines with the order, cache and state of `data`: the dataset, its DataLoader,
and the state of a pass.

    from data.wds import WebLoader, from_wds

What becomes of each of webdataset's stages is in docs/tasks/webdataset.md. This package imports
data.read and the packages below it. Only `data` imports it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from data.wds.webdataset_version import refuse_older

if TYPE_CHECKING:
    from data.wds.dataset import StreamingDataset
    from data.wds.loader import WebLoader
    from data.wds.pipeline_conversion import from_wds
    from data.wds.stages.stage_kinds import per_sample
    from data.wds.streaming_options import StreamingOptions

__all__ = ["StreamingDataset", "StreamingOptions", "WebLoader", "from_wds", "per_sample"]

_HOMES = {
    "StreamingDataset": "dataset",
    "StreamingOptions": "streaming_options",
    "WebLoader": "loader",
    "from_wds": "pipeline_conversion",
    "per_sample": "stages.stage_kinds",
}


refuse_older()


def __getattr__(name: str) -> Any:
    """Import exported names on first use: webdataset is not needed for some modules of this
    package."""
    if name not in _HOMES:
        raise AttributeError(f"module 'data.wds' has no attribute {name!r}")
    return getattr(import_module(f"data.wds.{_HOMES[name]}"), name)
