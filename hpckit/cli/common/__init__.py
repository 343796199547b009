"""Code shared by several commands: output, exit status, errors, the RUN argument, store options,
sizes, progress. Imported by all commands. Imports no command."""
