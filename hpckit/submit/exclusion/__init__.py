"""The nodes that a job is submitted without because the suspect list names them. hpckit.submit,
hpckit.supervisor and hpckit.cli import this package."""
