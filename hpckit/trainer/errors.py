"""The error for mistakes of a training function or a spec, which another attempt would repeat, and
the message of any error."""


class TrainingError(RuntimeError):
    """The run loop was used in a way that cannot work; the message says what to do instead."""


def message_of(error: BaseException) -> str:
    """Return the message of an error, whatever the class of the error does."""
    try:
        return str(error)
    except Exception as failed:  # noqa: BLE001 - it is the user's class
        return f"its message cannot be read ({type(failed).__name__})"
