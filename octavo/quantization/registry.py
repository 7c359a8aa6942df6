"""The weight formats by name, and which one a layer gets."""

from octavo.quantization.interface import WeightFormat
from octavo.registry import Registry

QUANT_METHODS: Registry[WeightFormat] = Registry(
    "weight format", {"unquantized": "octavo.quantization.unquantized:UnquantizedWeights"}
)


def format_of(layer_name: str) -> WeightFormat:
    """The format of the linear layer with this dotted name. Checkpoints arrive dequantized, so: unquantized."""
    return QUANT_METHODS.load("unquantized")
