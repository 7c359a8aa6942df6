"""Models that say what a test wants, as Transformers folders: a Llama whose layers add nothing, so that the next token
depends on the last one alone, and the head spells the rest.

A script is a chain of token ids: the embedding of its k-th id is a unit vector of its own, and the head row of the id's
successor is 4 times that vector; the last id is followed by EOS. Every other token has unit vector 0, after which the
main script begins. So each id may occur once in all scripts of a model, and the last token of a prompt, unless it is
to start a script, must be in none.

The tiny vocabulary has 3 special tokens, the 256 bytes and then the pieces of the scripts; texts are encoded as bytes.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from torch import Tensor

from octavo.tokenizer.spelling import byte_alphabet

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
EOS = 2
FIRST_BYTE = 3
FIRST_PIECE = FIRST_BYTE + 256

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'"
    " }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

TOOLS_TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message.reasoning_content %}{{ '<think>' + message.reasoning_content + '</think>' }}{% endif %}"
    "{{ message['content'] }}{% for call in message.tool_calls or [] %}{{ '<tool_call>' }}"
    "{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}{{ '</tool_call>' }}{% endfor %}"
    "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""As `CHATML`, with thinking and Hermes' calls."""

HEAD_DIM = 16
SURE = 4.0
"""Head weight of a successor. With the norm's sqrt(hidden size) its logit is 16 or more above all others."""


def byte_id(character: str) -> int:
    """Id of an ASCII character in the tiny vocabulary."""
    return FIRST_BYTE + ord(character)


def pieces_of(text: str, size: int) -> list[str]:
    """A text in pieces of about `size` characters, all different, as a script needs them."""
    pieces: list[str] = []
    while text:
        length = size
        while text[:length] in pieces and length < len(text):
            length += 1
        pieces.append(text[:length])
        text = text[length:]
    return pieces


def write_script_model(
    folder: Path,
    pieces: Sequence[str | bytes],
    *,
    started_by: Mapping[str, Sequence[str | bytes]] | None = None,
    runners_up: Mapping[int, Sequence[str | bytes]] | None = None,
    context_length: int = 512,
    chat_template: str | None = CHATML,
) -> Path:
    """A script model with the tiny vocabulary.

    Args:
        pieces: of the main script, all different; one token each. A single byte is the token of that byte.
        started_by: further scripts, by the ASCII character that a prompt ends with to start it.
        runners_up: by step of the main script, pieces that are the next most likely, in order.
    """
    chains = {None: list(pieces), **{start: list(chain) for start, chain in (started_by or {}).items()}}
    spoken = [piece for chain in (*chains.values(), *(runners_up or {}).values()) for piece in chain]
    vocabulary = write_tiny_tokenizer(folder, spoken, chat_template)
    scripts = {
        None if start is None else byte_id(start): [vocabulary[_raw(piece)] for piece in chain]
        for start, chain in chains.items()
    }
    near = {step: [vocabulary[_raw(piece)] for piece in group] for step, group in (runners_up or {}).items()}
    tensors = script_tensors(max(FIRST_PIECE, 1 + max(vocabulary.values())), scripts, EOS, near)
    return write_llama(folder, tensors, context_length=context_length, eos=EOS)


def write_random_model(
    folder: Path, *, seed: int = 0, context_length: int = 512, spread: float = 1.0, chat_template: str | None = CHATML
) -> Path:
    """A random two-layer Llama with the tiny vocabulary, whose answers have variety.

    Args:
        spread: scale of the logits; larger is surer.
    """
    write_tiny_tokenizer(folder, [], chat_template)
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int, gain: float = 1.0) -> Tensor:
        return gain * torch.randn(shape, generator=generator) / shape[-1] ** 0.5

    hidden, inner, heads = 64, 96, 4
    tensors = {
        "model.embed_tokens.weight": random(FIRST_PIECE, hidden, gain=8.0),
        "lm_head.weight": random(FIRST_PIECE, hidden, gain=3.0 * spread),
    }
    for layer in range(2):
        width = heads * HEAD_DIM
        tensors |= layer_tensors(
            layer,
            q=random(width, hidden, gain=2.0), k=random(width, hidden, gain=2.0), v=random(width, hidden),
            o=random(hidden, width), gate=random(inner, hidden), up=random(inner, hidden), down=random(hidden, inner),
        )  # fmt: skip
    return write_llama(folder, tensors, context_length=context_length, eos=EOS, heads=heads)


