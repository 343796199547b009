"""JSON records of benchmarks that count instead of timing rounds."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from benchmarks.ab import RESULTS
from benchmarks.steal import steal
from hpckit.submit.prepare import versions


def write_record(name: str, found: Mapping[str, object]) -> None:
    """Write `results/<name>.json`, with the time and the versions, and say where it is."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    record = {**found, "steal": steal(), "time": time.time(), "versions": versions()}
    path.write_text(json.dumps(record, indent=2) + "\n")
    print(f"record: {path}")
