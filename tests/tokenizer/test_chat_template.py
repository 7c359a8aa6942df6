"""Rendering of conversations, against Transformers on the templates of well-known families."""

import copy
import json
from pathlib import Path

import pytest
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

from octavo.errors import ClientError, UnsupportedError
from octavo.tokenizer import chat_template
from octavo.tokenizer.chat_template import ChatTemplate
from octavo.tokenizer.tokenizer import Tokenizer, load_tokenizer
from tests.tokenizer.worlds import (
    train_byte_level,
    train_sentencepiece,
    write_byte_level_gguf,
    write_sentencepiece_gguf,
)

TEMPLATES = {path.stem: path.read_text() for path in sorted((Path(__file__).parent / "templates").glob("*.jinja"))}

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a place, in °C & <html>",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
        },
    }
]
CALL = {"id": "abc123def", "type": "function", "function": {"name": "weather", "arguments": {"place": "Zürich"}}}
CONVERSATIONS = {
    "one": [{"role": "user", "content": "Hello world"}],
    "blanks": [{"role": "user", "content": "  two\n\n lines \n"}],
    "system": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "<b>ü & 'x'</b>"}],
    "turns": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": " b "},
        {"role": "user", "content": "c"},
    ],
    "reasoning": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning": "because"},
        {"role": "user", "content": "c"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nd"},
    ],
    "tool": [
        {"role": "user", "content": "Weather in Zürich?"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": "17 °C", "tool_call_id": "abc123def"},
    ],
    "wrong order": [{"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b"}],
    "unknown role": [{"role": "user", "content": "a"}, {"role": "narrator", "content": "b"}],
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    return load_tokenizer(write_byte_level_gguf(path, train_byte_level(), "smollm"))


@pytest.fixture(scope="module")
def reference(tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend, **tokenizer.special_tokens)


def outcome(render) -> str:
    """The rendered text, or the template's own complaint."""
    try:
        return render()
    except ClientError as err:
        return err.message.removeprefix("the chat template refused the conversation: ")
    except (TemplateError, TypeError) as err:
        return str(err)


@pytest.mark.parametrize("conversation", CONVERSATIONS)
@pytest.mark.parametrize("family", TEMPLATES)
def test_text_is_that_of_transformers(family, conversation, tokenizer, reference):
    template, messages = ChatTemplate(TEMPLATES[family], tokenizer), CONVERSATIONS[conversation]
    before = copy.deepcopy(messages)
    for options in (
        {"add_generation_prompt": True},
        {"add_generation_prompt": False},
        {"add_generation_prompt": True, "tools": TOOLS},
        {"add_generation_prompt": True, "documents": [{"title": "t", "text": "Fact."}], "tools": TOOLS},
        {"add_generation_prompt": True, "enable_thinking": False, "controls": {"length": "short"}},
        {"add_generation_prompt": False, "bos_token": "<other>"},
    ):
        expected = outcome(
            lambda options=options: reference.apply_chat_template(
                messages, chat_template=TEMPLATES[family], tokenize=False, **options
            )
        )
        assert outcome(lambda options=options: template.render(messages, **options)) == expected
    assert messages == before


@pytest.mark.parametrize("family", TEMPLATES)
def test_ids_are_those_of_transformers(family, tokenizer, reference):
    messages = CONVERSATIONS["turns"]
    expected = reference.apply_chat_template(
        messages, chat_template=TEMPLATES[family], add_generation_prompt=True, return_dict=False
    )
    assert ChatTemplate(TEMPLATES[family], tokenizer).render_ids(messages) == expected


def test_bos_written_by_a_template_is_not_doubled(tmp_path):
    path = write_sentencepiece_gguf(tmp_path / "tiny.gguf", train_sentencepiece(), add_bos_token=True)
    tokenizer = load_tokenizer(path)
    ids = ChatTemplate("{{ bos_token }}{{ messages[0].content }}", tokenizer).render_ids(CONVERSATIONS["one"])
    assert ids[0] == 1 and ids.count(1) == 1
    assert tokenizer.encode("Hello")[0] == 1


# ---------------------------------------------------------------- content parts


def text_parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


@pytest.mark.parametrize("family", TEMPLATES)
def test_one_text_part_is_the_same_as_its_text(family, tokenizer):
    template = ChatTemplate(TEMPLATES[family], tokenizer)
    whole = template.render([{"role": "user", "content": "Hello world"}])
    assert template.render([{"role": "user", "content": text_parts("Hello world")}]) == whole
    assert template.render([{"role": "user", "content": ["Hello world"]}]) == whole


@pytest.mark.parametrize("family", TEMPLATES)
@pytest.mark.parametrize("role", ["system", "user"])
def test_two_text_parts_come_out_in_order_and_never_as_structure(family, role, tokenizer):
    messages = [{"role": role, "content": text_parts("first", "second")}, {"role": "user", "content": "x"}]
    text = outcome(lambda: ChatTemplate(TEMPLATES[family], tokenizer).render(messages[: 2 if role == "system" else 1]))
    if family == "gemma" and role == "system":
        assert text == "System role not supported"
        return
    assert text.index("first") < text.index("second") and "type" not in text


def test_templates_that_iterate_get_parts_and_others_one_string(tokenizer):
    messages = [{"role": "user", "content": text_parts("a", "b")}]
    iterates = "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
    assert ChatTemplate(iterates, tokenizer).render(messages) == "[a][b]"
    assert ChatTemplate(iterates, tokenizer).render([{"role": "user", "content": "a"}]) == "[a]"
    assert ChatTemplate("{{ messages[0].content }}", tokenizer).render(messages) == "a\nb"
    assert ChatTemplate("{{ messages[0].content | tojson }}", tokenizer).render(messages) == '"a\\nb"'
    gemma = ChatTemplate(TEMPLATES["gemma3"], tokenizer)
    assert "\nab<end_of_turn>" in gemma.render(messages)


def test_an_empty_list_is_empty_content(tokenizer):
    template = ChatTemplate(TEMPLATES["chatml"], tokenizer)
    assert template.render([{"role": "user", "content": []}]) == template.render([{"role": "user", "content": ""}])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            [{"type": "hologram", "hologram": "x"}],
            r"messages\[0\]\.content\[0\] has the type 'hologram'; known: .*text",
        ),
        ([{"text": "x"}], "has the type 'None'"),
        ([{"type": ["text"]}], "has the type"),
        ([{"type": "text"}], "has no text"),
        ([{"type": "text", "text": 5}], "has no text"),
        ([5], "content.0. is int"),
        (5, "content is int"),
        (None, "has no content"),
    ],
)
def test_content_of_no_known_form_is_a_client_error(content, message, tokenizer):
    with pytest.raises(ClientError, match=message) as caught:
        ChatTemplate(TEMPLATES["chatml"], tokenizer).render([{"role": "user", "content": content}])
    assert caught.value.param == "messages" and caught.value.status == 400


