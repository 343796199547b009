"""How long imports take, compared with the import of torch: the table in docs/versions.md.

    python -m benchmarks.run.import_times [--rounds 7] [--python INTERPRETER]

Each import is made by a new process, whose processor time is counted, so that other processes of
the machine count less. Files are compiled before the first round. Imports are interleaved, and the
start of an interpreter that imports nothing is subtracted in each round. It fails if `from
checkpointing import Checkpointer` takes more than 1.2 times as long as torch, or `import data` more
than 0.15 s.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.common.arm_comparison import ArmComparison, interleave, report
from benchmarks.common.number_arguments import positive_int

NOTHING = "pass"
TORCH = "import torch"
NUMPY = "import numpy"
CHECKPOINTS = "from checkpointing import Checkpointer"
DATA = "import data"
IMPORTS = (
    *(NOTHING, TORCH, NUMPY, CHECKPOINTS, "import checkpointing", DATA, "import hpckit.client"),
    "from data import Loader, open_dataset",
)
TIMES_TORCH = 1.2
DATA_S = 0.15
_ROOT = Path(__file__).parents[2]


def main() -> None:
    """Measures and prints the processor seconds of each import."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=positive_int, default=7)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with torch")
    args = parser.parse_args()
    arms = {code: partial(processor_s, args.python, code) for code in IMPORTS}
    interleave(arms, 1)  # compiles the files, and reads them from the disk
    starts = interleave(arms, args.rounds)
    bare = starts.pop(NOTHING)
    measured = {
        code: [one - start for one, start in zip(found, bare, strict=True)]
        for code, found in starts.items()
    }
    comparison = ArmComparison("import_times", TORCH, "CPU s", measured)
    report(comparison, {"rounds": args.rounds, "python": args.python})
    wrong = []
    if (times := comparison.ratio(CHECKPOINTS).median) > TIMES_TORCH:
        wrong.append(f"`{CHECKPOINTS}` takes {times:.2f} times `{TORCH}`, more than {TIMES_TORCH}")
    if (took_s := median(measured[DATA])) > DATA_S:
        wrong.append(f"`{DATA}` takes {took_s:.2f} s, more than {DATA_S}")
    if wrong:
        sys.exit("; ".join(wrong))


def processor_s(python: str, code: str) -> float:
    """Returns the processor seconds of an interpreter that runs `code`."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": str(_ROOT)}
    process = subprocess.Popen([python, "-c", code], env=environment)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # it was awaited here, with its usage
    if process.returncode != 0:
        sys.exit(f"`{code}` ended with exit status {process.returncode}")
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
