"""Keeps objects in S3: clients, credentials, options, errors. `data.source` reads S3 with the same
options. Only `checkpointing.storage` and `data.source` import it."""
