"""The spec of a run: its dataclasses, its parser, values derived from it, and earlier versions.
Imports hpckit.system and checkpointing's face only, and every room above may import it."""
