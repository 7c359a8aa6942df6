"""Fault cases of the class "prefix_cache", over HTTP. PFX-03 and PFX-04 need real processes and models: tests/e2e."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.server.world import World, serve_app

BLOCK_SIZE = 16
LENGTHS = (15, 16, 17, 31, 32, 33, 48)


class Pair(NamedTuple):
    """Two servers of one model: one looks for pages to use again, one does not."""

    caching: World
    plain: World


@pytest.fixture(scope="module")
def pair(random_folder: Path) -> Iterator[Pair]:
    with (
        serve_app(random_folder, block_size=BLOCK_SIZE) as caching,
        serve_app(random_folder, enable_prefix_caching=False) as plain,
    ):
        yield Pair(caching, plain)


def check(pair: Pair, prompt: list[int], **body: Any) -> tuple[list[int], int]:
    """Both give the same answer; returns it, and how many tokens of the prompt were found."""
    body |= {"max_tokens": 4, "logprobs": 1, "ignore_eos": True, "return_token_ids": True}
    found, computed = (world.complete(prompt, **body) for world in pair)
    ours, theirs = found["choices"][0], computed["choices"][0]
    assert ours["token_ids"] == theirs["token_ids"]
    assert ours["logprobs"]["token_logprobs"] == pytest.approx(theirs["logprobs"]["token_logprobs"], abs=1e-3)
    assert computed["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    cached = found["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached % BLOCK_SIZE == 0 and cached < len(prompt)
    return ours["token_ids"], cached


@pytest.mark.parametrize("length", LENGTHS)
def test_pfx_01_pages_found_again_change_nothing_but_the_work(pair: Pair, length: int) -> None:
    prompt = [3 + (7 * length + 5 * i) % 250 for i in range(length)]
    whole_pages = (length - 1) // BLOCK_SIZE * BLOCK_SIZE
    answer, first = check(pair, prompt)
    (_, second), (_, third) = check(pair, prompt), check(pair, prompt)
    assert (first, second, third) == (0, whole_pages, whole_pages)
    _, longer = check(pair, [*prompt, *answer, *range(3, 8)])
    assert longer >= whole_pages
    middle = (whole_pages + length) // 2
    _, diverging = check(pair, [*prompt[:middle], *(3 + (token_id - 2) % 250 for token_id in prompt[middle:])])
    assert diverging == whole_pages


def test_pfx_01_a_salt_keeps_users_apart(pair: Pair) -> None:
    prompt = [3 + 11 * i % 250 for i in range(40)]
    cached = [check(pair, prompt, cache_salt=salt)[1] for salt in ("alice", "alice", "bob", "bob")]
    assert cached == [0, 32, 0, 32]
