"""`python -m hpckit` is the command `hpckit`."""

from hpckit.cli import main

main()
