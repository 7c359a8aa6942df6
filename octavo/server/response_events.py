"""Answers of the responses API: as events while they come, and as the object that they make. Knows no engine."""

import time
from collections.abc import Iterator
from typing import Any

from octavo.server.answer import Header
from octavo.server.blocks import Block, BlockReader, Closed, Grew, Opened
from octavo.server.chat import TurnNews
from octavo.server.errors import Failure
from octavo.server.files import new_id
from octavo.server.logprobs import chat_logprobs
from octavo.server.response_items import Item, ResponsesRequest
from octavo.server.responses import TokenLogprob, Usage
from octavo.tokenizer.tokenizer import Tokenizer

Event = dict[str, Any]

PREFIXES = {"reasoning": "rs", "text": "msg", "call": "fc"}


def new_response(body: ResponsesRequest, header: Header) -> dict[str, Any]:
    """The object before anything is known of the answer."""
    wanted = None if body.text is None or body.text.format is None else body.text.format
    form = {"type": "text"} if wanted is None else wanted.model_dump(by_alias=True, exclude_none=True)
    reasoning = body.reasoning
    return {
        "id": header.id,
        "object": "response",
        "created_at": header.created,
        "completed_at": None,
        "status": "in_progress",
        "background": body.background,
        "error": None,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": header.model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": reasoning and reasoning.effort, "summary": None},
        "service_tier": "default",
        "store": body.store,
        "temperature": body.temperature,
        "text": {"format": form},
        "tool_choice": body.tool_choice or "auto",
        "tools": body.tools or [],
        "top_logprobs": body.top_logprobs or 0,
        "top_p": body.top_p,
        "truncation": body.truncation,
        "usage": None,
        "user": body.user,
    }


def fail(response: dict[str, Any], found: Failure) -> None:
    """The answer has come to nothing."""
    code = "invalid_prompt" if found.status < 500 else "server_error"
    code = "rate_limit_exceeded" if found.status in (429, 503) else code
    response |= {"status": "failed", "error": {"code": code, "message": found.error.message}}


class ResponseWriter:
    """Writes one answer into its response.

    Args:
        num_logprobs: likely tokens beside each token of the text; None tells no logprobs.
    """

    def __init__(self, response: dict[str, Any], tokenizer: Tokenizer, num_logprobs: int | None) -> None:
        self.response = response
        self._tokenizer = tokenizer
        self._num_logprobs = num_logprobs
        self._reader = BlockReader()
        self._ids: dict[int, str] = {}
        self._logprobs: dict[int, list[TokenLogprob]] = {}
        self._num_events = 0

    def begin(self) -> Iterator[Event]:
        """Events before the answer."""
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self.response)

    def events(self, news: TurnNews) -> Iterator[Event]:
        """Events that the news make; with the last of them the response is complete."""
        logprobs = self._read_logprobs(news)
        for step in self._reader.read(news.events, ended=news.finish_reason is not None):
            match step:
                case Opened(block):
                    self._ids[block.index] = new_id(PREFIXES[block.kind]).replace("-", "_")
                    yield from self._opened(block)
                case Grew(block, text):
                    told, logprobs = (logprobs, []) if block.kind == "text" else ([], logprobs)
                    yield self._grew(block, text, told)
                case Closed(block):
                    cut = news.finish_reason == "length" and block is self._reader.blocks[-1]
                    yield from self._closed(block, "incomplete" if cut else "completed")
        if news.finish_reason is not None:
            yield self._end(news)

    def failed(self, found: Failure) -> Event:
        """The event that ends a stream early."""
        fail(self.response, found)
        return self._event("response.failed", response=self.response)

    def _opened(self, block: Block) -> Iterator[Event]:
        item = self._item(block, "in_progress") | ({} if block.kind == "call" else {"content": []})
        yield self._event("response.output_item.added", output_index=block.index, item=item)
        if block.kind != "call":
            yield self._in_part("response.content_part.added", block, part=self._part(block, ""))

    def _grew(self, block: Block, text: str, logprobs: list[TokenLogprob]) -> Event:
        if block.kind == "call":
            return self._in_item("response.function_call_arguments.delta", block, delta=text)
        if block.kind == "reasoning":
            return self._in_part("response.reasoning_text.delta", block, delta=text)
        self._logprobs.setdefault(block.index, []).extend(logprobs)
        return self._in_part("response.output_text.delta", block, delta=text, logprobs=logprobs)

    def _closed(self, block: Block, status: str) -> Iterator[Event]:
        if block.kind == "call":
            yield self._in_item("response.function_call_arguments.done", block, arguments=block.text, name=block.name)
        elif block.kind == "reasoning":
            yield self._in_part("response.reasoning_text.done", block, text=block.text)
        else:
            logprobs = self._logprobs.get(block.index, [])
            yield self._in_part("response.output_text.done", block, text=block.text, logprobs=logprobs)
        if block.kind != "call":
            yield self._in_part("response.content_part.done", block, part=self._part(block, block.text))
        item = self._item(block, status)
        self.response["output"].append(item)
        yield self._event("response.output_item.done", output_index=block.index, item=item)

    def _end(self, news: TurnNews) -> Event:
        status = "incomplete" if news.finish_reason == "length" else "completed"
        self.response |= {"status": status, "usage": _usage(news.usage), "completed_at": int(time.time())}
        if news.times is not None:
            self.response["metrics"] = news.times
        if status == "incomplete":
            self.response["incomplete_details"] = {"reason": "max_output_tokens"}
        return self._event(f"response.{status}", response=self.response)

    def _item(self, block: Block, status: str) -> Item:
        item_id = self._ids[block.index]
        if block.kind == "call":
            return {"id": item_id, "type": "function_call", "call_id": block.call_id, "name": block.name,
                    "arguments": block.text, "status": status}  # fmt: skip
        content = [self._part(block, block.text)]
        if block.kind == "reasoning":
            return {"id": item_id, "type": "reasoning", "summary": [], "content": content, "status": status}
        return {"id": item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _part(self, block: Block, text: str) -> dict[str, Any]:
        if block.kind == "reasoning":
            return {"type": "reasoning_text", "text": text}
        logprobs = self._logprobs.get(block.index, []) if text else []
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    def _in_part(self, kind: str, block: Block, **fields: Any) -> Event:
        return self._in_item(kind, block, content_index=0, **fields)

    def _in_item(self, kind: str, block: Block, **fields: Any) -> Event:
        return self._event(kind, item_id=self._ids[block.index], output_index=block.index, **fields)

    def _event(self, kind: str, **fields: Any) -> Event:
        self._num_events += 1
        return {"type": kind, "sequence_number": self._num_events - 1, **fields}

    def _read_logprobs(self, news: TurnNews) -> list[TokenLogprob]:
        """Of the tokens that are new. They are told with the text that is new, which they are where all is text."""
        if self._num_logprobs is None:
            return []
        delta = news.delta
        shown = len(delta.token_ids) - delta.ended_by_token
        return chat_logprobs(
            self._tokenizer,
            delta.token_ids[:shown],
            delta.logprobs[:shown],
            self._num_logprobs,
            skip_special=True,
            as_ids=False,
        )


def _usage(usage: Usage) -> dict[str, Any]:
    details = usage.completion_tokens_details
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.prompt_tokens_details.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": getattr(details, "reasoning_tokens", 0)},
        "total_tokens": usage.total_tokens,
    }
