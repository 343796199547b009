"""Continuation of a run after the end of its job: by a successor job, a requeue, an expedited start
or a resize. Only `hpckit.supervisor` imports it."""
