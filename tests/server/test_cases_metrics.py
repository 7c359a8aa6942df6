"""The fault case of the class "metrics", and what a dashboard relies on."""

import json
import re
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from octavo.config import ServerConfig
from tests.script_model import write_random_model
from tests.server.world import World, serve_app, wait_for

ENDLESS = {"prompt": "x" * 30, "max_tokens": 3500, "ignore_eos": True, "temperature": 0}

GAUGES = (
    "num_requests_running", "num_requests_waiting", "num_requests_waiting_by_reason", "kv_cache_usage_perc",
    "engine_sleep_state", "lora_requests_info", "cache_config_info",
)  # fmt: skip
COUNTERS = (
    "prompt_tokens", "prompt_tokens_cached", "prompt_tokens_by_source", "generation_tokens", "request_success",
    "num_preemptions", "prefix_cache_queries", "prefix_cache_hits", "admission_rejections",
)  # fmt: skip
HISTOGRAMS = (
    "time_to_first_token_seconds", "inter_token_latency_seconds", "request_time_per_output_token_seconds",
    "e2e_request_latency_seconds", "request_queue_time_seconds", "request_prefill_time_seconds",
    "request_decode_time_seconds", "request_inference_time_seconds", "request_prompt_tokens",
    "request_generation_tokens", "request_max_num_generation_tokens", "request_params_n", "request_params_max_tokens",
    "request_num_preemptions", "request_prefill_kv_computed_tokens", "iteration_tokens_total",
)  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_num_seqs", [20, 2])
def test_met_01_gauges_return_to_idle_when_all_clients_go(tmp_path: Path, max_num_seqs: int, stream: bool) -> None:
    # With two seats most of the requests are only waiting.
    folder = write_random_model(tmp_path, context_length=4096)
    with serve_app(folder, max_num_seqs=max_num_seqs, num_gpu_blocks_override=5000) as world:
        with ExitStack() as clients:
            for _ in range(20):
                clients.enter_context(world.send_and_hold("/v1/completions", **ENDLESS, stream=stream))
            wait_for(lambda: world.gauge("num_requests_running") + world.gauge("num_requests_waiting") == 20)
            start = time.monotonic()
            assert world.gauge("num_requests_running") == max_num_seqs
            assert time.monotonic() - start < 1
        world.wait_until_idle(5)
        assert all(value >= 0 for value in world.metrics().values())
        assert finished(world, "abort") == 20
        assert world.complete("hi", max_tokens=2)["choices"]


def test_met_01_a_client_that_goes_while_several_prompts_run_stops_them_all(tmp_path: Path) -> None:
    folder = write_random_model(tmp_path, context_length=4096)
    with serve_app(folder, num_gpu_blocks_override=5000) as world:
        body = ENDLESS | {"prompt": ["a", "b", "c"], "n": 2, "temperature": 1}
        with world.send_and_hold("/v1/completions", **body, stream=True):
            wait_for(lambda: world.gauge("num_requests_running") == 6)
        world.wait_until_idle(5)


@pytest.mark.parametrize("prefix", ["octavo:", "vllm:"])
def test_every_name_that_dashboards_use_is_there(varied: World, prefix: str) -> None:
    varied.complete("hello", max_tokens=4, ignore_eos=True)
    names = {family.name for family in text_string_to_metric_families(varied.http.get("/metrics").text)}
    assert {prefix + name for name in (*GAUGES, *COUNTERS, *HISTOGRAMS)} <= names
    assert {"http_requests", "http_request_duration_seconds", "process_cpu_seconds"} <= names


def test_old_vllm_names_have_the_values_of_the_new_ones(varied: World) -> None:
    varied.complete("hello", max_tokens=4, ignore_eos=True)
    metrics = varied.metrics()
    labels = '{engine="0",model_name="test"}'
    for old, new in (("gpu_cache_usage_perc", "kv_cache_usage_perc"),
                     ("time_per_output_token_seconds_count", "inter_token_latency_seconds_count")):  # fmt: skip
        assert metrics[f"vllm:{old}{labels}"] == metrics[f"vllm:{new}{labels}"]
    for name in ("num_requests_swapped", "cpu_cache_usage_perc"):
        assert metrics[f"vllm:{name}{labels}"] == 0
    assert f"octavo:gpu_cache_usage_perc{labels}" not in metrics


OLD_DASHBOARD = (
    "e2e_request_latency_seconds_bucket", "prompt_tokens_total", "generation_tokens_total",
    "time_per_output_token_seconds_bucket", "num_requests_running", "num_requests_swapped", "num_requests_waiting",
    "time_to_first_token_seconds_bucket", "gpu_cache_usage_perc", "cpu_cache_usage_perc",
    "request_prompt_tokens_bucket", "request_generation_tokens_bucket", "request_success_total",
    "request_queue_time_seconds_sum", "request_prefill_time_seconds_sum", "request_decode_time_seconds_sum",
    "request_max_num_generation_tokens_sum", "gpu_prefix_cache_hits_total", "gpu_prefix_cache_queries_total",
    "gpu_prefix_cache_hit_rate", "iteration_tokens_total_bucket",
)  # fmt: skip
"""What dashboards made for older versions of vLLM query."""

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana" / "octavo.json"


