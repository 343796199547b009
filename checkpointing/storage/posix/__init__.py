"""Keeps objects as files on local disks and NFS, durable through a crash at any instruction. Only
`checkpointing.storage`, `checkpointing.service.spool` and `checkpointing.service.private_folder`
import it."""
