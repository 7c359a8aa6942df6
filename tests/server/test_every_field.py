"""Every field that OpenAI, vLLM and Anthropic document for the generating routes: it changes what comes back, or is
refused by its name, or is named in a header, or is one of those that are documented to change nothing.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from octavo.config import ServerConfig
from octavo.server.unknown_fields import HEADER, WITHOUT_EFFECT
from tests.script_model import byte_id, write_random_model
from tests.server.world import World, serve_app, strict_json

TEMPLATE = (
    "{{ tools|default('') }}{{ documents|default('') }}{{ reasoning_effort|default('') }}{{ tone|default('') }}"
    "{{ enable_thinking|default('') }}"
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}[end]{% endfor %}"
    "{% if add_generation_prompt %}[answer]{% endif %}"
)
A, B, SPECIAL, EOS = byte_id("a"), byte_id("b"), 1, 2


@dataclass(frozen=True)
class Changes:
    """With `value` the answer is another one than without, `beside` what both requests say."""

    value: Any
    beside: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Refused:
    """`value` is refused, and the error names the field."""

    value: Any
    beside: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Named:
    """`value` is not what happens, and a header says so."""

    value: Any


@dataclass(frozen=True)
class Idle:
    """Documented to change nothing."""

    value: Any


Probe = Changes | Refused | Named | Idle

ONLY_A = {"allowed_token_ids": [A], "ignore_eos": True}
A_OR_B = {"allowed_token_ids": [A, B], "max_tokens": 40}
DRAWN = {"temperature": 1.0, "seed": 4}
PREFERS_THE_END = {"allowed_token_ids": [A, EOS], "logit_bias": {str(EOS): 100}}

SHARED: dict[str, Probe] = {
    "model": Refused("another"),
    "frequency_penalty": Changes(2.0, A_OR_B),
    "presence_penalty": Changes(2.0, {"max_tokens": 60}),
    "repetition_penalty": Changes(9.0, {"max_tokens": 60}),
    "logit_bias": Changes({str(B): 100}),
    "max_tokens": Changes(2),
    "max_completion_tokens": Changes(2),
    "n": Changes(2),
    "response_format": Changes({"type": "json_object"}),
    "seed": Changes(5, DRAWN),
    "stop": Changes("aa", ONLY_A),
    "stop_token_ids": Changes([A], ONLY_A),
    "include_stop_str_in_output": Changes(True, {**ONLY_A, "stop": "aa"}),
    "ignore_eos": Changes(True, PREFERS_THE_END),
    "min_tokens": Changes(3, PREFERS_THE_END),
    "stream": Changes(True),
    "stream_options": Changes({"include_usage": True}, {"stream": True}),
    "stream_interval": Changes(1000, {"stream": True, "max_tokens": 200, "ignore_eos": True}),
    "temperature": Changes(1.0, {"seed": 4}),
    "top_p": Changes(0.0, DRAWN),
    "top_k": Changes(1, DRAWN),
    "min_p": Changes(1.0, DRAWN),
    "user": Idle("me"),
    "use_beam_search": Changes(True, {"n": 2, "return_token_ids": True}),
    "length_penalty": Refused(0.5),
    "skip_special_tokens": Changes(False, {"allowed_token_ids": [SPECIAL]}),
    "spaces_between_special_tokens": Refused("x"),  # the tokenizers here know no such spaces, so both values are true
    "truncate_prompt_tokens": Changes(3),
    "truncation_side": Changes("right", {"truncate_prompt_tokens": 3, "return_token_ids": True}),
    "prompt_logprobs": Changes(1),
    "logprob_token_ids": Changes([A, B], {"logprobs": True}),
    "allowed_token_ids": Changes([A]),
    "bad_words": Changes(["a"], {**A_OR_B, "logit_bias": {str(A): 100}}),
    "repetition_detection": Changes({"max_pattern_size": 1, "min_count": 3}, ONLY_A),
    "watermarking": Refused(True),
    "structured_outputs": Changes({"regex": "[0-9]{4}"}),
    "guided_json": Changes({"type": "object"}),
    "guided_regex": Changes("[0-9]{4}"),
    "guided_choice": Changes(["yes"]),
    "guided_grammar": Changes('root ::= "x"'),
    "guided_whitespace_pattern": Refused("[ ]*"),
    "guided_decoding_backend": Idle("xgrammar"),
    "priority": Refused(1.5),  # its effect needs a queue: test_cases_scheduling
    "request_id": Changes("mine"),
    "session_id": Idle("s"),
    "return_tokens_as_token_ids": Changes(True, {"logprobs": True}),
    "return_token_ids": Changes(True),
    "return_prompt_text": Changes(True),
    "return_metrics": Changes(True),
    "cache_salt": Refused("a@b"),  # its effect: test_cases_prefix_cache
    "mm_processor_kwargs": Refused({"a": 1}),
    "media_io_kwargs": Refused({"a": 1}),
    "kv_transfer_params": Refused({"a": 1}),
    "ec_transfer_params": Refused({"a": 1}),
    "vllm_xargs": Refused({"a": 1}),
    "routed_experts_prompt_start": Refused(3),
    "logits_processors": Refused(["x"]),
    "best_of": Refused(3),
    "service_tier": Named("flex"),
    "metadata": Idle({"a": "b"}),
}

WEATHER = {"type": "function", "function": {"name": "weather"}}
TIME = {"type": "function", "function": {"name": "time"}}
MUST_CALL = {"tools": [WEATHER], "tool_choice": "required", "max_tokens": 60}
GOES_ON = {
    "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "So"}],
    "add_generation_prompt": False,
}

CHAT: dict[str, Probe] = {
    **SHARED,
    "messages": Changes([{"role": "user", "content": "other"}]),
    "logprobs": Changes(True),
    "top_logprobs": Changes(2, {"logprobs": True}),
    "tools": Changes([TIME], MUST_CALL),
    "tool_choice": Changes("required", {"tools": [WEATHER], "max_tokens": 60}),
    "parallel_tool_calls": Refused("x"),  # its effect: test_cases_forced_calls
    "reasoning_effort": Changes("high"),
    "include_reasoning": Changes(False),
    "thinking_token_budget": Changes(2, {"max_tokens": 30}),
    "echo": Changes(True, {**GOES_ON, "continue_final_message": True}),
    "add_generation_prompt": Changes(False),
    "continue_final_message": Changes(True, GOES_ON),
    "add_special_tokens": Refused("x"),  # the tiny tokenizer adds none; completions: test_cases_chat_template
    "documents": Changes([{"text": "facts"}]),
    "chat_template": Changes("{{ messages[0].content }}"),
    "chat_template_kwargs": Changes({"tone": "calm"}),
    "functions": Refused([{"name": "f"}]),
    "function_call": Refused("auto"),
    "audio": Refused({"voice": "x"}),
    "modalities": Refused(["audio"]),
    "web_search_options": Refused({"a": 1}),
    "prediction": Refused({"type": "content", "content": "x"}),
    "store": Named(True),
    "safety_identifier": Idle("me"),
    "prompt_cache_key": Idle("k"),
}

COMPLETIONS: dict[str, Probe] = {
    **SHARED,
    "logprob_token_ids": Changes([A, B], {"logprobs": 1}),
    "return_tokens_as_token_ids": Changes(True, {"logprobs": 1}),
    "prompt": Changes("other"),
    "prompt_embeds": Refused("AAAA"),
    "suffix": Refused("end"),
    "echo": Changes(True),
    "logprobs": Changes(1),
    "add_special_tokens": Refused("x"),
    "thinking_token_budget": Refused(5),
}

FLAT_WEATHER, FLAT_TIME = ({"type": "function", "name": name} for name in ("weather", "time"))

RESPONSES: dict[str, Probe] = {
    "input": Changes("other"),
    "instructions": Changes("Be brief."),
    "previous_response_id": Refused("resp_none"),
    "store": Refused("x"),
    "background": Changes(True),
    "stream": Changes(True),
    "tools": Changes([FLAT_TIME], {"tools": [FLAT_WEATHER], "tool_choice": "required", "max_output_tokens": 60}),
    "tool_choice": Changes("required", {"tools": [FLAT_WEATHER], "max_output_tokens": 60}),
    "text": Changes({"format": {"type": "json_object"}}),
    "reasoning": Changes({"effort": "high"}),
    "max_output_tokens": Changes(2),
    "max_tool_calls": Refused(0),
    "parallel_tool_calls": Refused("x"),
    "include": Refused(["computer_call_output.output.image_url"]),
    "truncation": Refused("auto"),
    "top_logprobs": Refused(21),  # they are told of text, and here all is thinking: test_responses
    "metadata": Refused({"a": 1}),  # comes back as it is
    "service_tier": Refused(5),
    "prompt_cache_key": Idle("k"),
    "user": Refused(5),
    "prompt": Refused({"id": "x"}),
    "conversation": Refused("x"),
    "temperature": SHARED["temperature"],
    "top_p": SHARED["top_p"],
    "top_k": SHARED["top_k"],
    "min_p": SHARED["min_p"],
    "seed": SHARED["seed"],
    "repetition_penalty": Changes(9.0, {"max_output_tokens": 40}),
    "stop_token_ids": Refused([10**6]),
    "stop": Refused([""]),
    "ignore_eos": Refused("x"),
    "structured_outputs": Changes({"regex": "[0-9]{4}"}),
    "chat_template_kwargs": Changes({"tone": "calm"}),
    "priority": Refused(1.5),
    "cache_salt": Refused("a@b"),
    "kv_transfer_params": Refused({"a": 1}),
    "enable_response_messages": Named(True),
    "previous_input_messages": Named([{"role": "user", "content": "x"}]),
    "return_metrics": Changes(True),
}

ANTHROPIC_TOOL = {"name": "weather", "input_schema": {"type": "object"}}

MESSAGES: dict[str, Probe] = {
    "model": Refused("another"),
    "messages": Changes([{"role": "user", "content": "other"}]),
    "max_tokens": Changes(2),
    "system": Changes("Be brief."),
    "tools": Changes([ANTHROPIC_TOOL]),
    "tool_choice": Changes({"type": "any"}, {"tools": [ANTHROPIC_TOOL], "max_tokens": 60}),
    "thinking": Changes({"type": "disabled"}),
    "output_config": Changes({"effort": "high"}),
    "stop_sequences": Refused("x"),  # their effect needs a model that writes them: test_messages
    "temperature": Changes(1.0),
    "top_p": Refused(2),
    "top_k": Refused(-5),
    "stream": Changes(True),
    "metadata": Refused(5),
    "return_metrics": Changes(True),
}

USER = {"role": "user", "content": "hi"}

ROUTES: dict[str, tuple[dict[str, Any], dict[str, Probe]]] = {
    "/v1/chat/completions": ({"messages": [USER], "temperature": 0, "max_tokens": 6}, CHAT),
    "/v1/completions": ({"prompt": "hello", "temperature": 0, "max_tokens": 6}, COMPLETIONS),
    "/v1/responses": ({"input": "hi", "temperature": 0, "max_output_tokens": 6}, RESPONSES),
    "/v1/messages": ({"model": "test", "messages": [USER], "temperature": 0, "max_tokens": 6}, MESSAGES),
}


@pytest.fixture(scope="module")
def open_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A random model that thinks, whose template tells all it is given, on a server that takes templates."""
    folder = write_random_model(tmp_path_factory.mktemp("open"), chat_template=TEMPLATE, context_length=2048)
    server = ServerConfig(trust_request_chat_template=True, reasoning_parser="deepseek_r1", disable_log_stats=True)
    with serve_app(folder, server, scheduling_policy="priority") as world:
        yield world


