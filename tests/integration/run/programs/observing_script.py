"""A training script that writes down what it finds in its process."""

from __future__ import annotations

import importlib
import json
import logging
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

rank = os.environ["RANK"]
logging.basicConfig(filename=f"log-{rank}.txt", format="%(message)s")
logging.info("below the default level")
logging.warning("of rank %s", rank)

CHILD = "import signal, sys; print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)"
os.environ["TMPDIR"] = str(Path("temporary").absolute())
Path("temporary").mkdir(exist_ok=True)
TERMINAL = (signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP)
helper = Path("tools/helper.py").absolute()
found = {
    "name": multiprocessing.current_process().name,
    "has_parent": multiprocessing.parent_process() is not None,
    "start_method": multiprocessing.get_start_method(allow_none=True),
    "children": multiprocessing.Process().name,
    "temporary": tempfile.gettempdir(),
    "is_default": [signal.getsignal(number) is signal.SIG_DFL for number in TERMINAL],
    "is_main_thread_blocked": bool(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
    "can_end_children": subprocess.check_output([sys.executable, "-c", CHILD], text=True).strip(),
    "helper": subprocess.check_output([sys.executable, str(helper)], text=True).strip(),
    "random": [random.random(), torch.rand(1).item(), torch.initial_seed()],
}
multiprocessing.set_start_method("spawn")
module = importlib.import_module("tools.beside")
Path(str(module.__file__)).with_name("left.txt").write_text("by a module")
Path(f"found-{rank}.json").write_text(json.dumps(found))
os._exit(0)  # as scripts end that have threads left
