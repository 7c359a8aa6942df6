"""Attribute access to the normalized config of a text model (`loader/hf_config.py`). Complete, so no defaults here."""

from typing import Any

from octavo.errors import ModelError


class TextConfig:
    """`c.hidden_size` is `hf_config["hidden_size"]`.

    Raises:
        ModelError: for a key that the config lacks; names it.
    """

    def __init__(self, values: dict[str, Any]) -> None:
        self._values = values

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):  # Python asks for hooks (copying, pickling), not for settings
            raise AttributeError(key)
        if key not in self._values:
            raise ModelError(f"config.json of this {self._values.get('model_type', 'model')} lacks {key!r}")
        return self._values[key]

    def rope_parameters_of(self, layer_type: str) -> dict[str, Any]:
        """Rope parameters of one kind of layer; flat ones hold for every kind."""
        parameters: dict[str, Any] = self.rope_parameters
        return parameters if "rope_type" in parameters else parameters[layer_type]

    def window_of(self, layer: int) -> int | None:
        """Tokens that a query of this layer sees, itself included; None sees all."""
        return self.sliding_window if self.layer_types[layer] == "sliding_attention" else None
