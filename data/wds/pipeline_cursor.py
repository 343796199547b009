"""Where a pipeline stands, and how that is written down."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from data.errors import DataError

_WHERE = ("position", "skip", "within", "worker", "workers", "until", "layout")


class Cursor(NamedTuple):
    """The next step is the one `skip` steps after the one at `position`."""

    position: int
    skip: int = 0
    within: int = 0
    """Samples of this rank's share of that step which were delivered already."""
    until: int | None = None
    """Where the pass ends, if that is known."""


class PipelineState(NamedTuple):
    """A state, taken apart."""

    identity: dict[str, Any]
    cursor: Cursor
    worker: tuple[int, int] | None
    """(number, count) of the worker that it is of, None if it is of the whole."""
    layout: list[int] | None
    """[global batch, world size] where `within` counts."""


def write(
    identity: Mapping[str, Any],
    cursor: Cursor,
    layout: tuple[int, int],
    worker: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """A state: JSON values; `position` alone besides the identity, wherever that is all.

    `until` is there where a pass is at its end and nobody has asked on: what is left of it is none.
    """
    state = {**identity, "position": cursor.position}
    if cursor.skip:
        state["skip"] = cursor.skip
    if cursor.within:
        state |= {"within": cursor.within, "layout": list(layout)}
    if cursor.until == cursor.position:
        state["until"] = cursor.until
    if worker is not None:
        state |= {"worker": worker[0], "workers": worker[1], "until": cursor.until}
    return state


def read(state: Mapping[str, Any]) -> PipelineState:
    """Of a state of ours, of a `Loader`, or of a StatefulDataLoader over a dataset of ours.

    Raises DataError for anything else.
    """
    state = _of_stateful_loader(state)
    identity = {name: value for name, value in state.items() if name not in _WHERE}
    worker, until = state.get("worker"), state.get("until")
    cursor = Cursor(
        _count(state, "position", None), _count(state, "skip", 0), _count(state, "within", 0), until
    )
    of = None if worker is None else (int(worker), _count(state, "workers", None))
    return PipelineState(identity, cursor, of, state.get("layout"))


def _of_stateful_loader(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a StatefulDataLoader of torchdata keeps of its dataset, made one state.

    Its workers make step after step in turn and it hands them on in that order, so of the states
    that came with the last item of each worker, the furthest one is that of the loader.
    """
    if "_snapshot" in state:
        kept = state["_snapshot"]["_worker_snapshots"].values()
        told = [worker["dataset_state"] for worker in kept]
        if not told or any(not isinstance(one, Mapping) for one in told):
            raise DataError("not a state of a StatefulDataLoader over a dataset of ours")
        if any(one.get("within") for one in told):
            raise DataError(
                "this state was taken inside a step: it can only be loaded by a StatefulDataLoader"
                " with as many workers; batch inside the pipeline, or give it global_batch"
            )
        furthest = max(told, key=lambda one: int(one["position"]))
        rest = {n: v for n, v in furthest.items() if n not in _WHERE}
        since = int(state.get("_steps_since_snapshot") or 0)
        return {**rest, "position": furthest["position"], "skip": since}
    if "dataset_state" in state:
        found = state["dataset_state"]
        if isinstance(found, Mapping):
            return found
        raise DataError("not a state of a StatefulDataLoader over a dataset of ours")
    return state


def _count(state: Mapping[str, Any], name: str, default: int | None) -> int:
    value = state.get(name, default)
    if type(value) is not int or value < 0:
        raise DataError(f"not a state of a dataset: {name} is {value!r}")
    return value