def script_tensors(
    vocab_size: int, scripts: Mapping[int | None, Sequence[int]], eos: int, runners_up: Mapping[int, Sequence[int]]
) -> dict[str, Tensor]:
    """Weights of a script model, by Transformers' names.

    Args:
        scripts: the ids by the id that starts them; None is the main script.
        runners_up: by step of the main script.
    """
    size = 1 + sum(len(chain) + (start is not None) for start, chain in scripts.items())
    hidden = -(-size // HEAD_DIM) * HEAD_DIM
    embedding, head = torch.zeros(vocab_size, hidden), torch.zeros(vocab_size, hidden)
    embedding[:, 0] = 1.0
    unit = 0
    for start, chain in scripts.items():
        previous = 0
        for step, token_id in enumerate([*([] if start is None else [start]), *chain]):
            if start is None or step > 0:
                head[token_id, previous] = SURE
            if start is None:
                for rank, other in enumerate(runners_up.get(step, ()), start=1):
                    head[other, previous] = SURE - 0.1 * rank
            unit += 1
            embedding[token_id] = 0.0
            embedding[token_id, unit] = 1.0
            previous = unit
        head[eos, previous] = SURE
    zero = torch.zeros(HEAD_DIM, hidden)
    tensors = {"model.embed_tokens.weight": embedding, "lm_head.weight": head}
    return tensors | layer_tensors(0, q=zero, k=zero, v=zero, o=zero.T, gate=zero, up=zero, down=zero.T)


def layer_tensors(
    layer: int, *, q: Tensor, k: Tensor, v: Tensor, o: Tensor, gate: Tensor, up: Tensor, down: Tensor
) -> dict[str, Tensor]:
    """One layer by Transformers' names, with norms of 1."""
    prefix = f"model.layers.{layer}"
    hidden = q.shape[1]
    projections = {"self_attn.q": q, "self_attn.k": k, "self_attn.v": v, "self_attn.o": o, "mlp.gate": gate,
                   "mlp.up": up, "mlp.down": down}  # fmt: skip
    made = {f"{prefix}.{name}_proj.weight": tensor.clone().contiguous() for name, tensor in projections.items()}
    norms = {f"{prefix}.{name}.weight": torch.ones(hidden) for name in ("input_layernorm", "post_attention_layernorm")}
    return made | norms


def write_llama(folder: Path, tensors: dict[str, Tensor], *, context_length: int, eos: int, heads: int = 1) -> Path:
    """Write weights and config.json; sizes are read off the weights."""
    folder.mkdir(parents=True, exist_ok=True)
    vocab_size, hidden = tensors["lm_head.weight"].shape
    save_file(tensors | {"model.norm.weight": torch.ones(hidden)}, folder / "model.safetensors", {"format": "pt"})
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": tensors["model.layers.0.mlp.gate_proj.weight"].shape[0],
        "num_hidden_layers": sum(name.endswith("q_proj.weight") for name in tensors),
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": HEAD_DIM,
        "vocab_size": vocab_size,
        "max_position_embeddings": context_length,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "eos_token_id": eos,
        "dtype": "float32",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_tiny_tokenizer(folder: Path, pieces: Iterable[str | bytes], chat_template: str | None) -> dict[bytes, int]:
    """Write tokenizer.json: special tokens, bytes, longer pieces. Returns the ids of bytes and pieces."""
    alphabet = byte_alphabet()
    ids = {bytes([byte]): FIRST_BYTE + byte for byte in range(256)}
    for piece in pieces:
        ids.setdefault(_raw(piece), len(SPECIAL) + len(ids))
    spelled = {"".join(alphabet[byte] for byte in piece): token_id for piece, token_id in ids.items()}
    vocab = {text: token_id for token_id, text in enumerate(SPECIAL)} | spelled
    backend = Backend(models.BPE(vocab=vocab, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in SPECIAL])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    settings: dict[str, Any] = {"bos_token": SPECIAL[1], "eos_token": SPECIAL[EOS]}
    if chat_template is not None:
        settings["chat_template"] = chat_template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return ids


def _raw(piece: str | bytes) -> bytes:
    return piece.encode() if isinstance(piece, str) else piece
