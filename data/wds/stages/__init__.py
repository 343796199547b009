"""Webdataset's stages at work: what each one is, their plan, running them sample by sample, and the
seeds they draw from. Imports data.read, data.errors and, for cursors and shares, data.wds."""
