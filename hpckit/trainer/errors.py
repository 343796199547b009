"""Mistakes of a training function, which no further attempt can resolve."""


class TrainingError(RuntimeError):
    """The run loop was used in a way that cannot work; the message says what to do instead."""
