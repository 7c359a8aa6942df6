"""Which requests are let into the queue: those that can fit, while the queue has room. Knows no steps or rows."""

import sys
from collections.abc import Mapping

from octavo.config import SchedulerConfig
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.request import Rank, Request, Status
from octavo.core.request_queue import RequestQueue
from octavo.errors import ClientError, ConfigError, OverloadedError, RateLimitError
from octavo.messages import EngineRequest


class Admission:
    """The limits a request is held against when it arrives.

    Raises:
        ConfigError: prompts are computed whole, but a step is too small for the longest.
    """

    def __init__(self, config: SchedulerConfig, kv: KVCacheManager, max_model_len: int, token_budget: int) -> None:
        if not config.enable_chunked_prefill and max_model_len > token_budget:
            raise ConfigError(
                f"without chunked prefill a step must hold the longest sequence, but max_model_len is {max_model_len} "
                f"and max_num_batched_tokens is {token_budget}; raise --max-num-batched-tokens, lower --max-model-len "
                "or use --enable-chunked-prefill"
            )
        self._config = config
        self._kv = kv
        self._whole_prompts = not config.enable_chunked_prefill
        self._max_model_len = max_model_len
        self.max_total_tokens = min(max_model_len, kv.max_request_tokens(self._whole_prompts))

    def make_request(self, spec: EngineRequest, live: Mapping[str, Request], rank: Rank) -> Request:
        """The core's state for what a client sent.

        Raises:
            ClientError: the id is in use, the prompt is empty, or it can never fit.
        """
        if spec.request_id in live:
            raise ClientError(f"request id {spec.request_id!r} is in use; choose another", param="request_id")
        self._check_fits(spec)
        num_prompt_tokens, max_tokens = len(spec.prompt_token_ids), spec.sampling.max_tokens
        wanted = sys.maxsize if max_tokens is None else num_prompt_tokens + max_tokens
        parent = self._shareable_parent(spec, live)
        num_common_tokens = 0 if parent is None else _num_common(spec.prompt_token_ids, parent.token_ids)
        request = Request(
            spec,
            rank=rank,
            max_total_tokens=min(wanted, self.max_total_tokens),
            parent=parent,
            num_common_tokens=num_common_tokens,
        )
        if parent is not None:
            request.block_hashes = parent.block_hashes[: num_common_tokens // self._kv.block_size]
        return request

    def check_queue(self, request: Request, waiting: RequestQueue, *, num_free_seats: int) -> None:
        """Refuse a request that would make the queue too long. Those about to get a free seat do not count.

        Raises:
            OverloadedError: names the queue's length and limit; RateLimitError if it is the tenant's own part of it.
        """
        per_key = self._config.max_num_queued_reqs_per_key
        if per_key is not None and len(waiting) >= num_free_seats + per_key:
            num_own = sum(queued.spec.tenant == request.spec.tenant for queued in waiting) - num_free_seats
            if num_own >= per_key:
                raise RateLimitError(
                    f"{num_own} requests of this key are queued and the limit is {per_key} "
                    "(--max-num-queued-reqs-per-key); try again later"
                )
        max_requests, max_tokens = self._config.max_num_queued_reqs, self._config.max_num_queued_tokens
        num_queued = len(waiting) - num_free_seats
        if max_requests is not None and num_queued >= max_requests:
            raise OverloadedError(
                f"{max(0, num_queued)} requests are queued and the limit is {max_requests} (--max-num-queued-reqs); "
                "try again later"
            )
        if max_tokens is not None and num_queued >= 0:
            num_tokens = request.num_prompt_tokens + sum(queued.num_prompt_tokens for queued in waiting)
            if num_tokens > max_tokens:
                raise OverloadedError(
                    f"with this request {num_tokens} prompt tokens would be queued and the limit is {max_tokens} "
                    "(--max-num-queued-tokens); try again later"
                )

    def _check_fits(self, spec: EngineRequest) -> None:
        num_prompt_tokens = len(spec.prompt_token_ids)
        if num_prompt_tokens == 0:
            raise ClientError("the prompt has no tokens; give at least 1", param="prompt")
        num_tokens = num_prompt_tokens + (spec.sampling.max_tokens != 0)
        if num_tokens > self._max_model_len:
            raise ClientError(
                f"the prompt has {num_prompt_tokens} tokens, with room for an answer {num_tokens}, but max_model_len "
                f"is {self._max_model_len}; shorten it or raise --max-model-len",
                param="prompt",
            )
        shortage = self._kv.shortage(num_tokens, num_tokens if self._whole_prompts else 1)
        if shortage is not None:
            raise ClientError(
                f"the prompt has {num_prompt_tokens} tokens and needs {shortage.num_needed} pages of KV group "
                f"{shortage.group!r}, but the pool has {shortage.num_blocks}; shorten it or raise "
                "--kv-cache-memory-bytes",
                param="prompt",
            )

    def _shareable_parent(self, spec: EngineRequest, live: Mapping[str, Request]) -> Request | None:
        parent = live.get(spec.fork_of) if spec.fork_of is not None else None
        # Logprobs of prompt tokens need the prompt computed; other salts never share.
        if parent is None or spec.sampling.prompt_logprobs is not None or spec.cache_salt != parent.spec.cache_salt:
            return None
        return None if parent.status is Status.PREEMPTED else parent


def _num_common(token_ids: list[int], others: list[int]) -> int:
    """Length of the common prefix."""
    num_common = min(len(token_ids), len(others))
    if token_ids[:num_common] == others[:num_common]:
        return num_common
    return next(i for i, (a, b) in enumerate(zip(token_ids, others, strict=False)) if a != b)
