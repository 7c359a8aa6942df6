"""Every bound that a request is held against before it reaches the engine, in one table: docs/configuration.md is made
from it. Bounds that have a flag (`--max-body-bytes`, `--max-logprobs`, `--max-model-len`, the queue's) are options.
"""

from collections.abc import Callable

from octavo.envs import EnvVar
from octavo.errors import ClientError

LIMITS: "list[Limit]" = []

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
"""What a whole number in a request may be at all; most fields have narrower bounds."""


class Limit:
    """At most so many of something in one request.

    Args:
        default: the bound, unless `variable` is set.
        unit: what is counted, in the plural.
        where: what it bounds, for the docs.
        variable: environment variable that changes it; None for a bound that is fixed.
    """

    def __init__(self, default: int, unit: str, where: str, variable: EnvVar[int] | None = None) -> None:
        self.default = default
        self.unit = unit
        self.where = where
        self.variable = variable
        LIMITS.append(self)

    @property
    def value(self) -> int:
        """The bound now."""
        return self.default if self.variable is None else self.variable.get()

    def check(self, param: str, count: int) -> None:
        """Raise ClientError, about the field `param`, if `count` is over the bound."""
        if count > self.value:
            raise ClientError(
                f"{param} has {count} {self.unit} but the limit is {self.value}; {self.way_out}",
                param=param.partition("[")[0],
            )

    @property
    def way_out(self) -> str:
        """What to do about it."""
        return "send fewer" if self.variable is None else f"send fewer, or raise {self.variable.name} on the server"


def _positive(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 2**31 - 1:
        raise ValueError("must be a whole number of at least 1")
    return value


def _variable(name: str, default: int, what: str) -> EnvVar[int]:
    parse: Callable[[str], int] = _positive
    return EnvVar(f"OCTAVO_MAX_{name}", default, parse, f"Most {what} of one request.", aliases=(f"VLLM_MAX_{name}",))


HEADERS = Limit(100, "headers", "headers of a request")
HEADER_BYTES = Limit(1 << 16, "bytes", "headers of a request together, names and values")
JSON_DEPTH = Limit(100, "levels", "lists and objects inside each other, in a body")
PROMPTS = Limit(
    1024, "prompts", "`prompt` of /v1/completions", _variable("COMPLETION_PROMPTS", 1024, "prompts in a list")
)
CHOICES = Limit(16384, "choices", "`n`, times the prompts", _variable("N_SEQUENCES", 16384, "answers (`n`)"))
BEAMS = Limit(64, "beams", "`n` with `use_beam_search`, times the prompts")
MESSAGES = Limit(8192, "messages", "`messages`")
TOOLS = Limit(512, "tools", "`tools`")
DOCUMENTS = Limit(4096, "documents", "`documents`")
STOP_STRINGS = Limit(16, "strings", "`stop`", _variable("STOP_STRINGS", 16, "stop strings"))
STOP_CHARACTERS = Limit(4096, "characters", "each string of `stop`")
STOP_TOKEN_IDS = Limit(4096, "ids", "`stop_token_ids`")
BAD_WORDS = Limit(128, "words", "`bad_words`", _variable("NUM_BAD_WORDS", 128, "bad words"))
BAD_WORD_CHARACTERS = Limit(1024, "characters", "each word of `bad_words`")
LOGIT_BIAS = Limit(4096, "entries", "`logit_bias`")
ALLOWED_TOKEN_IDS = Limit(1 << 20, "ids", "`allowed_token_ids`")
LOGPROB_TOKEN_IDS = Limit(128, "ids", "`logprob_token_ids`")
PATTERN_TOKENS = Limit(1024, "tokens", "`repetition_detection.max_pattern_size`")
GRAMMAR_BYTES = Limit(1 << 18, "bytes", "the grammar that `structured_outputs` or `response_format` describe")
GRAMMAR_BYTES_OF_CHOICES = Limit(1 << 26, "bytes of grammar", "the same, times the choices, which each have it")
SCHEMA_LEVELS = Limit(64, "levels", "JSON schemas inside each other")
TEMPLATE_CHARACTERS = Limit(1 << 20, "characters", "`chat_template`, where requests may bring one")
RENDERED_CHARACTERS = Limit(1 << 25, "characters", "what a chat template makes of a conversation")
RENDER_SECONDS = Limit(10, "seconds", "the time a chat template may take")
BODY_SECONDS = Limit(60, "seconds", "the time in which a body has to arrive")
HEADER_SECONDS = Limit(20, "seconds", "the time in which headers have to arrive, and a connection may wait for them")
