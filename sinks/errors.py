"""What went wrong, named by what the caller does about it."""


class SinkError(Exception):
    """Base of the errors of a store."""


class RetryLater(SinkError):
    """The store may take the same request later. `after_s` is its own wish, if it had one."""

    def __init__(self, message: str, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


class Rejected(SinkError):
    """The store will never take this request as it is: split it, or make it a dead letter."""


class Misconfigured(SinkError):
    """Nothing will work until a person changes something; the message says what."""
