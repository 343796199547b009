"""The spec of a run: its dataclasses, its parser, values derived from it, and earlier versions. It
imports only hpckit.system and the public interface of checkpointing."""
