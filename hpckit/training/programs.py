"""torchrun whose workers are programs of their own; takes its arguments."""

from __future__ import annotations

from torch.distributed.run import main

from hpckit.training import rendezvous

if __name__ == "__main__":
    rendezvous.register()
    main()
