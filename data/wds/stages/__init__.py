"""Running webdataset's stages: their kinds, their plan, running them sample by sample, and the
seeds of their random numbers.

This package imports data.read, data.errors and, for cursors and shares, data.wds. Only `data.wds`
and `data` import it.
"""
