"""Cleans up a Checkpointer that was never closed."""

from __future__ import annotations

import logging

from checkpointing.save.staging_modes import AnyShipper
from checkpointing.service.client.service_client import ServiceClient
from checkpointing.store.store import Store

logger = logging.getLogger("checkpointing")


def release_abandoned(shipper: AnyShipper, client: ServiceClient, store: Store) -> None:
    """Hand over the snapshot that is being copied, and release everything else."""
    logger.warning("a Checkpointer was dropped without close(): what it staged is saved")
    shipper.settle()
    client.close(goodbye=False)
    shipper.close()
    store.close()
