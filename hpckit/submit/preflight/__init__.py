"""Checks everything that a run needs before a job is submitted: data, directories, packages, the
entry point, the torch version and the weights that a run starts from. hpckit.submit and the CLI
import this package, and it never imports torch."""
