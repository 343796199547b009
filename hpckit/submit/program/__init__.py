"""Programs of the user that take the place of a training function: how the command line names them,
and whether they can be run. Only `hpckit.submit` and `hpckit.supervisor` import it."""