def names_of(world: World) -> set[str]:
    """Every name that a query may use, without labels."""
    return {name.partition("{")[0] for name in world.metrics()}


def test_dashboards_of_older_versions_find_every_series(varied: World) -> None:
    varied.complete("hello", max_tokens=4, ignore_eos=True)
    assert {f"vllm:{name}" for name in OLD_DASHBOARD} <= names_of(varied)


def test_our_dashboard_queries_what_is_exported_and_groups_by_labels_that_are_there(varied: World) -> None:
    varied.complete("hello", max_tokens=4, ignore_eos=True)
    samples = varied.metrics()
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    queries.append(next(each["query"]["query"] for each in dashboard["templating"]["list"] if each["name"] == "model"))
    for query in queries:
        found = re.findall(r"\b(?:vllm:|octavo:|http_|process_)\w+", query)
        assert found and set(found) <= names_of(varied), query
        for label in {each.strip() for labels in re.findall(r"by \(([^)]*)\)", query) for each in labels.split(",")}:
            assert any(name.startswith(f"{found[0]}{{") and f'{label}="' in name for name in samples), (query, label)
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])


def test_buckets_are_those_of_vllm(varied: World) -> None:
    def bounds(name: str) -> list[float]:
        found = (sample for sample in varied.metrics() if sample.startswith(f"vllm:{name}_bucket"))
        return sorted(float(sample.partition('le="')[2].partition('"')[0]) for sample in found)

    assert bounds("time_to_first_token_seconds")[:6] == [0.001, 0.005, 0.01, 0.02, 0.04, 0.06]
    assert bounds("inter_token_latency_seconds")[:4] == [0.01, 0.025, 0.05, 0.075]
    assert bounds("e2e_request_latency_seconds")[:4] == [0.3, 0.5, 0.8, 1.0]
    assert bounds("request_prompt_tokens")[:7] == [1, 2, 5, 10, 20, 50, 100]
    assert bounds("iteration_tokens_total")[-2:] == [16384, float("inf")]


def test_steps_are_counted_by_the_tokens_in_them(script_folder: Path) -> None:
    with serve_app(script_folder) as world:
        world.complete("x" * 30, max_tokens=4, ignore_eos=True)
        labels = '{engine="0",model_name="test"}'
        metrics = world.metrics()
        assert metrics[f"vllm:iteration_tokens_total_sum{labels}"] == 30 + 3
        assert (
            metrics[f"vllm:iteration_tokens_total_count{labels}"] == metrics[f"octavo:engine_steps_total{labels}"] == 4
        )


def test_vllm_names_can_be_left_out(script_folder: Path) -> None:
    with serve_app(script_folder, ServerConfig(metrics_prefix_vllm=False)) as world:
        names = world.metrics()
        assert any(name.startswith("octavo:") for name in names)
        assert not any(name.startswith("vllm:") for name in names)


def test_counters_count_tokens_requests_and_reasons(script_folder: Path) -> None:
    with serve_app(script_folder) as world:
        for _ in range(2):
            world.complete("a" * 40, max_tokens=3)
        world.complete("hi", max_tokens=20)
        assert world.post("/v1/completions", prompt="").status_code == 400
        labels = '{engine="0",model_name="test"}'
        metrics = world.metrics()
        assert metrics[f"octavo:prompt_tokens_total{labels}"] == 82
        assert metrics[f"octavo:prompt_tokens_cached_total{labels}"] == 32
        assert metrics[f"octavo:generation_tokens_total{labels}"] == 3 + 3 + 6
        assert finished(world, "length") == 2 and finished(world, "stop") == 1 and finished(world, "error") == 0
        assert metrics[f"octavo:time_to_first_token_seconds_count{labels}"] == 3
        assert metrics[f"octavo:inter_token_latency_seconds_count{labels}"] == 2 + 2 + 5
        assert metrics[f"octavo:request_prompt_tokens_sum{labels}"] == 82
        assert metrics[f"octavo:request_generation_tokens_sum{labels}"] == 12
        assert metrics[f"octavo:request_prefill_kv_computed_tokens_sum{labels}"] == 50
        count = metrics['http_requests_total{handler="/v1/completions",method="POST",status="2xx"}']
        assert count == 3
        assert metrics['http_requests_total{handler="/v1/completions",method="POST",status="4xx"}'] == 1


def test_unknown_paths_and_methods_add_no_labels(script: World) -> None:
    for i in range(5):
        script.http.request(f"X{i}", f"/path/{i}")
    assert not any("/path/" in name or 'method="X' in name for name in script.metrics())


def test_metric_types_do_not_change_between_scrapes_and_parse(varied: World) -> None:
    first, second = (
        {(f.name, f.type) for f in text_string_to_metric_families(varied.http.get("/metrics").text)} for _ in range(2)
    )
    assert first == second


def finished(world: World, reason: str) -> float:
    return world.metrics()[f'octavo:request_success_total{{engine="0",finished_reason="{reason}",model_name="test"}}']
