"""The compiled kernels of csrc/cpu. Addresses are `Tensor.data_ptr()`, strides count elements; nothing is checked."""

def tiers() -> list[str]: ...
def tier() -> str: ...
def select_tier(name: str) -> None: ...
def amx_refusal() -> str: ...
def num_threads() -> int: ...
def set_num_threads(threads: int) -> None: ...
def dequantize(type_name: str, out: int, blocks: int, count: int, /) -> bool: ...
def norm(
    out: int,
    out_inner: int,
    out_outer_stride: int,
    out_inner_stride: int,
    x: int,
    x_inner: int,
    x_outer_stride: int,
    x_inner_stride: int,
    residual: int,
    residual_stride: int,
    weight: int,
    eps: float,
    rows: int,
    hidden: int,
    dtype: int,
    weight_dtype: int,
    /,
) -> None: ...
def embedding(table: int, out: int, out_stride: int, ids: int, tokens: int, /) -> None: ...
def linear(
    matrix: int,
    out: int,
    out_stride: int,
    float_out: bool,
    x: int,
    x_stride: int,
    bias: int,
    tokens: int,
    shards: int,
    /,
) -> None: ...
def scale(x: int, x_stride: int, factor: float, tokens: int, size: int, dtype: int, /) -> None: ...
def rope(
    q: int,
    q_stride: int,
    q_heads: int,
    k: int,
    k_stride: int,
    k_heads: int,
    positions: int,
    cos_sin: int,
    tokens: int,
    head_dim: int,
    rotary: int,
    interleaved: bool,
    dtype: int,
    /,
) -> None: ...
def write_kv(
    k: int,
    k_stride: int,
    v: int,
    v_stride: int,
    pages: int,
    slot_mapping: int,
    tokens: int,
    kv_heads: int,
    block_size: int,
    head_dim: int,
    page_stride: int,
    head_stride: int,
    value_offset: int,
    value_dim: int,
    dtype: int,
    kv_dtype: int,
    /,
) -> None: ...
def silu_mul(out: int, out_stride: int, x: int, x_stride: int, tokens: int, size: int, dtype: int, /) -> None: ...
def gelu_tanh_mul(out: int, out_stride: int, x: int, x_stride: int, tokens: int, size: int, dtype: int, /) -> None: ...
def gelu_mul(out: int, out_stride: int, x: int, x_stride: int, tokens: int, size: int, dtype: int, /) -> None: ...
def paged_attention(
    out: int,
    out_stride: int,
    value_dim: int,
    q: int,
    q_stride: int,
    pages: int,
    query_start: int,
    seq_lens: int,
    block_table: int,
    table_stride: int,
    num_rows: int,
    num_tokens: int,
    heads: int,
    kv_heads: int,
    block_size: int,
    head_dim: int,
    page_stride: int,
    head_stride: int,
    value_offset: int,
    scale: float,
    window: int,
    softcap: float,
    sinks: int,
    alibi_slopes: int,
    dtype: int,
    kv_dtype: int,
    /,
) -> None: ...
def read(x: int, count: int, /) -> float:
    """The sum of `count` floats, by all threads: how fast memory can be read."""

def multiply_add(steps: int, /) -> float:
    """Multiply-adds in registers, by all threads. Returns how many floating-point operations were done."""

def sample(
    out: int,
    processed: int,
    logits: int,
    stride: int,
    rows: int,
    vocab: int,
    temperature: int,
    top_k: int,
    top_p: int,
    min_p: int,
    seed: int,
    sample_index: int,
    position: int,
    /,
) -> None: ...
def rank_tokens(
    out_ids: int,
    out_values: int,
    out_ranks: int,
    logits: int,
    stride: int,
    rows: int,
    vocab: int,
    token_ids: int,
    num_top: int,
    normalized: bool,
    /,
) -> None: ...
def mask_logits(logits: int, stride: int, rows: int, vocab: int, index: int, bits: int, /) -> None: ...

class Matrix:
    """A weight matrix [rows, columns] in memory of its own, in panels; zero until written."""

    address: int
    def __init__(self, rows: int, columns: int, dtype: int, /) -> None: ...
    def write(self, x: int, x_stride: int, begin: int, count: int, /) -> None: ...
    def read(self, out: int, out_stride: int, begin: int, count: int, /) -> None: ...

class Plan:
    """Ops to run again and again; see csrc/cpu/plan.h. Each op above is also a method, which adds it."""

    def __init__(self, traced_tokens: int, /) -> None: ...
    def input(self) -> int: ...
    def weight(self) -> int: ...
    def buffer(self, offset: int, /) -> int: ...
    def bind(self, weight: int, address: int, /) -> None: ...
    def run(self, arena: int, inputs: list[int], tokens: int, rows: int, /) -> None: ...
