"""How a worker runs a model's forward pass: as a plan that is replayed in one call, or op by op, to the same bits."""

from collections.abc import Callable, Sequence

from torch import Tensor

from octavo.attention.batch import ForwardBatch
from octavo.logging import get_logger
from octavo.models.base import CausalLM
from octavo.models.trace import named_inputs, trace
from octavo.ops.dispatch import OPS
from octavo.ops.plan import REPLAYS, Replay, Untraceable

logger = get_logger(__name__)

Forward = Callable[[ForwardBatch], Tensor]
"""[T, hidden] of a batch, valid until the next call."""


def planned_forward(model: CausalLM, pools: Sequence[Tensor], max_tokens: int) -> Forward:
    """A replay of `model.forward`, for steps of at most `max_tokens` tokens. Where there is none it is `model.forward`
    itself, and the log says why.
    """
    try:
        replay = make_replay(model, pools, max_tokens)
    except Untraceable as why:
        logger.info("the model runs op by op, not as a plan: %s", why)
        return model.forward

    def forward(batch: ForwardBatch) -> Tensor:
        if batch.inputs_embeds is not None:
            return model.forward(batch)
        return replay.run(named_inputs(batch), batch.input_ids.shape[0], batch.attention[0].seq_lens.shape[0])

    return forward


def make_replay(model: CausalLM, pools: Sequence[Tensor], max_tokens: int) -> Replay:
    """Trace a model for the provider of its ops.

    Raises:
        Untraceable: it cannot be, or the ops have different providers, or one that replays no plans.
    """
    plan = trace(model, pools)
    providers = {call.op: OPS[call.op].provider for call in plan.calls}
    provider = providers[plan.calls[0].op]
    for op, its_provider in providers.items():
        if its_provider not in REPLAYS or its_provider != provider:
            raise Untraceable(f"{op} is provided by {its_provider}")
    return REPLAYS.load(provider)(plan, max_tokens)
