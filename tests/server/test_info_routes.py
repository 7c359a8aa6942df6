"""The routes of tools and of SageMaker."""

from pathlib import Path

import pytest

from octavo.config import ServerConfig
from octavo.server.keys import Scope
from octavo.server.middleware import OPEN_PATHS, good_scopes
from tests.server.world import World, assert_refused, joined, serve_app


def test_invocations_answer_as_the_route_that_the_body_means(varied: World) -> None:
    for route, body in (
        ("/v1/completions", {"prompt": "hello"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
    ):
        body |= {"max_tokens": 5, "temperature": 0, "seed": 1}
        expected, found = varied.ok(route, **body), varied.ok("/invocations", **body)
        assert found["object"] == expected["object"] and found["choices"] == expected["choices"]
        assert joined(varied.stream("/invocations", **body)) == joined(varied.stream(route, **body))


@pytest.mark.parametrize("body", [{}, {"model": "test"}, {"prompt": "x", "temperature": -1}])
def test_what_an_invocation_gets_wrong_is_a_400(varied: World, body: dict[str, object]) -> None:
    assert_refused(varied.post("/invocations", **body))


def test_invocations_need_a_key_and_pings_do_not() -> None:
    assert good_scopes("/invocations") == {Scope.INFER} and "/ping" in OPEN_PATHS
    assert good_scopes("/server_info") == {Scope.ADMIN}


def test_invocations_are_behind_the_key_and_under_the_root_path(script_folder: Path) -> None:
    with serve_app(script_folder, ServerConfig(api_key=("secret-key",), root_path="/llm")) as world:
        body = {"prompt": "hi", "max_tokens": 1}
        assert_refused(world.post("/invocations", **body), 401)
        headers = {"Authorization": "Bearer secret-key"}
        for path in ("/invocations", "/llm/invocations"):
            assert world.http.post(path, json=body, headers=headers).status_code == 200
        info = world.http.get("/server_info", headers=headers)
        assert info.status_code == 200 and "secret-key" not in info.text
        info = world.http.get("/server_info?config_format=json", headers=headers).json()
        assert info["vllm_config"]["max_model_len"] == 512 and info["server"]["root_path"] == "/llm"
        assert "api_key" not in info["server"]


def test_tokenizer_info_is_there_when_asked_for(script: World, script_folder: Path) -> None:
    assert "--enable-tokenizer-info-endpoint" in assert_refused(script.http.get("/tokenizer_info"), 404)["message"]
    with serve_app(script_folder, ServerConfig(enable_tokenizer_info_endpoint=True)) as world:
        info = world.http.get("/tokenizer_info").json()
    assert info["eos_token"] == "<|im_end|>" and "<|im_start|>" in info["chat_template"]
    assert info["model_max_length"] == 512 and info["vocab_size"] > 256
