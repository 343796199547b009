"""Tar files as bytes: headers, the walk over them, which members form a sample, and checksums of
members. Imports nothing of data but data.errors and data.index.column_container."""
