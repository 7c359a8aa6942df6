"""llama.cpp through llama-cpp-python: one sequence per seat, prompts in chunks beside the tokens of the others, as its
server does it. Run by its path, with an interpreter that has llama-cpp-python.
"""

import os
from typing import Any

import llama_cpp
import numpy as np
from runner import Item, Loaded, Output, run_steps, serve_job, value_of

BATCH_TOKENS = 2048


class Seat:
    """A sequence under way: `todo` are the tokens whose keys and values are not there yet."""

    def __init__(self, index: int, item: Item) -> None:
        self.index = index
        self.todo = list(item.prompt_token_ids)
        self.position = 0
        self.left = item.output_tokens


class Engine:
    """See `runner.Stepper`."""

    def __init__(self, context: Any, num_seats: int, vocab_size: int) -> None:
        self.context = context
        self.vocab_size = vocab_size
        self.waiting: list[Seat] = []
        self.seats: dict[int, Seat] = {}
        self.free = list(range(num_seats))
        self.batch = llama_cpp.llama_batch_init(BATCH_TOKENS, 0, 1)

    def add(self, index: int, item: Item) -> None:
        self.waiting.append(Seat(index, item))

    def step(self) -> list[Output]:
        while self.waiting and self.free:
            self.seats[self.free.pop()] = self.waiting.pop(0)
        asked = self._fill_batch()
        code = llama_cpp.llama_decode(self.context, self.batch)
        if code != 0:
            raise RuntimeError(f"llama_decode returned {code}")
        return [self._take_token(row, number) for row, number in asked]

    def _fill_batch(self) -> list[tuple[int, int]]:
        """Next tokens first, then prompts while there is room. Returns (row, seat) of those that get a token."""
        batch, asked = self.batch, []
        batch.n_tokens = 0
        for number, seat in sorted(self.seats.items(), key=lambda entry: len(entry[1].todo)):
            now = seat.todo[: BATCH_TOKENS - batch.n_tokens]
            seat.todo = seat.todo[len(now) :]
            for i, token in enumerate(now):
                row = batch.n_tokens
                is_last = not seat.todo and i == len(now) - 1
                batch.token[row], batch.pos[row] = token, seat.position
                batch.n_seq_id[row], batch.seq_id[row][0], batch.logits[row] = 1, number, is_last
                if is_last:
                    asked.append((row, number))
                seat.position += 1
                batch.n_tokens += 1
        return asked

    def _take_token(self, row: int, number: int) -> Output:
        seat = self.seats[number]
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(self.context, row), (self.vocab_size,))
        seat.todo, seat.left = [int(logits.argmax())], seat.left - 1
        if seat.left == 0:
            llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self.context), number, -1, -1)
            del self.seats[number]
            self.free.append(number)
        return Output(seat.index, 1, seat.left == 0)


def load(job: dict[str, Any]) -> Loaded:
    """A context with a seat of `max_model_len` tokens for each sequence."""
    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(job["model"].encode(), llama_cpp.llama_model_default_params())
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = job["max_model_len"] * job["max_seqs"]
    params.n_seq_max = job["max_seqs"]
    params.n_batch = BATCH_TOKENS
    params.n_threads = params.n_threads_batch = job["threads"] or len(os.sched_getaffinity(0))  # not four
    for name, text in job["peer_options"].items():
        setattr(params, name, value_of(text))
    context = llama_cpp.llama_init_from_model(model, params)
    vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    engine = Engine(context, job["max_seqs"], vocab_size)
    return Loaded(llama_cpp.__version__, lambda items, users: run_steps(engine, items, users))


if __name__ == "__main__":
    serve_job(load)
