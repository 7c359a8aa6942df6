"""`LLM`: a model in this process, for scripts and notebooks. The same engine as the server's, without a server."""

import itertools
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, TypeVar

from octavo.engine.beam_search import BeamSearch
from octavo.engine.chat import make_template
from octavo.engine.client import InProcessClient
from octavo.engine.input_processor import InputProcessor, Prompt, Submission, TokensPrompt, default_sampling_params
from octavo.engine.output_processor import OutputProcessor, RequestState
from octavo.engine.progress_bar import GenerationBar
from octavo.engine.protocol import EngineFacts
from octavo.engine.resolve import make_config
from octavo.errors import ClientError, EngineDeadError
from octavo.messages import Progress, SchedulerStats
from octavo.outputs import BeamSearchOutput, RequestOutput
from octavo.sampling_params import BeamSearchParams, SamplingParams
from octavo.tokenizer.tokenizer import Tokenizer, load_tokenizer

T = TypeVar("T")

Message = Mapping[str, Any]


class LLM:
    """A model, loaded and ready.

    ```python
    with LLM("smollm2-135m-instruct") as llm:
        print(llm.generate("The capital of France is")[0].outputs[0].text)
    ```

    Threads may share one: their prompts run in the same batches.

    Args:
        model: a folder, a .gguf file, a hub id or a catalogue name. Default: the small model of the quickstart.
        progress: told how far fetching and loading are.
        options: any engine option by its name in `octavo.config`, e.g. `max_model_len=4096`.

    Raises:
        ConfigError, ModelError: the options do not fit, or the model cannot be loaded.
    """

    _closed = True

    def __init__(self, model: str | None = None, *, progress: Progress | None = None, **options: object) -> None:
        self.config = make_config(progress, model=model, **options)
        self.tokenizer = load_tokenizer(self.config.spec.tokenizer_path)
        self._template = make_template(self.config, self.tokenizer)
        self._client = InProcessClient(self.config, progress)
        self._closed = False
        self.config = self._client.config
        self._inputs = InputProcessor(self.config, self.tokenizer, self._client.facts.max_request_tokens)
        self._outputs = OutputProcessor(self.tokenizer)
        self._lock = threading.RLock()
        self._request_ids = map(str, itertools.count())

    # ------------------------------------------------------------ generation

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        priority: int | Sequence[int] = 0,
    ) -> list[RequestOutput]:
        """Complete one prompt or many. Blocks until all are done.

        Args:
            prompts: text, `{"prompt": text}`, `{"prompt_token_ids": ids}` or a list of ids; or a list of such.
            sampling_params: for all prompts, or one each. Default: the model's own, 16 tokens.
            use_tqdm: show a progress bar with tokens per second.
            priority: lower first under `scheduling_policy="priority"`; for all prompts, or one each.

        Returns:
            One output per prompt, in their order. A sample that failed has finish_reason "error" and says why.

        Raises:
            ClientError: a prompt or parameter is wrong. Nothing has run then.
            EngineDeadError: the engine cannot go on.
        """
        many = _as_list(prompts)
        params = _one_each("sampling_params", sampling_params or self.get_default_sampling_params(), len(many))
        priorities = _one_each("priority", priority, len(many))
        with self._lock:
            submissions = [
                self._inputs.process(prompt, each, next(self._request_ids), priority=rank)
                for prompt, each, rank in zip(many, params, priorities, strict=True)
            ]
            states = self._submit(submissions)
        with GenerationBar(len(states), enabled=use_tqdm) as bar:
            self._run(states, bar)
        return [state.result() for state in states]

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or many, each a list of `{"role": ..., "content": ...}`.

        Args:
            sampling_params: as for `generate`. Default: the model's own, as many tokens as the context has room for.
            continue_final_message: the answer continues the last message; needs `add_generation_prompt=False`.
            tools: function definitions, given to the template.
            chat_template_kwargs: further variables for the template.

        Raises:
            ClientError: there is no template, or it refuses a conversation; and as for `generate`.
        """
        if isinstance(messages, Mapping):
            raise ClientError("messages must be a list of messages; put the message into a list", param="messages")
        conversations = [messages] if not messages or isinstance(messages[0], Mapping) else messages
        prompts: list[Prompt] = [
            self._render(
                conversation,  # type: ignore[arg-type]  # told apart by their first element
                tools=tools,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                chat_template_kwargs=chat_template_kwargs,
            )
            for conversation in conversations
        ]
        return self.generate(prompts, sampling_params or self._default_params(max_tokens=None), use_tqdm=use_tqdm)

    def stream(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> Iterator[str]:
        """Complete one prompt and yield the text as it comes. Closing the iterator aborts the request.

        Raises:
            ClientError: as for `generate`, at the first step.
            EngineError: the engine failed on this request.
        """
        params = sampling_params or self.get_default_sampling_params()
        with self._lock:
            (state,) = self._submit([self._inputs.process(prompt, params, next(self._request_ids))])
        try:
            num_sent = 0
            while not state.finished:
                self._step()
                text = state.samples[0].text
                if len(text) > num_sent:
                    yield text[num_sent:]
                    num_sent = len(text)
            if state.error is not None:
                raise state.error
        finally:
            self._abort([state])

    def stream_chat(self, messages: Sequence[Message], sampling_params: SamplingParams | None = None) -> Iterator[str]:
        """Answer one conversation and yield the text as it comes; otherwise as `chat` and `stream`."""
        return self.stream(self._render(messages), sampling_params or self._default_params(max_tokens=None))

    def beam_search(self, prompts: Prompt | Sequence[Prompt], params: BeamSearchParams) -> list[BeamSearchOutput]:
        """The `params.beam_width` best answers to each prompt. Beams share the pages of what they have in common.

        Raises:
            ClientError: a prompt is wrong, or too long for `params.max_tokens` more.
        """
        if not isinstance(params, BeamSearchParams):
            raise ClientError(f"params must be BeamSearchParams, got {type(params).__name__}", param="params")
        checked = SamplingParams(max_tokens=params.max_tokens)
        with self._lock:
            searches = [
                BeamSearch(
                    self._inputs.process(prompt, checked, next(self._request_ids)), params, self.config.spec.vocab_size
                )
                for prompt in _as_list(prompts)
            ]
        try:
            while work := [(search, made) for search in searches if (made := search.submissions())]:
                with self._lock:
                    states = [self._submit(made) for _, made in work]
                self._run([state for each in states for state in each])
                for (search, _), each in zip(work, states, strict=True):
                    self._release(search.advance(each))
        finally:
            self._release([engine_id for search in searches for engine_id in search.release()])
        outputs = [BeamSearchOutput(search.best()) for search in searches]
        for sequence in (sequence for output in outputs for sequence in output.sequences):
            sequence.text = self.tokenizer.decode(sequence.tokens)
        return outputs

    # ------------------------------------------------------------ facts and upkeep

    @property
    def facts(self) -> EngineFacts:
        """Device, dtype, pages and limits of the loaded engine."""
        return self._client.facts

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The model's own sampling parameters (generation_config.json), as `generate` uses them by default."""
        return self._default_params()

    def reset_prefix_cache(self) -> bool:
        """Forget cached prompt beginnings; False while a request holds pages."""
        with self._lock:
            return self._client.reset_prefix_cache()

    def stats(self) -> SchedulerStats:
        """Gauges and counters after the latest step."""
        return self._client.stats()

    def close(self) -> None:
        """Give model, pages and threads back. May be called twice; nothing but this works afterwards."""
        if self._closed:
            return
        self._closed = True
        with self._lock:
            self._outputs.fail_all(lambda: EngineDeadError("the LLM is closed"))
            self._client.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    # ------------------------------------------------------------ driving the engine

    def _default_params(self, **ours: Any) -> SamplingParams:
        """The model's own parameters where it has some, else `ours`, else those of `SamplingParams`."""
        return SamplingParams(**{**ours, **default_sampling_params(self.config)})

    def _render(self, messages: Sequence[Message], **options: Any) -> TokensPrompt:
        text = self._template.render(messages, **options)
        return {"prompt": text, "prompt_token_ids": self.tokenizer.encode(text, add_special_tokens=False)}

    def _submit(self, submissions: Sequence[Submission]) -> list[RequestState]:
        """Open requests, all or none."""
        states: list[RequestState] = []
        try:
            for submission in submissions:
                states.append(self._outputs.add(submission))
                self._client.submit(submission.sequences)
        except BaseException:
            self._abort(states)
            raise
        return states

    def _run(self, states: Sequence[RequestState], bar: GenerationBar | None = None) -> None:
        """Step until all are finished; whatever interrupts that ends them."""
        try:
            while any(not state.finished for state in states):
                self._step()
                if bar is not None:
                    bar.update(states)
        finally:
            self._abort(states)
        for state in states:
            if state.failure is not None:
                raise state.failure

    def _step(self) -> None:
        with self._lock, deferred_interrupt():
            if not self._client.has_unfinished():  # another thread's step has finished ours
                return
            try:
                news = self._client.step()
            except BaseException as err:
                # Torn off in the middle of a step: what the scheduler and the worker believe may differ from now on.
                message = f"the engine failed in a step: {type(err).__name__}: {err}"
                self._outputs.fail_all(lambda: EngineDeadError(message))
                self._client.close()
                raise
            to_abort = self._outputs.process(news.outputs)
            if to_abort:
                self._client.abort(to_abort)

    def _abort(self, states: Sequence[RequestState]) -> None:
        """End those that are still open."""
        with self._lock:
            self._release(self._outputs.abort([s.submission.request_id for s in states if not s.finished]))

    def _release(self, engine_ids: list[str]) -> None:
        with self._lock:
            if engine_ids and self._client.is_alive:
                self._client.abort(engine_ids)


@contextmanager
def deferred_interrupt() -> Iterator[None]:
    """Let Ctrl-C wait until the block is done, so that it never strikes halfway; pressed twice, it strikes at once.

    Does nothing outside the main thread or where the program handles Ctrl-C itself.
    """
    in_main = threading.current_thread() is threading.main_thread()
    if not in_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    pressed = False

    def on_interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if pressed:
        raise KeyboardInterrupt


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt as a list of one. A list of whole numbers is one prompt of ids."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    if not isinstance(prompts, Sequence) or isinstance(prompts, bytes):
        raise ClientError(
            f"prompts must be text, token ids, a dict, or a list of such, got {type(prompts).__name__}", param="prompt"
        )
    if prompts and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _one_each(name: str, value: T | Sequence[T], count: int) -> list[T]:
    if not isinstance(value, Sequence):
        return [value] * count
    if len(value) != count:
        raise ClientError(f"{len(value)} {name} were given for {count} prompts; give one, or one each", param=name)
    return list(value)
