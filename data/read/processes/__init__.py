"""Batches made by reader processes and handed over through shared memory, errors included. Imports
data.read.batches and is imported by data.read.loader only."""
