"""Code shared by several commands: output, exit status, errors, the RUN argument, store options,
sizes, progress. All commands import it, and it imports no command."""
