"""Keeps objects in S3: clients, credentials, options, errors; `storage` imports it, and
`data.source`, which reads S3 with the same options."""
