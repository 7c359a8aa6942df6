"""Run by the Python of the clients' environment: `instructor` against a server (URL, model)."""

import sys
from typing import Any, Literal

import instructor
import openai
from pydantic import BaseModel

URL, MODEL = sys.argv[1:3]
USER: Any = [{"role": "user", "content": "hi"}]


class Answer(BaseModel, extra="forbid"):
    """An answer, and no more: the model of the test would go on adding fields."""

    mood: Literal["good", "bad"]
    sure: bool


def client(mode: instructor.Mode) -> Any:
    return instructor.from_openai(openai.OpenAI(base_url=f"{URL}/v1", api_key="secret", max_retries=0), mode=mode)


def structured_output() -> None:
    answer = client(instructor.Mode.JSON_SCHEMA).chat.completions.create(
        model=MODEL, messages=USER, response_model=Answer, max_tokens=200, max_retries=0
    )
    assert isinstance(answer, Answer), answer


def stream() -> None:
    parts = client(instructor.Mode.JSON_SCHEMA).chat.completions.create_partial(
        model=MODEL, messages=USER, response_model=Answer, max_tokens=200, max_retries=0
    )
    last = list(parts)[-1]
    assert last.mood in ("good", "bad") and last.sure in (True, False), last


for check in (structured_output, stream):
    check()
    print(check.__name__, "passed")
