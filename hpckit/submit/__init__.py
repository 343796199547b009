"""Turns a command line into a submitted job on the login node: it composes the config, checks it,
prepares the submission, renders the batch script and submits it. The agent and the trainer never
import this package, and nothing here imports torch."""
