"""torchrun whose workers are programs of their own; takes its arguments."""

from __future__ import annotations

import sys

from torch.distributed.run import main

from hpckit.training import rendezvous
from hpckit.training.torchrun import known_arguments

if __name__ == "__main__":
    rendezvous.register()
    main(known_arguments(sys.argv[1:]))
