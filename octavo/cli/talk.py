"""Where `octavo chat` and `octavo complete` get their answers: an engine in this process, or a running server."""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from octavo.cli.options import ENGINE_SECTIONS, add_option_flags, chosen_options
from octavo.cli.progress import progress_bars
from octavo.cli.remote import fetch_model_card, stream_events
from octavo.engine.input_processor import default_sampling_params
from octavo.llm import LLM
from octavo.logging import set_level
from octavo.sampling_params import SamplingParams

Message = dict[str, Any]


class Answerer(Protocol):
    """Streams text. Closing a stream early stops the work behind it.

    Attributes:
        model: name of the model that answers.
    """

    model: str

    def chat(self, messages: list[Message], sampling: dict[str, Any]) -> Iterator[str]:
        """The assistant's next message, piece by piece."""
        ...

    def complete(self, prompt: str, sampling: dict[str, Any]) -> Iterator[str]:
        """What follows `prompt`, piece by piece."""
        ...


class LocalAnswerer:
    """An engine in this process."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self.model = llm.config.served_model_name

    def chat(self, messages: list[Message], sampling: dict[str, Any]) -> Iterator[str]:
        """Stream an answer."""
        return self._llm.stream_chat(messages, self._params(sampling))

    def complete(self, prompt: str, sampling: dict[str, Any]) -> Iterator[str]:
        """Stream a completion."""
        return self._llm.stream(prompt, self._params(sampling))

    def _params(self, sampling: dict[str, Any]) -> SamplingParams:
        defaults = default_sampling_params(self._llm.config)
        return SamplingParams(**{**defaults, "max_tokens": None, **sampling})


class RemoteAnswerer:
    """A server's OpenAI API."""

    def __init__(self, url: str, api_key: str | None, model: str | None) -> None:
        self._url, self._api_key = url, api_key
        self.model = fetch_model_card(url, api_key, model)["id"]

    def chat(self, messages: list[Message], sampling: dict[str, Any]) -> Iterator[str]:
        """Stream an answer."""
        body = {"model": self.model, "messages": messages, **sampling}
        for choice in self._choices("/chat/completions", body):
            yield choice["delta"].get("content") or ""

    def complete(self, prompt: str, sampling: dict[str, Any]) -> Iterator[str]:
        """Stream a completion."""
        for choice in self._choices("/completions", {"model": self.model, "prompt": prompt, **sampling}):
            yield choice["text"]

    def _choices(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for chunk in stream_events(self._url, path, body, self._api_key):
            yield from chunk["choices"]


class TimedAnswerer:
    """Another answerer, which tells the speed of each answer on standard error."""

    def __init__(self, answerer: Answerer) -> None:
        self._answerer = answerer
        self.model = answerer.model

    def chat(self, messages: list[Message], sampling: dict[str, Any]) -> Iterator[str]:
        """Stream an answer, then tell."""
        return _timed(self._answerer.chat(messages, sampling))

    def complete(self, prompt: str, sampling: dict[str, Any]) -> Iterator[str]:
        """Stream a completion, then tell."""
        return _timed(self._answerer.complete(prompt, sampling))


def _timed(stream: Iterator[str]) -> Iterator[str]:
    """The same stream. A piece is a token unless several come at once, or their text waits for a whole character."""
    begin_s = time.perf_counter()
    first_s, num_pieces = begin_s, 0
    try:
        for piece in stream:
            if piece:
                first_s = first_s if num_pieces else time.perf_counter()
                num_pieces += 1
            yield piece
    finally:
        stream.close()  # type: ignore[attr-defined]
    spent_s = time.perf_counter() - first_s
    speed = f", {(num_pieces - 1) / spent_s:.1f} a second" if num_pieces > 1 else ""
    print(f"\nfirst piece after {first_s - begin_s:.2f} s, {num_pieces} pieces{speed}", file=sys.stderr)


def add_talk_flags(parser: argparse.ArgumentParser) -> None:
    """Where to get answers, how to sample them, and every engine option."""
    add_option_flags(parser, ENGINE_SECTIONS)
    parser.add_argument("--url", help="ask a running server, e.g. http://127.0.0.1:8000/v1, instead of loading a model")
    parser.add_argument("--model-name", help="model to ask the server for (default: the first it lists)")
    parser.add_argument("--api-key", help="key to present to the server")
    parser.add_argument("--stats", action="store_true", help="tell the speed of each answer on standard error")
    parser.add_argument("--max-tokens", type=int, help="most tokens of an answer (default: up to the context length)")
    parser.add_argument("--temperature", type=float, help="(default: the model's own)")
    parser.add_argument("--top-p", type=float, help="(default: the model's own)")
    parser.add_argument("--request-seed", type=int, dest="sampling_seed", help="seed of the answer")


def sampling_of(args: argparse.Namespace) -> dict[str, Any]:
    """The sampling parameters that were given, by API name."""
    given = {
        "max_tokens": args.max_tokens,
        "temperature": args.temperature,
        "top_p": args.top_p,
        "seed": args.sampling_seed,
    }
    return {name: value for name, value in given.items() if value is not None}


@contextmanager
def open_answerer(args: argparse.Namespace) -> Iterator[Answerer]:
    """Connect to the server, or load the model with a progress bar."""
    with _opened(args) as answerer:
        yield TimedAnswerer(answerer) if args.stats else answerer


@contextmanager
def _opened(args: argparse.Namespace) -> Iterator[Answerer]:
    if args.url:
        yield RemoteAnswerer(args.url, args.api_key, args.model_name)
        return
    set_level("WARNING")  # the terminal belongs to the conversation
    options = chosen_options(args, ENGINE_SECTIONS, args.foreign)
    options.setdefault("max_num_seqs", 1)
    with progress_bars() as progress:
        llm = LLM(progress=progress, **options)  # type: ignore[arg-type]  # checked by the engine
    with llm:
        yield LocalAnswerer(llm)
