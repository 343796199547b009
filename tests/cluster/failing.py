"""A training function that no node can begin."""

from __future__ import annotations

from hpckit.config.spec import RunSpec


def main(cfg: RunSpec) -> None:
    raise ImportError("no module named nowhere")
