"""From a command line to a running job: compose, prepare, submit, supervise, follow."""
