"""torchrun with workers that are started as programs. This program takes torchrun's arguments."""

from __future__ import annotations

import sys

from torch.distributed.run import main

from hpckit.trainer.torchrun import rendezvous_handler
from hpckit.trainer.torchrun.torchrun_config import known_arguments

if __name__ == "__main__":
    rendezvous_handler.register()
    main(known_arguments(sys.argv[1:]))
