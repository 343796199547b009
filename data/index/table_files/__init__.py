"""Parquet and Arrow files, whose rows are samples, read in place by pyarrow.

This package imports data.index and what is below it.
"""
