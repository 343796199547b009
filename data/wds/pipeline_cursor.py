"""The cursor of a pipeline, and its form in a saved state."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from data.errors import DataError
from data.order.sample_order import MAX_POSITION

_WHERE = ("position", "skip", "within", "worker", "workers", "until", "layout")


class Cursor(NamedTuple):
    """A place in a pass: the next step is the one `skip` steps after the one at `position`."""

    position: int
    skip: int = 0
    within: int = 0
    """Samples of this rank's share of that step which are already delivered."""
    until: int | None = None
    """The end of the pass, if it is known."""


class PipelineState(NamedTuple):
    """The parts of a saved state."""

    identity: dict[str, Any]
    cursor: Cursor
    worker: tuple[int, int] | None
    """(number, count) of the worker that it belongs to, None if it is that of the whole."""
    layout: list[int] | None
    """[global batch, world size] in which `within` counts."""


def write(
    identity: Mapping[str, Any],
    cursor: Cursor,
    layout: tuple[int, int],
    worker: tuple[int, int] | None = None,
) -> dict[str, Any]:
    """Return a state as JSON values: `position` alone besides the identity, wherever that is
    enough.

    `until` is included where a pass is at its end and no further item was asked for: nothing is
    left of it.
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
    """Parse a state of this pipeline, of a `Loader`, or of a StatefulDataLoader over such a
    dataset.

    Raises DataError for anything else.
    """
    state = _of_stateful_loader(state)
    identity = {name: value for name, value in state.items() if name not in _WHERE}
    until = None if state.get("until") is None else _count(state, "until", None)
    cursor = Cursor(
        _count(state, "position", None), _count(state, "skip", 0), _count(state, "within", 0), until
    )
    is_whole = state.get("worker") is None
    of = None if is_whole else (_count(state, "worker", None), _count(state, "workers", None))
    return PipelineState(identity, cursor, of, state.get("layout"))


def _of_stateful_loader(state: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return one state from what a StatefulDataLoader of torchdata stores of its dataset.

    Its workers make step after step in turn and it delivers them in that order, so of the states
    that came with the last item of each worker, the furthest one is that of the loader.
    """
    if "_snapshot" in state:
        kept = state["_snapshot"]["_worker_snapshots"].values()
        states = [worker["dataset_state"] for worker in kept]
        if not states or any(not isinstance(one, Mapping) for one in states):
            raise DataError("not the state of a StatefulDataLoader over a dataset of hpckit")
        if any(one.get("within") for one in states):
            raise DataError(
                "this state was taken inside a step: it can only be loaded by a StatefulDataLoader"
                " with as many workers; batch inside the pipeline, or give it global_batch"
            )
        furthest = max(states, key=lambda one: int(one["position"]))
        rest = {n: v for n, v in furthest.items() if n not in _WHERE}
        since = int(state.get("_steps_since_snapshot") or 0)
        return {**rest, "position": furthest["position"], "skip": since}
    if "dataset_state" in state:
        found = state["dataset_state"]
        if isinstance(found, Mapping):
            return found
        raise DataError("not the state of a StatefulDataLoader over a dataset of hpckit")
    return state


def _count(state: Mapping[str, Any], name: str, default: int | None) -> int:
    value = state.get(name, default)
    if type(value) is not int or not 0 <= value < MAX_POSITION:
        raise DataError(f"not the state of a dataset: {name} is {value!r}")
    return value
