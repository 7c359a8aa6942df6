"""What must hold between any two steps. Looks inside the core on purpose: a leak shows here long before it hurts."""

from collections import Counter

from octavo.core.block_pool import BlockPool
from octavo.core.request import Status
from octavo.core.scheduler import Scheduler


def check_pool(pool: BlockPool) -> None:
    """Each page is blank, reusable or in use, never two of these; hashes and pages map one to one."""
    in_use = [block_id for block_id, count in enumerate(pool.ref_counts) if count > 0]
    assert min(pool.ref_counts) >= 0
    assert sorted([*pool._blank, *pool._reusable, *in_use]) == list(range(pool.num_blocks))
    assert pool.num_used == len(in_use)
    known = {block_id: block_hash for block_id, block_hash in enumerate(pool._hash_by_block) if block_hash is not None}
    assert {block_hash: block_id for block_id, block_hash in known.items()} == pool._block_by_hash
    assert known.keys() >= set(pool._reusable) and not known.keys() & set(pool._blank)
    states = pool.states(1)
    assert [block_id for block_id, state in enumerate(states) if state == 0] == sorted(pool._blank)
    assert [block_id for block_id, state in enumerate(states) if state == 1] == sorted(pool._reusable)
    assert [block_id for block_id, state in enumerate(states) if state == 3] == [
        block_id for block_id in in_use if pool.ref_counts[block_id] > 1
    ]
    assert pool.states(3) == states[::3] and pool.num_reusable == len(pool._reusable)


def check_scheduler(scheduler: Scheduler) -> None:
    """Page counts equal table entries, rows and places are held once, gauges are what they say."""
    kv = scheduler._kv
    holders = [*scheduler.running, *scheduler._held]
    for group, pool in enumerate(kv.pools):
        check_pool(pool)
        entries = Counter(b for r in holders for b in r.block_table.groups[group] if b >= 0)
        assert {b: n for b, n in enumerate(pool.ref_counts) if n} == entries
    for request in holders:
        table = request.block_table
        for ids, num_passed in zip(table.groups, table.num_passed, strict=True):
            assert ids[:num_passed] == [-1] * num_passed and -1 not in ids[num_passed:]
            assert len(set(ids[num_passed:])) == len(ids) - num_passed
        assert 0 <= request.num_computed_tokens <= min(table.num_slots, request.num_tokens)
    for request in scheduler.waiting:
        assert request.block_table.groups == [] and request.row == -1 and request.num_computed_tokens == 0
    rows = [request.row for request in scheduler.running]
    assert sorted(rows + scheduler._free_rows) == list(range(scheduler._max_running))
    behind = [request for samples in scheduler._behind.values() for request in samples]
    places = [*scheduler.running, *scheduler.waiting, *scheduler._held, *behind]
    in_queue = [r.spec.fork_of or r.request_id for r in scheduler.waiting if r.status is Status.WAITING]
    assert sorted(in_queue) == sorted(scheduler._behind), "one sample of a prompt is in the queue, others behind it"
    assert {request.request_id: request for request in places} == scheduler._requests
    assert len(places) == len(scheduler._requests)
    for queue in (scheduler.running, scheduler.waiting):
        ranks = [request.rank for request in queue]
        assert ranks == sorted(set(ranks))
    num_slots = sum(len(ids) for request in holders for ids in request.block_table.groups) * kv.block_size
    num_filled = len(kv.pools) * sum(request.num_computed_tokens for request in holders)
    assert kv.num_empty_slots() == num_slots - num_filled
    stats = scheduler.stats()
    assert (stats.num_running, stats.num_waiting) == (len(scheduler.running), len(scheduler.waiting) + len(behind))
    assert 0.0 <= stats.kv_waste < 1.0 and 0.0 <= stats.kv_usage <= 1.0 and 0.0 <= stats.kv_peak_waste < 1.0