def test_images_are_refused_as_unsupported(tokenizer):
    content = [{"type": "image_url", "image_url": {"url": "data:,"}}]
    with pytest.raises(UnsupportedError, match="image_url"):
        ChatTemplate(TEMPLATES["gemma3"], tokenizer).render([{"role": "user", "content": content}])


@pytest.mark.parametrize(
    "messages", [[], ["hi"], [5], [{"content": "x"}], [{"role": 5, "content": "x"}], [{"a": b"x"}]]
)
def test_what_is_no_message_is_a_client_error(messages, tokenizer):
    with pytest.raises(ClientError) as caught:
        ChatTemplate(TEMPLATES["chatml"], tokenizer).render(messages)
    assert caught.value.param == "messages"


def test_assistant_messages_without_content_and_keys_without_value_are_rendered(tokenizer):
    messages = [{"role": "user", "content": "a", "name": None}, {"role": "assistant", "content": None}]
    assert ChatTemplate("{{ messages[1].content is string }}{{ 'name' in messages[0] }}", tokenizer).render(
        messages
    ) == ("TrueFalse")


def test_arguments_of_tool_calls_arrive_as_objects(tokenizer):
    template = ChatTemplate("{{ messages[1].tool_calls[0].function.arguments.place }}", tokenizer)

    def call(arguments: str | None) -> list[dict[str, object]]:
        function = {"name": "weather", "arguments": arguments}
        return [{"role": "user", "content": ""}, {"role": "assistant", "tool_calls": [{"function": function}]}]

    assert template.render(call('{"place": "Zürich"}')) == "Zürich"
    assert template.render(call("")) == ""
    for wrong in ("{", "[]", "5"):
        with pytest.raises(ClientError, match=r"tool_calls\[0\]\.function\.arguments"):
            template.render(call(wrong))


def test_message_objects_of_client_libraries_are_accepted(tokenizer):
    class Message:
        def model_dump(self) -> dict[str, object]:
            return {"role": "user", "content": "hi", "refusal": None}

    assert ChatTemplate("{{ messages[0].content }}", tokenizer).render([Message()]) == "hi"


# ---------------------------------------------------------------- continuing the last message


@pytest.mark.parametrize("content", ["OK!", "OK! ", "OK!\n", "", "a<|im_end|>b \t"])
@pytest.mark.parametrize("family", [name for name in TEMPLATES if name != "qwen3"])
def test_a_continued_prompt_ends_with_exactly_the_content(family, content, tokenizer):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": content}]
    template = ChatTemplate(TEMPLATES[family], tokenizer)
    options = {"add_generation_prompt": False, "continue_final_message": True}
    text = template.render(messages, **options)
    assert text.endswith(content)
    # Cutting takes the end of the turn away and nothing else.
    whole = template.render(messages, add_generation_prompt=False)
    assert whole.startswith(text.rstrip())
    parts = [messages[0], {"role": "assistant", "content": text_parts(content)}]
    assert template.render(parts, **options) == text


@pytest.mark.parametrize("family", TEMPLATES)
def test_a_continued_prompt_is_that_of_transformers(family, tokenizer, reference):
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "I am"}]
    expected = reference.apply_chat_template(
        messages, chat_template=TEMPLATES[family], tokenize=False, continue_final_message=True
    )
    template = ChatTemplate(TEMPLATES[family], tokenizer)
    assert template.render(messages, add_generation_prompt=False, continue_final_message=True) == expected


