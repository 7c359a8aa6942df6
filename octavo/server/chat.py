"""A conversation, made ready for the engine and run: what the chat, responses and messages routes share. Each brings
its request into the form of `ChatRequest`, and its answer into its own.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, NamedTuple

from starlette.requests import Request

from octavo.errors import EngineError
from octavo.parsers.events import Event
from octavo.server.answer import Header, Pace, make_header, make_work
from octavo.server.generation import Cursor, Delta, UsageCount, Work, run
from octavo.server.prompts import Conversation, Prompt, truncate
from octavo.server.refusals import check_chat, check_supported, check_template
from octavo.server.requests import ChatRequest
from octavo.server.responses import RequestTimes, Usage
from octavo.server.sampling import beam_params, chat_params
from octavo.server.serving import Serving, lifecycle_of
from octavo.server.timing import Timing
from octavo.server.tools import allowed_tools, tool_use
from octavo.server.turns import TurnFinishReason, TurnPlan


class PreparedTurn(NamedTuple):
    """A checked request: what the engine is to do, and how its answer is read.

    Attributes:
        timed: whether the answer tells its times.
        interval: after how many new tokens a stream tells.
    """

    serving: Serving
    header: Header
    conversation: Conversation
    plan: TurnPlan
    work: Work
    timed: bool
    interval: int


class TurnNews(NamedTuple):
    """What is new of an answer of one sample. `finish_reason` comes with the last news, and `times` if asked for."""

    events: list[Event]
    delta: Delta
    usage: Usage
    finish_reason: TurnFinishReason | None
    times: RequestTimes | None


async def prepare_turn(request: Request, body: ChatRequest, id_prefix: str, *, fit: bool = False) -> PreparedTurn:
    """Check and render a conversation.

    Args:
        fit: lower a `max_tokens` that the context has no room for, and let a model that does not think go without a
            budget for it, instead of refusing them.

    Raises:
        ClientError: `param` is a field of the chat form, or "prompt" for the conversation as a whole.
    """
    lifecycle = lifecycle_of(request)
    serving = lifecycle.serving()
    serving.check_model(body.model)
    check_supported(body)
    check_chat(body)
    check_template(body.chat_template, lifecycle.server.trust_request_chat_template)
    body.tools, body.tool_choice = allowed_tools(body.tools, body.tool_choice)
    use = tool_use(body.tools, body.tool_choice, body.parallel_tool_calls is not False)
    conversation, limit = conversation_of(body), serving.config.max_model_len
    token_ids = await serving.prompts.chat(conversation, bounded=body.truncate_prompt_tokens is None)
    prompt = truncate(Prompt(None, token_ids), body.truncate_prompt_tokens, body.truncation_side, limit)
    if fit and serving.turns.reasoning_format is None:
        body.thinking_token_budget = None
    plan = serving.turns.plan(
        prompt.token_ids,
        use,
        serving.prompts.variables(conversation),
        continued=conversation.last_text if body.continue_final_message else "",
        include_reasoning=body.include_reasoning,
        budget=body.thinking_token_budget,
    )
    room = limit - len(prompt.token_ids)
    if fit and body.max_tokens is not None:
        body.max_tokens = min(body.max_tokens, max(1, room))
    params = plan.constrain(chat_params(body, serving.defaults, room))
    header = make_header(request, body, serving, id_prefix)
    work = make_work(request, lifecycle, header, body, [prompt], params, beam_params(body, params, 1, room))
    return PreparedTurn(
        serving,
        header,
        conversation,
        plan,
        work,
        timed=bool(body.return_metrics) or lifecycle.server.enable_per_request_metrics,
        interval=body.stream_interval or lifecycle.server.stream_interval,
    )


def conversation_of(body: ChatRequest) -> Conversation:
    """What the template is given. Without a word about it, an answer is asked for unless the last message goes on."""
    asks = body.add_generation_prompt
    variables: dict[str, Any] = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", body.reasoning_effort)
    return Conversation(
        body.messages,
        tools=body.tools,
        documents=body.documents,
        add_generation_prompt=not body.continue_final_message if asks is None else asks,
        continue_final_message=body.continue_final_message,
        variables=variables,
        template=body.chat_template or None,
        add_special_tokens=body.add_special_tokens,
    )


async def run_turn(turn: PreparedTurn) -> AsyncGenerator[TurnNews]:
    """Run a request for one sample and read it as it comes. Closing the iterator aborts it.

    Raises:
        ClientError, EngineError: as `generation.run`, and when somebody else has aborted it.
    """
    serving, work = turn.serving, turn.work
    usage, reader, cursor = UsageCount(work.prompts), turn.plan.reader(), Cursor()
    timing, pace = Timing() if turn.timed else None, Pace(turn.interval)
    async with aclosing(run(serving.engine, serving.metrics, work, serving.request_log)) as stream:
        async for news in stream:
            usage.see(news)
            if timing is not None:
                timing.see(*news)
            (sample,) = news.output.outputs
            if not pace.is_due(news.prompt_index, sample):
                continue
            delta = cursor.take(sample)
            events = reader.read(delta)
            if reader.finish_reason == "abort":
                raise EngineError("the request was aborted")
            times = timing.times() if timing is not None and reader.finish_reason is not None else None
            yield TurnNews(events, delta, usage.usage(reader.reasoning_tokens), reader.finish_reason, times)
