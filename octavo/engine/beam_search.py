"""Beam search over an engine: each beam is a request of one token that shares its parent's pages. Knows no client; the
caller runs the submissions.

Method: vLLM's. In every step each beam offers its 2 * width most likely next tokens; those that end the text are set
aside as finished, and the best `width` of the others live on. Sequences compare by
logprob / length ** length_penalty, where length counts the prompt but not a final end-of-sequence token.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import merge
from itertools import islice
from operator import attrgetter
from typing import NamedTuple

import msgspec

from octavo.engine.input_processor import Submission
from octavo.engine.output_processor import RequestState
from octavo.outputs import BeamSearchSequence, CompletionOutput, RequestMetrics, RequestOutput, TokenLogprobs
from octavo.sampling_params import BeamSearchParams, SamplingParams
from octavo.tokenizer.detokenizer import Detokenizer
from octavo.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True)
class _Beam:
    tokens: list[int]
    cum_logprob: float
    parent_id: str | None


class _Grown(NamedTuple):
    """A beam and a token after it."""

    beam_index: int
    token_id: int
    cum_logprob: float


class BeamSearch:
    """The search for one prompt.

    ```python
    while submissions := search.submissions():
        states = [run(submission) for submission in submissions]
        release(search.advance(states))
    ```

    Args:
        request: the prompt as it is, checked for `params.max_tokens`; the beams' requests are named after it.
        vocab_size: bounds the candidates per beam.
    """

    def __init__(self, request: Submission, params: BeamSearchParams, vocab_size: int) -> None:
        self._request = request
        self._params = params
        (self._sequence,) = request.sequences
        self._end_ids = frozenset(() if params.ignore_eos else self._sequence.eos_token_ids)
        self._num_candidates = min(2 * params.beam_width, vocab_size)
        self._beams = [_Beam(request.prompt_token_ids, 0.0, None)]
        self._metrics = RequestMetrics(arrival_time_s=request.arrival_time_s)
        self._num_cached_tokens = 0
        self._finished: list[BeamSearchSequence] = []
        self._num_steps = 0
        self._held: list[str] = []
        self._submitted: list[str] = []

    def submissions(self) -> list[Submission]:
        """The requests of the next step, one per beam; none when the search is over."""
        if self._num_steps == self._params.max_tokens:
            return []
        params = SamplingParams(temperature=0.0, max_tokens=1, logprobs=self._num_candidates, detokenize=False)
        made = []
        for index, beam in enumerate(self._beams):
            sequence = msgspec.structs.replace(
                self._sequence,
                request_id=f"{self._request.request_id}/{self._num_steps}/{index}",
                prompt_token_ids=beam.tokens,
                sampling=params,
                fork_of=beam.parent_id,
                hold=True,
            )
            made.append(
                Submission(sequence.request_id, None, beam.tokens, params, 0, sequence.arrival_time_s, [sequence])
            )
        self._submitted = [submission.request_id for submission in made]
        return made

    def advance(self, states: Sequence[RequestState]) -> list[str]:
        """Take the outcome of the last `submissions` in. Returns the sequences whose pages nobody needs any more.

        Raises:
            ClientError, EngineError: one of them failed.
        """
        for state in states:
            if state.error is not None:
                raise state.error
        if self._num_steps == 0:
            self._metrics, self._num_cached_tokens = states[0].metrics, states[0].num_cached_tokens
        for beam, state in zip(self._beams, states, strict=True):
            candidates = _candidates(state)
            for token_id in self._end_ids & candidates.keys():
                kept = [*beam.tokens, token_id] if self._params.include_stop_str_in_output else beam.tokens
                cum_logprob = beam.cum_logprob + candidates[token_id].logprob
                self._finished.append(BeamSearchSequence(kept, cum_logprob, finish_reason="stop"))
        # All are equally long, so their scores are in the order of their logprobs; and so are the candidates of a beam.
        grown = merge(*map(self._grow, range(len(states)), states), key=attrgetter("cum_logprob"), reverse=True)
        self._beams = [
            _Beam([*self._beams[index].tokens, token_id], cum_logprob, states[index].submission.request_id)
            for index, token_id, cum_logprob in islice(grown, self._params.beam_width)
        ]
        self._num_steps += 1
        let_go, self._held, self._submitted = self._held, self._submitted, []
        return let_go

    def best(self) -> list[BeamSearchSequence]:
        """The best sequences found, best first."""
        open_ones = [BeamSearchSequence(beam.tokens, beam.cum_logprob, finish_reason="length") for beam in self._beams]
        found = sorted(
            self._finished + open_ones, key=lambda found: self._score(found.tokens, found.cum_logprob), reverse=True
        )
        return found[: self._params.beam_width]

    def output(self, tokenizer: Tokenizer) -> RequestOutput:
        """The best sequences as the samples of one finished request, in their order."""
        prompt, params = self._request.prompt_token_ids, self._params
        outputs = []
        for index, found in enumerate(self.best()):
            token_ids = found.tokens[len(prompt) :]
            text = Detokenizer(
                tokenizer,
                prompt,
                skip_special_tokens=params.skip_special_tokens,
                kept=params.kept_special_token_ids or (),
            )
            text.push(token_ids)
            outputs.append(
                CompletionOutput(index, text.delta(True), token_ids, found.cum_logprob, None, found.finish_reason)
            )
        self._metrics.finished_time_s = time.monotonic()
        return RequestOutput(
            self._request.request_id,
            self._request.prompt,
            prompt,
            outputs=outputs,
            finished=True,
            metrics=self._metrics,
            num_cached_tokens=self._num_cached_tokens,
        )

    def release(self) -> list[str]:
        """All sequences that may still be held, when the search is over or given up."""
        return self._held + self._submitted

    def _grow(self, index: int, state: RequestState) -> Iterator[_Grown]:
        """A beam with each of its candidates that does not end it, the best first."""
        before = self._beams[index].cum_logprob
        for token_id, candidate in _candidates(state).items():
            if token_id not in self._end_ids:
                yield _Grown(index, token_id, before + candidate.logprob)

    def _score(self, tokens: list[int], cum_logprob: float) -> float:
        length = len(tokens) - (tokens[-1] in self._end_ids)
        return float(cum_logprob / length**self._params.length_penalty)


def _candidates(state: RequestState) -> TokenLogprobs:
    (candidates,) = state.samples[0].logprobs or []
    return candidates
