"""The tar format: headers, the walk over them, the grouping of members into samples, and checksums
of members.

This package imports nothing of data but data.errors and data.index.column_container.
"""
