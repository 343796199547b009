"""Keeps objects in S3: clients, credentials, options, errors; only `storage` imports it (and
`data.source`, once it uses the same access to S3)."""
