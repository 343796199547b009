"""Turns a command line into a submitted job on the login node: it composes the config, checks it,
prepares the submission, renders the batch script and submits it. The CLI, examples, drills and
benchmarks import this package, the agent and the trainer never do, and nothing here imports
torch."""
