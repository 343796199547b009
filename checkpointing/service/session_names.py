"""The names of the sessions under which a service generation saves, one for each epoch."""

from __future__ import annotations

from blake3 import blake3

from checkpointing.service.snapshots import Generation

AHEAD = 64  # sessions after the last known one that are looked for


def session_id(generation: Generation, epoch: int) -> str:
    """Return the name of the session under which a generation saves. Once that session was declared
    dead, because its node was silent for longer than a lease lasts, the generation saves under the
    name of the next epoch, which every node can compute."""
    if epoch == 0:
        return generation.id
    return blake3(f"{generation.id}/{epoch}".encode()).hexdigest()[:8]
