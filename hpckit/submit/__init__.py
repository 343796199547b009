"""The login node turns a command line into a submitted job: it composes the config, checks it,
prepares the submission, renders the batch script and submits it; the CLI, examples, drills and
benchmarks import it, the agent and the trainer never do, and nothing here imports torch."""
