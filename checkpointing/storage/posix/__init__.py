"""Keeps objects as files on local disks and NFS, durable through a crash at any instruction. Only
`checkpointing.storage` and `checkpointing.service.spool` import it."""
