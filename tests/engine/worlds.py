"""Engines made of integers, and a tokenizer of 96 characters, to judge the engine layer by what comes out.

`FakeExecutor` is the core's simulated worker behind the executor interface, with faults to order;
`tests.core.worlds.oracle` says what each request answers when it is alone.
"""

import json
import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from octavo.config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    KVGroupSpec,
    ModelConfig,
    ModelSpec,
    SchedulerConfig,
)
from octavo.engine.core import EngineCore
from octavo.errors import ModelError
from octavo.executor.registry import EXECUTORS
from octavo.messages import EngineOutput, ModelRunnerOutput, Progress, SchedulerOutput, TokenMasks
from octavo.registry import PLUGIN_GROUP
from octavo.tokenizer.spelling import byte_alphabet
from tests.core.worlds import FULL, PagedWorker

VOCAB_SIZE = 96
CHARACTERS = " \nabcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,!?'\"-:;()[]<>/é中"
CHAT_TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


def write_tokenizer(folder: Path) -> Path:
    """A byte-level tokenizer without merges: 0 <pad>, 1 <s>, 2 </s>, then one id per byte of `CHARACTERS`."""
    alphabet = byte_alphabet()
    spellings = [alphabet[byte] for byte in dict.fromkeys(CHARACTERS.encode())]
    vocab = {token: token_id for token_id, token in enumerate(["<pad>", "<s>", "</s>", *spellings])}
    fill = (character for character in alphabet.values() if character not in vocab)
    while len(vocab) < VOCAB_SIZE:
        vocab[next(fill)] = len(vocab)
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in ("<pad>", "<s>", "</s>")])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def make_engine_config(
    *,
    vocab_size: int = VOCAB_SIZE,
    context_length: int = 256,
    num_blocks: int = 64,
    block_size: int = 4,
    token_budget: int = 64,
    max_num_seqs: int = 8,
    generation_config: dict[str, object] | None = None,
    model: dict[str, object] | None = None,
    tokenizer_path: str = "",
    name: str = "paper",
    executor: str = "uni",
    **scheduler: object,
) -> EngineConfig:
    """A resolved configuration of a model that exists on paper only."""
    spec = ModelSpec(
        name="paper",
        path="",
        format="safetensors",
        architecture="LlamaForCausalLM",
        hf_config={"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
        context_length=context_length,
        vocab_size=vocab_size,
        eos_token_ids=(2,),
        generation_config=generation_config or {},
        tokenizer_path=tokenizer_path,
        checkpoint_dtype="float32",
    )
    return EngineConfig(
        model=ModelConfig(model="paper", **(model or {})),
        cache=CacheConfig(block_size=block_size, num_gpu_blocks_override=num_blocks),
        scheduler=SchedulerConfig(max_num_seqs=max_num_seqs, max_num_batched_tokens=token_budget, **scheduler),
        device=DeviceConfig(device="cpu", distributed_executor_backend=executor),
        spec=spec,
        dtype="float32",
        max_model_len=context_length,
        served_model_name=name,
    )


class FakeExecutor:
    """Simulated pages behind the executor interface.

    Attributes:
        faults: raised by the next steps, one each, after pages and rows were prepared; a probe takes the next one too.
        poison: first tokens of prompts that let every step fail in which they are.
        row_errors: message that the next step reports for each of its rows.
    """

    def __init__(
        self, config: EngineConfig, groups: Sequence[KVGroupSpec] = (FULL,), free_bytes: int = 1 << 20
    ) -> None:
        self.config = config
        self.groups = list(groups)
        self.free_bytes = free_bytes
        self.faults: deque[BaseException | None] = deque()
        self.row_errors: deque[str | None] = deque()
        self.poison: set[int] = set()
        self.num_steps = 0
        self.closed = False

    def load(self, progress: Progress) -> list[KVGroupSpec]:
        progress("loading weights", 1, 1)
        return self.groups

    def numerics(self) -> str:
        return "simulated"

    def free_bytes_for_kv(self) -> int:
        return self.free_bytes

    def allocate_kv(self, num_blocks: tuple[int, ...]) -> None:
        windows = tuple(group.window for group in self.groups)
        config = self.config
        self.worker = PagedWorker(
            windows, num_blocks, config.cache.block_size, config.scheduler.max_num_seqs, config.token_budget
        )

    def execute(self, plan: SchedulerOutput) -> None:
        self.num_steps += 1
        fault = self.faults.popleft() if self.faults else None
        if self.poison and not self.poison.isdisjoint(self._first_tokens(plan)):
            fault = RuntimeError("poison")
        if fault is not None:
            self.worker.last_step = plan.step
            self.worker._seat(plan)
            self.worker._prepare_pages(plan)
            raise fault

    def sample(self, plan: SchedulerOutput, masks: TokenMasks | None = None) -> "Future[ModelRunnerOutput]":
        future: Future[ModelRunnerOutput] = Future()
        output = self.worker.run(plan)
        message = self.row_errors.popleft() if self.row_errors else None
        if message is not None:
            output = ModelRunnerOutput(step=plan.step, errors=dict.fromkeys(plan.rows, message))
        future.set_result(output)
        return future

    def probe(self) -> None:
        fault = self.faults.popleft() if self.faults else None
        if fault is not None:
            raise fault

    def close(self) -> None:
        self.closed = True

    def _first_tokens(self, plan: SchedulerOutput) -> set[int]:
        known = {row_id: row.new for row_id, row in self.worker.rows.items()} | {new.row: new for new in plan.new_rows}
        return {known[row_id].token_ids[0] for row_id in plan.rows}


CRASH, HANG, FAULT, SLOW = 90, 91, 92, 93
"""First tokens of prompts that make `ScriptedExecutor` die, sleep for ever, raise, or take 10 ms per step."""


class ScriptedExecutor(FakeExecutor):
    """A fake executor for another process, which cannot be reached to order a fault: prompts say what happens.

    A model called "broken" cannot be loaded, one called "endless" is loaded for ever.
    """

    def load(self, progress: Progress) -> list[KVGroupSpec]:
        if self.config.served_model_name == "broken":
            raise ModelError("model.safetensors: tensor lm_head.weight is missing")
        progress("loading weights", 1, 2)
        if self.config.served_model_name == "endless":
            time.sleep(1000)
        return super().load(progress)

    def execute(self, plan: SchedulerOutput) -> None:
        first = self._first_tokens(plan)
        if CRASH in first:
            os.kill(os.getpid(), signal.SIGKILL)
        if HANG in first:
            time.sleep(1000)
        if FAULT in first:
            self.faults.append(RuntimeError("made to fail"))
        if SLOW in first:
            time.sleep(0.01)
        super().execute(plan)


def register_scripted_executor() -> None:
    """What the plug-in of `plugin_folder` runs in every process."""
    EXECUTORS.add("scripted", "tests.engine.worlds:ScriptedExecutor")


def write_plugin(folder: Path) -> Path:
    """An installed package, as far as Python can tell, whose entry point registers `ScriptedExecutor`."""
    info = folder / "octavo_scripted-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: octavo-scripted\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        f"[{PLUGIN_GROUP}]\nscripted = tests.engine.worlds:register_scripted_executor\n"
    )
    return folder


