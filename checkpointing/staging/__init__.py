"""Copies of a rank's part of the state in shared memory: the arena and its slots, blocking and
overlapped copies with the guard that detects writes during one, and buckets for nodes short of
memory. Of the other folders it imports `format` alone."""
