"""Peers: the protocol with a fake runner, the order of runs, ratios and plots."""

import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFReader, GGUFWriter
from gguf.quants import dequantize, quantize

from octavo.bench import peers
from octavo.bench.peers.bf16_gguf import write_bf16_gguf
from octavo.bench.peers.compare import OURS, Comparison, compare
from octavo.bench.peers.plots import write_plots
from octavo.bench.peers.process import Peer, PeerError, Run, run_peer
from octavo.bench.peers.runner import RequestTimes
from octavo.bench.timing import summarize
from octavo.cli.bench_peers import FOLDER, SCRIPTS, parse_peer, parse_settings
from octavo.errors import ConfigError

FAKE = Path(__file__).with_name("fake_runner.py")
REQUESTS = [{"prompt": [1, 2, 3], "out": 2}, {"prompt": [4], "out": 3, "at": 1.0}]
JOB = {"dtype": "float32", "requests": REQUESTS, "users": [None, 1], "requests_per_user": 1}


def fake(tmp_path: Path, name: str = "fake") -> Peer:
    return Peer(name, sys.executable, FAKE, "model", {"PYTHONPATH": str(FOLDER)})


def test_a_runner_says_what_happened_and_the_parent_makes_the_figures(tmp_path: Path):
    run = run_peer(fake(tmp_path), JOB, 60.0)
    assert run.version == "1.2" and run.start_s > 0 and run.peak_bytes > 1 << 20
    assert [(p["users"], p["requests"], p["output_tokens"]) for p in run.passes] == [(None, 2, 5), (1, 1, 2)]
    assert run.passes[0]["output_tokens_per_s"] == 2.5 and run.passes[0]["ttft_s"]["p99"] == 1.0


def test_a_runner_that_dies_is_an_error_with_its_last_words(tmp_path: Path):
    with pytest.raises(PeerError, match=r"(?s)fake ended early \(1\).*no such dtype"):
        run_peer(fake(tmp_path), JOB | {"dtype": "broken"}, 60.0)


def test_a_runner_that_hangs_is_ended(tmp_path: Path):
    with pytest.raises(PeerError, match=r"fake ended early \(-9\)"):
        run_peer(fake(tmp_path), JOB | {"dtype": "slow"}, 0.5)


def test_an_interpreter_that_is_not_there_is_an_error():
    with pytest.raises(PeerError, match="cannot be started"):
        run_peer(Peer("vllm", "/nowhere/python", FAKE, "model"), JOB, 1.0)


def made_run(seconds: float, users: tuple[int | None, ...] = (None,)) -> Run:
    figures = summarize([RequestTimes(0.0, 4, [seconds, 2 * seconds])], 2 * seconds)
    return Run("1", seconds, int(seconds * 2**30), [{"users": n, **figures} for n in users])


def test_engines_run_in_turn_and_one_that_fails_is_not_asked_again():
    order = []

    def run(peer: Peer, job: dict, timeout_s: float) -> Run:
        order.append(peer.name)
        if peer.name == "c":
            raise PeerError("gone")
        return made_run(1.0)

    three = [Peer(name, "python", FAKE, "model") for name in (OURS, "b", "c")]
    found = compare(three, JOB, 2, 1.0, run=run)
    assert order == [OURS, "b", "c", OURS, "b"]
    assert found.failed == {"c": "gone"} and len(found.runs["b"]) == 2


def test_a_ratio_is_the_median_of_the_pairs_and_above_one_when_we_are_better():
    # Pair by pair they take 2, 3 and 8 times as long; the ratio of the medians would be 12 / 2.
    ours, theirs = (1.0, 4.0, 2.0), (2.0, 12.0, 16.0)
    found = Comparison({OURS: [made_run(s) for s in ours], "b": [made_run(s) for s in theirs]})
    by_metric = {line.metric: line for line in found.lines()}
    for metric in ("output tokens/s", "TTFT p50 s", "ITL p99 s", "start to ready s", "peak memory GiB"):
        assert by_metric[metric].ratio == pytest.approx(3.0, rel=0.05), metric
    assert by_metric["TTFT p50 s"].ours == 2.0 and by_metric["TTFT p50 s"].theirs == 12.0


def test_plots_are_written(tmp_path: Path):
    found = Comparison({OURS: [made_run(1.0, (1, 4))], "b": [made_run(2.0, (1, 4))], "c": []})
    written = write_plots(found, tmp_path / "plots")
    assert [path.name for path in written] == ["throughput.png", "latency.png", "resources.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
    assert all(path.stat().st_size < 100_000 for path in written)


def test_every_peer_has_its_script():
    folder = Path(peers.__path__[0])
    assert {path.name for path in folder.glob("*_runner.py")} == {*SCRIPTS.values(), "octavo_runner.py"}


def test_peers_and_their_environments_are_parsed():
    assert parse_peer("vllm=/env/bin/python") == ("vllm", "/env/bin/python")
    assert parse_peer("transformers") == ("transformers", sys.executable)
    env = parse_settings("--peer-env", ["vllm:A=b=c", "vllm:D="], {"vllm": "python"})
    assert env == {"vllm": {"A": "b=c", "D": ""}}


@pytest.mark.parametrize("text", ["vllm", "vllm:A", "other:A=b"])
def test_an_environment_for_nobody_is_refused(text: str):
    with pytest.raises(ConfigError, match=r"--peer-env .* must be NAME:KEY=VALUE"):
        parse_settings("--peer-env", [text], {"vllm": "python"})


def test_an_unknown_peer_is_refused():
    with pytest.raises(ConfigError, match="known: transformers"):
        parse_peer("other=python")


def test_a_gguf_is_dequantized_with_its_metadata(tmp_path: Path):
    matrix = np.random.default_rng(0).standard_normal((4, 64), dtype=np.float32)
    vector = np.arange(64, dtype=np.float32)
    writer = GGUFWriter(tmp_path / "a.gguf", "llama")
    writer.add_block_count(3)
    writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
    packed = quantize(matrix, GGMLQuantizationType.Q4_1)
    writer.add_tensor("m", packed, raw_dtype=GGMLQuantizationType.Q4_1)
    writer.add_tensor("v", vector)
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()

    write_bf16_gguf(tmp_path / "a.gguf", tmp_path / "b.gguf")
    found = GGUFReader(tmp_path / "b.gguf")
    assert found.fields["llama.block_count"].contents() == 3
    assert found.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]
    m, v = found.tensors
    assert m.tensor_type is GGMLQuantizationType.BF16 and v.tensor_type is GGMLQuantizationType.F32
    wanted = dequantize(packed, GGMLQuantizationType.Q4_1)
    assert np.allclose(dequantize(m.data, m.tensor_type), wanted, rtol=2**-8) and np.array_equal(v.data, vector)
