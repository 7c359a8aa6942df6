"""Tenants share the engine: the arithmetic alone, and the order in which the scheduler lets requests in."""

import random

import pytest

from octavo.core.fair_share import FairShare
from octavo.errors import OverloadedError, RateLimitError
from octavo.messages import BACKGROUND_PRIORITY, EngineRequest
from tests.core.invariants import check_scheduler
from tests.core.test_scheduler import finish
from tests.core.worlds import World, make_request, make_world


def request(tenant: str, number: int, size: int = 4, max_tokens: int = 2, **options: int) -> EngineRequest:
    made = make_request(f"{tenant}{number}", size, max_tokens=max_tokens, **options)
    made.tenant = tenant
    return made


def order_of_admission(world: World) -> list[str]:
    """Ids in the order in which they get a seat."""
    admitted: list[str] = []
    while world.scheduler.has_unfinished():
        admitted += [new.request_id for new in world.step().new_rows if new.request_id not in admitted]
    return admitted


def test_one_tenant_is_served_in_order_of_arrival_whatever_its_requests_cost() -> None:
    world, rng = make_world(max_num_seqs=2), random.Random(0)
    sent = []
    for i in range(30):
        sent.append(request("", i, rng.randrange(1, 20), rng.randrange(1, 9)))
        world.add(sent[-1])
        if rng.random() < 0.3:
            world.step()
    ranks = [one.rank for one in world.scheduler.waiting]
    assert [rank[2] for rank in ranks] == sorted(rank[2] for rank in ranks)
    finish(world)


def test_a_light_tenant_does_not_wait_for_the_queue_of_a_heavy_one() -> None:
    world = make_world(max_num_seqs=1)
    world.add(*(request("heavy", i) for i in range(40)))
    world.step()
    world.add(request("light", 0))
    order = order_of_admission(world)
    assert order.index("light0") <= 1, order
    assert [name for name in order if name != "light0"] == [f"heavy{i}" for i in range(1, 40)]


@pytest.mark.parametrize(("sizes", "parts"), [((8, 8), (1, 1)), ((24, 8), (1, 3)), ((8, 24), (3, 1))])
def test_tenants_get_the_same_number_of_tokens_not_of_requests(sizes: tuple[int, int], parts: tuple[int, int]) -> None:
    world = make_world(max_num_seqs=1, max_model_len=64)
    world.add(*(request("a", i, sizes[0] - 2) for i in range(60)))
    world.add(*(request("b", i, sizes[1] - 2) for i in range(60)))
    first = order_of_admission(world)[:40]
    served = [sum(name.startswith(tenant) for name in first) for tenant in "ab"]
    assert served[0] / served[1] == pytest.approx(parts[0] / parts[1], rel=0.25)


def test_a_long_answer_is_paid_for_once_it_is_known() -> None:
    world = make_world(max_num_seqs=1, num_blocks=200, max_model_len=700)
    world.add(request("a", 0, 4, 600))
    while world.scheduler.has_unfinished():
        world.step()
    world.add(*(request("a", i) for i in range(1, 4)), *(request("b", i) for i in range(1, 4)))
    assert [name[0] for name in order_of_admission(world)[:3]] == ["b"] * 3


def test_a_short_answer_is_not_paid_for_as_a_long_one() -> None:
    shares = FairShare()
    assert shares.start("a", 1000) == 0
    shares.settle("a", -990)
    assert shares.start("a", 10) == 10
    shares.settle("a", -5000)
    assert shares.start("a", 10) == 10, "nobody slips before an earlier request of his own"


def test_who_comes_back_has_saved_nothing_and_who_left_is_forgotten() -> None:
    shares = FairShare()
    for _ in range(10):
        shares.begin(shares.start("busy", 100))
    assert shares.start("idle", 1) == 900
    for i in range(1000):
        shares.begin(shares.start(f"t{i}", 1) + 2)
    assert len(shares._accounts) < 5


def test_a_big_request_of_one_tenant_is_not_overtaken_for_ever_by_another() -> None:
    world = make_world(num_blocks=20, block_size=4, caching=False)
    world.add(request("a", 0, 52, 12))
    world.step()
    world.add(request("big", 0, 40, 2))
    for i in range(1, 60):
        world.add(request("a", i, 2, 2))
        world.step()
        if world.reason("big0"):
            break
    assert world.reason("big0") == "length" and i < 30


def test_priorities_come_before_shares_and_batches_after_everything() -> None:
    world = make_world(max_num_seqs=1, scheduling_policy="priority")
    world.add(request("a", 0), *(request("a", i, priority=1) for i in range(1, 4)), request("b", 0, priority=2))
    assert order_of_admission(world) == ["a0", "a1", "a2", "a3", "b0"]
    world = make_world(max_num_seqs=1)
    world.add(request("a", 0), request("batch", 0, priority=BACKGROUND_PRIORITY), request("a", 1), request("a", 2))
    assert order_of_admission(world)[-1] == "batch0"


def test_one_key_cannot_fill_the_queue_of_all() -> None:
    world = make_world(max_num_seqs=1, max_num_queued_reqs=4, max_num_queued_reqs_per_key=2)
    world.add(*(request("a", i) for i in range(3)))
    with pytest.raises(RateLimitError, match=r"2 requests of this key.*limit is 2"):
        world.scheduler.add_request(request("a", 3))
    world.add(request("b", 0), request("b", 1))
    with pytest.raises(OverloadedError, match=r"4 requests are queued") as caught:
        world.scheduler.add_request(request("c", 0))
    assert not isinstance(caught.value, RateLimitError)
    finish(world)


def test_samples_of_one_request_leave_the_next_seats_to_others() -> None:
    world = make_world(max_num_seqs=4, num_blocks=200, max_num_queued_reqs=3)
    prompt = make_request("big", 5).prompt_token_ids
    world.add(make_request("big", prompt, max_tokens=6))
    world.add(*(make_request(f"big#{i}", prompt, 4 + i % 3, sample_index=i, fork_of="big") for i in range(1, 400)))
    for _ in range(4):
        world.step()
    assert len(world.scheduler.running) == 4 and world.scheduler.stats().num_waiting > 390
    world.add(request("", 0), request("", 1))  # the queue has room for them
    seats = [name for _ in range(8) for name in (new.request_id for new in world.step().new_rows)]
    assert seats.index("0") <= 1 and seats.index("1") <= 3, seats
    world.abort(*(f"big#{i}" for i in range(300, 200, -1)))
    check_scheduler(world.scheduler)
    finish(world)
    assert [world.reason(f"big#{i}") for i in (1, 200, 201, 300, 301)] == ["length"] * 2 + ["abort"] * 2 + ["length"]
    world.check_answers()


def test_samples_of_one_request_take_all_seats_that_nobody_else_wants_at_once() -> None:
    world = make_world(max_num_seqs=8)
    prompt = make_request("p", 5).prompt_token_ids
    world.add(make_request("p", prompt))
    world.add(*(make_request(f"p#{i}", prompt, sample_index=i, fork_of="p") for i in range(1, 20)))
    world.step()
    assert len(world.step().new_rows) == 7
    finish(world)
