"""The identity of a stream in a saved state, in few bytes, and its comparison."""

import json
from collections.abc import Mapping
from typing import Any, TypeAlias

from blake3 import blake3

from data.errors import DataError, FingerprintError

State: TypeAlias = Mapping[str, Any]

FINGERPRINT = 32
"""The hex digits of a dataset's fingerprint that are kept: 128 bits."""
_DIGEST = 16  # hex digits


def of_dataset(order: Mapping[str, Any], fingerprint: str) -> dict[str, Any]:
    """Return the fields that identify one dataset in its order."""
    return {**order, "fingerprint": fingerprint[:FINGERPRINT]}


def digest_of(fields: Mapping[str, Any]) -> str:
    """Return a short digest of the fields, used where there are several datasets."""
    text = json.dumps(_shortened(fields), sort_keys=True, separators=(",", ":"))
    return blake3(text.encode()).hexdigest()[:_DIGEST]


def digests_of(state: State) -> list[str]:
    """Return the digest of each dataset of a mixture's state; [] for another state."""
    datasets = state.get("datasets")
    if not isinstance(datasets, list):
        return []
    return [digest_of(one) if isinstance(one, Mapping) else str(one) for one in datasets]


def check_same(state: State, mine: State) -> None:
    """Raise FingerprintError for a state of another stream, DataError for something that is no
    state.

    Older states, with whole fingerprints and all fields of each dataset, are still accepted.
    """
    if "order" not in state:
        raise DataError(f"not a loader's state: it has the fields {sorted(state)}")
    saved, here = _flat(state), _flat(mine)
    names = sorted({*saved, *here})
    differences = {n: (saved.get(n), here.get(n)) for n in names if saved.get(n) != here.get(n)}
    if differences:
        raise FingerprintError(differences)


def _flat(state: State) -> dict[str, Any]:
    """Return the state with one field for each dataset of a mixture."""
    found = _shortened(state)
    datasets = found.get("datasets")
    if isinstance(datasets, list):
        del found["datasets"]
        for number, digest in enumerate(digests_of(state)):
            found[f"dataset {number}"] = digest
    return found


def _shortened(fields: Mapping[str, Any]) -> dict[str, Any]:
    fingerprint = fields.get("fingerprint")
    if isinstance(fingerprint, str):
        return {**fields, "fingerprint": fingerprint[:FINGERPRINT]}
    return dict(fields)
