from octavo.engine.stats import StatsLogger, summarize
from octavo.messages import SchedulerStats


def test_a_busy_engine_logs_rates_of_the_interval(caplog):
    caplog.set_level("INFO", "octavo")
    times = iter((100.0, 105.0, 110.0, 115.0, 120.0))
    logger = StatsLogger(10.0, clock=lambda: next(times))
    for tokens in (0, 50, 200, 300, 500):
        logger.observe(SchedulerStats(num_running=2, num_waiting=1, generation_tokens=tokens, kv_usage=0.25))
    assert len(caplog.messages) == 2
    assert "generation throughput: 20.0 tokens/s" in caplog.messages[0]
    assert "generation throughput: 30.0 tokens/s, Running: 2 reqs, Waiting: 1 reqs" in caplog.messages[1]
    assert "GPU KV cache usage: 25.0%" in caplog.messages[1]


def test_time_without_work_is_not_counted(caplog):
    caplog.set_level("INFO", "octavo")
    now = 0.0
    logger = StatsLogger(10.0, clock=lambda: now)
    logger.observe(SchedulerStats(num_running=1))
    now = 1.0
    logger.observe(SchedulerStats(generation_tokens=100))
    now = 500.0
    logger.observe(SchedulerStats(num_running=1, generation_tokens=100))
    assert caplog.messages == []
    now = 510.0
    logger.observe(SchedulerStats(num_running=1, generation_tokens=150))
    assert "generation throughput: 5.0 tokens/s" in caplog.messages[0]


def test_the_hit_rate_is_that_of_the_interval():
    before = SchedulerStats(prefix_cache_queries=100, prefix_cache_hits=0)
    after = SchedulerStats(prefix_cache_queries=200, prefix_cache_hits=75)
    assert "Prefix cache hit rate: 75.0%" in summarize(before, after, 1.0)
    assert "Prefix cache hit rate: 0.0%" in summarize(before, before, 1.0)
