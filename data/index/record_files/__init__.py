"""Files of records that are read where they are: MDS and LitData shards, and lines of JSON.

A sample is a record, whose fields are its members. The layouts are public; nothing is unpickled.
This package imports data.index and what is below it.
"""