class CoreWorld:
    """An `EngineCore` on a fake executor, and everything it said by request."""

    def __init__(self, groups: Sequence[KVGroupSpec] = (FULL,), **options: object) -> None:
        self.config = make_engine_config(**options)
        self.executor = FakeExecutor(self.config, groups)
        self.core = EngineCore(self.config, self.executor)
        self.outputs: dict[str, list[EngineOutput]] = {}

    def take(self, outputs: list[EngineOutput]) -> None:
        """Keep news; none may follow a final one."""
        for output in outputs:
            so_far = self.outputs.setdefault(output.request_id, [])
            assert not (so_far and so_far[-1].finish_reason), f"{output.request_id} ended before"
            so_far.append(output)

    def run(self, max_steps: int = 2000) -> None:
        """Step until nothing is left."""
        for _ in range(max_steps):
            if not self.core.has_unfinished():
                return
            self.take(self.core.step().outputs)
        raise AssertionError(f"not done after {max_steps} steps")

    def tokens(self, request_id: str) -> list[int]:
        """What a request generated."""
        return [token_id for output in self.outputs[request_id] for token_id in output.new_token_ids]

    def reason(self, request_id: str) -> str | None:
        """Why it ended, None while it is open."""
        return self.outputs[request_id][-1].finish_reason if self.outputs.get(request_id) else None
