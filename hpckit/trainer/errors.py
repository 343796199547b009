"""The error for mistakes of a training function or a spec, which another attempt would repeat."""


class TrainingError(RuntimeError):
    """The run loop was used in a way that cannot work; the message says what to do instead."""
