"""Log lines of single requests: off unless asked for, and without text unless asked for by name."""

import logging
from collections.abc import Sequence

import msgspec

from octavo.config import ServerConfig
from octavo.logging import get_logger
from octavo.outputs import RequestOutput
from octavo.sampling_params import SamplingParams
from octavo.server.prompts import Prompt
from octavo.tokenizer.tokenizer import Tokenizer

logger = get_logger(__name__)


class RequestLog:
    """What --enable-log-requests and --enable-log-outputs write.

    Args:
        tokenizer: gives prompts that came as ids their text.
    """

    def __init__(self, server: ServerConfig, tokenizer: Tokenizer) -> None:
        self._requests = server.enable_log_requests
        self._outputs = server.enable_log_outputs
        self._max_chars = server.max_log_len
        self._tokenizer = tokenizer

    def begin(self, request_id: str, prompts: Sequence[Prompt], params: SamplingParams) -> None:
        """A request is given to the engine."""
        if not self._requests:
            return
        lengths = [len(prompt.token_ids) for prompt in prompts]
        fields = {"request_id": request_id, "prompt_tokens": lengths, "parameters": _without_text(params)}
        logger.info(
            "request %s: prompt tokens %s, %s", request_id, lengths, fields["parameters"], extra={"fields": fields}
        )
        if not logger.isEnabledFor(logging.DEBUG):
            return
        for prompt in prompts:
            text = prompt.text
            if text is None:
                text = self._tokenizer.decode(prompt.token_ids, skip_special_tokens=False)
            logger.debug("request %s: prompt %r", request_id, self._cut(text), extra={"fields": fields})

    def see(self, request_id: str, output: RequestOutput) -> None:
        """Something is new; samples that have ended are told."""
        if not self._outputs:
            return
        for sample in output.outputs:
            if sample.finish_reason is not None:
                logger.info(
                    "request %s: output %d, %d tokens, %s: %r",
                    request_id, sample.index, len(sample.token_ids), sample.finish_reason, self._cut(sample.text),
                    extra={"fields": {"request_id": request_id, "finish_reason": sample.finish_reason}},
                )  # fmt: skip

    def _cut(self, text: str) -> str:
        if self._max_chars is None or len(text) <= self._max_chars:
            return text
        return text[: self._max_chars] + "..."


def _without_text(params: SamplingParams) -> dict[str, object]:
    """Parameters that were given; of strings, lists and schemas only how many there are."""
    return {
        name: value if isinstance(value, int | float | None) else f"<{len(value)}>"
        for name, value in msgspec.to_builtins(params).items()
    }
