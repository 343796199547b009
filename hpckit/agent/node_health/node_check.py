"""`python -m hpckit.agent.node_health.node_check` runs the health checks of a spec on this node.
The spec is on its standard input, as YAML; it prints the problems as a JSON list."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from hpckit.agent.node_health.health_probes import node_problems
from hpckit.config.spec_parser import read_spec
from hpckit.rundir.directory import RunDir


def main() -> int:
    """Prints the problems of this node. The folder of the runs stands for a run directory."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml", encoding="utf-8") as file:
        file.write(sys.stdin.read())
        file.flush()
        spec = read_spec(Path(file.name))
    json.dump(node_problems(spec, RunDir(Path(spec.root))), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