def test_continuing_and_starting_an_answer_exclude_each_other(tokenizer):
    with pytest.raises(ClientError, match="exclude each other") as caught:
        ChatTemplate(TEMPLATES["chatml"], tokenizer).render(
            CONVERSATIONS["turns"], add_generation_prompt=True, continue_final_message=True
        )
    assert caught.value.param == "continue_final_message"


def test_continuing_what_the_template_drops_is_a_client_error(tokenizer):
    with pytest.raises(ClientError, match="leaves the end of the last message out"):
        ChatTemplate("{{ messages[0].role }}", tokenizer).render(
            CONVERSATIONS["one"], add_generation_prompt=False, continue_final_message=True
        )


# ---------------------------------------------------------------- templates themselves


def test_no_template_is_an_error_that_names_the_flag(tokenizer):
    for none in (None, {}):
        template = ChatTemplate(none, tokenizer)
        assert template.error is not None
        with pytest.raises(ClientError, match="--chat-template"):
            template.render(CONVERSATIONS["one"])


def test_a_template_that_does_not_compile_says_where(tokenizer):
    template = ChatTemplate("a\n{% if %}", tokenizer)
    assert template.error is not None and "line 2" in template.error
    with pytest.raises(ClientError, match="not valid jinja"):
        template.render(CONVERSATIONS["one"])


def test_the_tool_template_is_used_with_tools(tokenizer):
    template = ChatTemplate({"default": "plain", "tool_use": "tools"}, tokenizer)
    assert template.render(CONVERSATIONS["one"]) == "plain"
    assert template.render(CONVERSATIONS["one"], tools=[]) == "plain"
    assert template.render(CONVERSATIONS["one"], tools=TOOLS) == "tools"
    with pytest.raises(ClientError, match="only the chat templates rag"):
        ChatTemplate({"rag": "x"}, tokenizer).render(CONVERSATIONS["one"])


def test_variables_reach_the_template_but_may_not_replace_request_fields(tokenizer):
    template = ChatTemplate("{{ depth }}{{ self_ }}", tokenizer)
    variables = {"depth": 3, "self_": "x", "conversation": 1, "variables": 2, "seconds": 0}
    assert template.render(CONVERSATIONS["one"], chat_template_kwargs=variables) == "3x"
    assert template.render(CONVERSATIONS["one"], depth=4) == "4"
    for taken in ("messages", "tools", "documents", "add_generation_prompt"):
        with pytest.raises(ClientError, match=taken) as caught:
            template.render(CONVERSATIONS["one"], chat_template_kwargs={taken: 1})
        assert caught.value.param == "chat_template_kwargs"
    with pytest.raises(ClientError, match="not JSON"):
        template.render(CONVERSATIONS["one"], chat_template_kwargs={"depth": object()})


def test_json_is_written_as_models_saw_it(tokenizer):
    tools = [{"b": "<ü&'>", "a": None}]
    template = ChatTemplate("{{ tools | tojson }}|{{ tools[0] | tojson(indent=1, sort_keys=true) }}", tokenizer)
    plain, pretty = template.render(CONVERSATIONS["one"], tools=tools).split("|")
    assert plain == json.dumps(tools, ensure_ascii=False)
    assert pretty == json.dumps(tools[0], ensure_ascii=False, indent=1, sort_keys=True)


def test_generation_blocks_and_loop_controls_are_understood(tokenizer):
    block = "{% generation %}{{ i }}{% endgeneration %}"
    source = "{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}" + block + "{% endfor %}"
    assert ChatTemplate(source, tokenizer).render(CONVERSATIONS["one"]) == "012"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__ }}",
        "{{ messages.append(1) }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ missing.attribute }}",
        "{{ 1 / 0 }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ range(1000000) | list }}",
        "{{ raise_exception('tell me more') }}",
    ],
)
def test_whatever_a_template_raises_is_a_client_error(source, tokenizer):
    template = ChatTemplate(source, tokenizer)
    try:
        text = template.render(CONVERSATIONS["one"])
    except ClientError as err:
        assert err.param == "messages"
    else:
        assert text == ""  # the sandbox gives an undefined value, which renders to nothing


def test_endless_and_flooding_templates_end(tokenizer, monkeypatch):
    monkeypatch.setattr(chat_template, "PROBE_SECONDS", 0.01)
    loop = "{% for i in range(99999) %}"
    endless = ChatTemplate(loop * 4 + "{% endfor %}" * 4, tokenizer)
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.05)
    with pytest.raises(ClientError, match="runs too long"):
        endless.render(CONVERSATIONS["one"])
    monkeypatch.setattr(chat_template, "MAX_CHARACTERS", 1000)
    flood = ChatTemplate(loop + "{{ 'x' * 100 }}{% endfor %}", tokenizer)
    with pytest.raises(ClientError, match="more than 1000 characters"):
        flood.render(CONVERSATIONS["one"])
    recursive = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    with pytest.raises(ClientError, match="runs too long"):
        ChatTemplate(recursive, tokenizer).render(CONVERSATIONS["one"])
