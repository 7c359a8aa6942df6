"""The door: a grammar is refused before anything runs, with the place of its fault. Knows no HTTP."""

import json
from collections import OrderedDict

import msgspec
from llguidance import LLMatcher, LLTokenizer

from octavo.errors import ClientError
from octavo.grammar.build import build_grammar
from octavo.grammar.compiler import LIMITS, compile_grammar, describe
from octavo.grammar.json_schema import fault_of, placed, schemas_of
from octavo.grammar.thinking import GrammarList
from octavo.grammar.vocabulary import LoadTokens
from octavo.sampling_params import StructuredOutputsParams

MAX_CHECKED = 256
"""Grammars that need not be checked again."""


class GrammarChecker:
    """Makes grammars of what requests ask for. May be used by several threads.

    Args:
        load_tokens: called when a grammar names special tokens: only then the model's vocabulary matters.
    """

    def __init__(self, load_tokens: LoadTokens) -> None:
        self._load_tokens = load_tokens
        self._bytes = LLTokenizer("byte")
        self._known: OrderedDict[bytes, str] = OrderedDict()

    def check(self, params: StructuredOutputsParams) -> str:
        """The grammar of an answer, as `EngineRequest.grammar` has it.

        Raises:
            ClientError: it is wrong, nothing can match it, or it cannot be enforced; `param` names the field.
        """
        try:
            key = msgspec.msgpack.encode(params)
        except (TypeError, OverflowError, RecursionError, UnicodeEncodeError) as err:
            raise ClientError(f"structured_outputs cannot be JSON: {err}", param="structured_outputs") from None
        grammar = self._known.get(key)
        if grammar is None:
            grammar = build_grammar(params)
            self._check(grammar, f"structured_outputs.{params.kind}")
            self._known[key] = grammar
            if len(self._known) > MAX_CHECKED:
                self._known.popitem(last=False)
        return grammar

    def _check(self, grammar: str, param: str) -> None:
        grammars = msgspec.json.decode(grammar, type=GrammarList).grammars
        if not grammars:
            return
        is_error, messages = LLMatcher.validate_grammar_with_warnings(grammar, limits=LIMITS)
        if is_error:
            raise ClientError(f"{param.rpartition('.')[2]}: {_placed(messages[0], grammars)}", param=param)
        try:
            if messages:  # it names special tokens, which only the model's own vocabulary has
                compile_grammar(grammar, self._load_tokens())
            else:
                matcher = LLMatcher(self._bytes, grammar, limits=LIMITS, log_level=0)
                matcher.compute_bitmask()
                if matcher.is_error():
                    raise ClientError(describe(matcher.get_error()))
        except ClientError as err:
            raise ClientError(f"{param.rpartition('.')[2]}: {err.message}", param=param) from None


def _placed(message: str, grammars: list[dict[str, object]]) -> str:
    """With the place in a JSON schema, also one inside a grammar; the place in a grammar llguidance tells."""
    schema, lark = grammars[0].get("json_schema"), grammars[0].get("lark_grammar")
    if isinstance(schema, dict):
        return placed(message, schema)
    if isinstance(lark, str):
        for inner in schemas_of(lark):
            if (fault := fault_of(inner)) is not None:
                return f"{fault}, which begins with {json.dumps(inner, ensure_ascii=False)[:80]}"
    return " ".join(message.split())[:400]
