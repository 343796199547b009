"""The nodes of the next generation are chosen here: how long they are waited for, which are
unhealthy or excluded, and what follows when there are too few; only hpckit.supervisor imports
it."""
