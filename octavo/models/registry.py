"""The model families, by the architecture name that config.json gives. One line adds one."""

from octavo.models.base import CausalLM
from octavo.registry import Registry

MODELS: Registry[type[CausalLM]] = Registry(
    "model architecture",
    {
        "Gemma2ForCausalLM": "octavo.models.gemma2:Gemma2",
        "Gemma3ForCausalLM": "octavo.models.gemma3:Gemma3",
        "Gemma3ForConditionalGeneration": "octavo.models.gemma3:Gemma3",
        "GraniteForCausalLM": "octavo.models.granite:Granite",
        "LlamaForCausalLM": "octavo.models.llama:Llama",
        "MistralForCausalLM": "octavo.models.mistral:Mistral",
        "Qwen2ForCausalLM": "octavo.models.qwen2:Qwen2",
        "Qwen3ForCausalLM": "octavo.models.qwen3:Qwen3",
        "SmolLM3ForCausalLM": "octavo.models.smollm3:SmolLM3",
    },
)