def told(world: World, path: str, body: dict[str, Any]) -> Any:
    """What comes back, without what is another each time."""
    response = world.http.post(path, json=body)
    assert response.status_code == 200, response.text
    lines = response.text.split("\n") if body.get("stream") else [f"data: {response.text}"]
    data = [line.removeprefix("data: ") for line in lines if line.startswith("data: ") and line != "data: [DONE]"]
    return [_lasting(strict_json(text)) for text in data]


ECHOED = {"created", "created_at", "completed_at", "metadata", "tools", "tool_choice", "text_format", "seed"}


def _lasting(part: Any) -> Any:
    if isinstance(part, list):
        return [_lasting(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        name: _lasting(value)
        for name, value in part.items()
        if name not in ECHOED and not name.endswith(("details", "_tokens", "signature"))
        and (name not in ("id", "item_id", "call_id") or "mine" in str(value))
    }  # fmt: skip


@pytest.mark.parametrize(
    ("path", "name"), [(path, name) for path, (_, probes) in ROUTES.items() for name in probes], ids="{}".format
)
def test_a_field_does_what_it_says_or_its_name_is_told(open_world: World, path: str, name: str) -> None:
    base, probes = ROUTES[path]
    probe = probes[name]
    beside = {**base, **(probe.beside if isinstance(probe, Changes | Refused) else {})}
    if name == "max_completion_tokens":
        beside.pop("max_tokens")
    body = {**beside, name: probe.value}
    match probe:
        case Changes():
            assert told(open_world, path, body) != told(open_world, path, beside)
            assert HEADER not in open_world.post(path, **body).headers
        case Refused():
            response = open_world.post(path, **body)
            assert response.status_code in (400, 404), response.text
            assert name in json.dumps(response.json()["error"])
        case Named():
            assert open_world.post(path, **body).headers[HEADER] == name
        case Idle():
            assert name in WITHOUT_EFFECT and HEADER not in open_world.post(path, **body).headers
