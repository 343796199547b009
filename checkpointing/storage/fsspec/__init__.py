"""Keeps objects in whatever fsspec has a driver for, each call under a deadline; only `storage`
imports it."""
