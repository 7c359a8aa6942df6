"""Requests with a grammar in the scheduler: who waits for it, and whom a fault in it ends."""

from concurrent.futures import Future

import msgspec
import pytest

from octavo.config import SchedulerConfig
from octavo.core.kv_cache_manager import KVCacheManager
from octavo.core.scheduler import Scheduler
from octavo.errors import ClientError
from octavo.grammar.build import build_grammar
from octavo.grammar.compiler import Compiled, compile_grammar
from octavo.grammar.constraint import Constraint
from octavo.grammar.masks import MaskWriter
from octavo.grammar.vocabulary import make_tokens
from octavo.messages import EngineOutput, EngineRequest, ModelRunnerOutput
from octavo.sampling_params import StructuredOutputsParams
from tests.core.worlds import FULL, make_request

EOS = 1


class Letters:
    """Ids from 2 on are the letters."""

    special_ids = frozenset([0, EOS])

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([ord("a") + token_id - 2]) if 2 <= token_id < 28 else b""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [2 + ord(letter) - ord("a") for letter in text]


class World:
    """A scheduler whose grammars are compiled when the test says so, and a model that says what the test says."""

    def __init__(self) -> None:
        self.compiled: Future[Compiled] = Future()
        kv = KVCacheManager([FULL], [64], 4, True)
        config = SchedulerConfig(max_num_seqs=4, max_num_batched_tokens=64)
        self.scheduler = Scheduler(
            config, kv, max_model_len=64, token_budget=64, constrain=lambda spec: Constraint(self.compiled)
        )
        self.masks = MaskWriter(30)

    def add(self, request_id: str, grammar: bool) -> EngineRequest:
        request = make_request(request_id, 4, max_tokens=8, ignore_eos=False)
        request = msgspec.structs.replace(request, grammar="its text does not matter here" if grammar else None)
        self.scheduler.add_request(request)
        return request

    def compile(self, *choice: str) -> None:
        grammar = build_grammar(StructuredOutputsParams(choice=list(choice)))
        self.compiled.set_result(compile_grammar(grammar, make_tokens(Letters(), 30, [EOS])))

    def step(self, token_id: int) -> dict[str, EngineOutput]:
        """One step in which every row samples `token_id`, allowed or not."""
        plan = self.scheduler.schedule()
        masks = self.masks.write(self.scheduler.constraints(plan))
        errors = {} if masks is None else masks.errors
        result = ModelRunnerOutput(
            step=plan.step, rows=plan.rows, token_ids=[[token_id]] * len(plan.rows), errors=dict(errors)
        )
        return {output.request_id: output for output in self.scheduler.update_from_output(plan, result)}


@pytest.fixture
def world() -> World:
    return World()


def test_who_waits_for_a_grammar_holds_nobody_else(world: World) -> None:
    world.add("bound", grammar=True)
    world.add("free", grammar=False)
    assert world.step(5).keys() == {"free"}
    assert not world.scheduler.is_waiting_for_grammars()
    world.compile("abc")
    assert world.step(2).keys() == {"free", "bound"}


def test_nothing_but_a_grammar_to_wait_for_is_told_from_being_stuck(world: World) -> None:
    world.add("bound", grammar=True)
    assert world.scheduler.schedule().rows == [] and world.scheduler.is_waiting_for_grammars()
    world.compile("abc")
    assert not world.scheduler.is_waiting_for_grammars()


def test_an_answer_ends_with_its_end_token_whatever_else_was_asked(world: World) -> None:
    request = world.add("bound", grammar=True)
    request.sampling.ignore_eos, request.sampling.min_tokens = True, 7
    world.compile("ab")
    assert [world.step(token_id)["bound"].finish_reason for token_id in (2, 3, EOS)] == [None, None, "stop"]


def test_a_token_that_breaks_the_match_ends_that_request_alone(world: World) -> None:
    world.add("bound", grammar=True)
    world.add("free", grammar=False)
    world.compile("abc")
    news = world.step(9)
    assert news["bound"].finish_reason == "error" and "cannot be followed" in str(news["bound"].error)
    assert news["free"].finish_reason is None
    assert world.step(9).keys() == {"free"}


def test_a_grammar_that_cannot_be_compiled_ends_that_request_alone(world: World) -> None:
    world.add("bound", grammar=True)
    world.add("free", grammar=False)
    world.compiled.set_exception(ClientError("unknown special token"))
    news = world.step(9)
    assert news["bound"].error == "unknown special token"
    assert news["free"].finish_reason is None
