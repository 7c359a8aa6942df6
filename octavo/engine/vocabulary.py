"""The model's vocabulary as grammars need it. Loaded by name when the first grammar arrives, so that an engine process
that sees none never imports a tokenizer.
"""

from octavo.config import EngineConfig
from octavo.engine.input_processor import eos_token_ids
from octavo.grammar.vocabulary import Tokens, make_tokens
from octavo.tokenizer.tokenizer import load_tokenizer


def load_tokens(config: EngineConfig) -> Tokens:
    """Read the tokenizer's files.

    Raises:
        ModelError: they cannot be read.
    """
    tokenizer = load_tokenizer(config.spec.tokenizer_path)
    return make_tokens(tokenizer, config.spec.vocab_size, eos_token_ids(config, tokenizer))
