"""Mistakes of a training function: no further attempt can mend them."""


class TrainingError(RuntimeError):
    """The run loop was used in a way that cannot work; the message says what to do instead."""
