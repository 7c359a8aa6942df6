"""Run by the Python of the clients' environment: `langchain-openai` against a server (URL, model)."""

import sys
from typing import Any, Literal

from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

URL, MODEL = sys.argv[1:3]


class Answer(BaseModel):
    """An answer."""

    mood: Literal["good", "bad"]


@tool
def get_weather(city: str, days: int) -> str:
    """Weather of a city."""
    return f"sunny in {city} for {days} days"


def model(**fields: Any) -> ChatOpenAI:
    return ChatOpenAI(base_url=f"{URL}/v1", api_key="secret", model=MODEL, max_retries=0, max_tokens=200, **fields)


def chat() -> None:
    answer = model().invoke("hi")
    assert answer.content.startswith("Let me look."), answer
    assert answer.usage_metadata["output_tokens"] > 0


def tools() -> None:
    bound = model().bind_tools([get_weather])
    answer = bound.invoke("hi")
    (call,) = answer.tool_calls
    assert call["name"] == "get_weather" and call["args"] == {"city": "Paris", "days": 2}, answer
    result = get_weather.invoke(call)
    assert isinstance(result, ToolMessage) and "Paris" in str(result.content)
    assert bound.invoke([HumanMessage("hi"), answer, result])


def stream() -> None:
    whole = model().bind_tools([get_weather]).invoke("hi")
    total: Any = None
    for chunk in model(stream_usage=True).bind_tools([get_weather]).stream("hi"):
        total = chunk if total is None else total + chunk
    assert total.content == whole.content
    assert [call["args"] for call in total.tool_calls] == [call["args"] for call in whole.tool_calls]
    assert total.usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


def structured_output() -> None:
    answer = model().with_structured_output(Answer, method="json_schema").invoke("hi")
    assert isinstance(answer, Answer), answer


def responses_api() -> None:
    answer = model(use_responses_api=True).bind_tools([get_weather]).invoke("hi")
    assert [call["args"]["city"] for call in answer.tool_calls] == ["Paris"], answer
    total: Any = None
    for chunk in model(use_responses_api=True).bind_tools([get_weather]).stream("hi"):
        total = chunk if total is None else total + chunk
    assert [call["args"]["city"] for call in total.tool_calls] == ["Paris"], total


for check in (chat, tools, stream, structured_output, responses_api):
    check()
    print(check.__name__, "passed")
