"""A run goes on here after its job has to end: by a queued successor, a requeue, an expedited
start, or a resize; only hpckit.supervisor and hpckit.submit import it."""
