"""Checks everything that a run needs before a job is submitted: data, directories, packages, the
entry point, the torch version and the weights that a run starts from. It never imports torch."""
