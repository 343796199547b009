"""Keeps objects as files on local disks and NFS, durable through a crash at any instruction;
`storage` imports it, and the spool its system calls."""
