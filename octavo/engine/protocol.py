"""Messages between an engine process and its client, as msgpack. Plain data; knows neither sockets nor engines."""

import msgspec

from octavo import errors
from octavo.config import KVGroupSpec
from octavo.messages import EngineOutputs, EngineRequest, PageMap

# ---------------------------------------------------------------- client -> engine


class Submit(msgspec.Struct, tag=True, frozen=True):
    """Start the sequences of one request; all of them or none."""

    requests: list[EngineRequest]


class Abort(msgspec.Struct, tag=True, frozen=True):
    """End sequences early; unknown ids are ignored."""

    request_ids: list[str]


class ResetPrefixCache(msgspec.Struct, tag=True, frozen=True):
    """Forget cached prompt beginnings; answered by `Reply`."""

    call_id: int


class MapPages(msgspec.Struct, tag=True, frozen=True):
    """Tell what the KV pages hold; answered by `Reply`."""

    call_id: int


ToEngine = Submit | Abort | ResetPrefixCache | MapPages

# ---------------------------------------------------------------- engine -> client


class EngineFacts(msgspec.Struct, kw_only=True, frozen=True):
    """What is known once a model is loaded and its pages are allocated.

    Attributes:
        numerics: what computes, as far as it may change bits: the instruction set of the kernels, or torch's release.
        num_blocks: pages per KV group.
        kv_bytes: bytes of all pages.
        max_request_tokens: most tokens (prompt and answer) one request may have: max_model_len, or what the pool holds.
        load_s: seconds from the start of loading to ready.
    """

    device: str
    dtype: str
    numerics: str
    kv_dtype: str
    block_size: int
    num_blocks: tuple[int, ...]
    kv_groups: tuple[KVGroupSpec, ...]
    kv_bytes: int
    max_model_len: int
    max_request_tokens: int
    load_s: float


class Loading(msgspec.Struct, tag=True, frozen=True):
    """Progress of a start: `done` of `total` units of `stage`; total 0 is unknown."""

    stage: str
    done: int
    total: int


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The engine takes requests from now on."""

    facts: EngineFacts


class News(msgspec.Struct, tag=True, frozen=True):
    """The outcome of one step, or of an abort."""

    outputs: EngineOutputs


class Beat(msgspec.Struct, tag=True, frozen=True):
    """A sign of life, whatever step is running: CPU seconds that the thread of the steps has used so far."""

    cpu_s: float


class Refused(msgspec.Struct, tag=True, frozen=True):
    """A `Submit` was not taken: the id of one of its sequences, and the error of `octavo.errors` that says why."""

    request_id: str
    error: str
    message: str
    param: str | None = None


class Reply(msgspec.Struct, tag=True, frozen=True):
    """Answer to a call."""

    call_id: int
    value: bool | list[PageMap]


class Failed(msgspec.Struct, tag=True, frozen=True):
    """The engine could not start or cannot go on, and the process ends. `error` is a class of `octavo.errors`."""

    error: str
    message: str


class Exited(msgspec.Struct, tag=True, frozen=True):
    """Sent by the client's own watcher when the process has ended; a negative code is the signal that ended it."""

    returncode: int


FromEngine = Loading | Ready | News | Beat | Refused | Reply | Failed | Exited

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)
"""What decoding a bad message raises."""

UNWRITABLE = (TypeError, ValueError, OverflowError)
"""What encoding raises: a type or number that msgpack has not, text that UTF-8 has not."""

encode = msgspec.msgpack.Encoder().encode
decode_to_engine = msgspec.msgpack.Decoder(ToEngine).decode
decode_from_engine: "msgspec.msgpack.Decoder[FromEngine]" = msgspec.msgpack.Decoder(FromEngine)


def refused(request_id: str, err: Exception) -> Refused:
    """The message for a request that is not taken: a client's mistake, or a fault of ours with this one request."""
    if isinstance(err, errors.ClientError):
        return Refused(request_id, type(err).__name__, err.message, err.param)
    message = f"the engine could not take this request: {type(err).__name__}: {err}"
    return Refused(request_id, errors.EngineError.__name__, message)


def refusal(message: Refused) -> errors.OctavoError:
    """The exception a `Refused` stands for."""
    made: type[errors.OctavoError] = getattr(errors, message.error)
    if issubclass(made, errors.ClientError):
        return made(message.message, param=message.param)
    return made(message.message)


def request_ids(data: bytes) -> list[str]:
    """Ids of the sequences that a message is about which cannot be decoded, as far as they can be read."""
    try:
        pending = [msgspec.msgpack.decode(data)]
    except UNREADABLE:
        return []
    found = []
    while pending:
        part = pending.pop()
        if isinstance(part, dict):
            found += [value for key, value in part.items() if key == "request_id" and isinstance(value, str)]
            pending += part.values()
        elif isinstance(part, list):
            pending += part
    return found


def engine_error(message: Failed) -> errors.OctavoError:
    """The exception a `Failed` stands for."""
    made: errors.OctavoError = getattr(errors, message.error)(message.message)
    return made
