"""Every error Octavo raises on purpose. A message names the value, the limit and the way out.

`ClientError` is the caller's mistake and becomes a 4xx; `EngineError` is ours and becomes a 5xx;
`ConfigError` and `ModelError` stop a start-up with a non-zero exit code.
"""


class OctavoError(Exception):
    """Base of everything below; catching it never hides a bug of ours (those are plain exceptions)."""


class ClientError(OctavoError):
    """The request is wrong. `param` is the request field at fault, `status` the HTTP status."""

    status = 400
    type = "BadRequestError"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class NotFoundError(ClientError):
    """The thing the request names (a model, a route) is not here."""

    status = 404
    type = "NotFoundError"


class UnsupportedError(ClientError):
    """A valid request for something this version does not do; the message says what to use instead."""

    type = "UnsupportedError"


class UnanswerableError(ClientError):
    """The request is wrong, which only its answer could show: what it asks for leaves nothing to say or is too much."""


class OverloadedError(ClientError):
    """The queue limits are reached; the same request may succeed later, perhaps in `retry_after_s`."""

    status = 503
    type = "ServiceUnavailableError"
    retry_after_s: int | None = None


class RateLimitError(OverloadedError):
    """One key's part of the queue is full; others are served."""

    status = 429
    type = "RateLimitError"


class ConfigError(OctavoError):
    """Options that do not fit each other, the model or the machine."""


class ModelError(OctavoError):
    """Model files that are missing, truncated, inconsistent or of an unknown kind; names file and tensor."""


class EngineError(OctavoError):
    """The engine failed while it ran this request; others may still be fine."""


class EngineDeadError(EngineError):
    """The engine process is gone or hung; nothing sent to it will be answered."""
