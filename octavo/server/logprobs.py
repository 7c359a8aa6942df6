"""Logprobs in OpenAI's two forms. Deals in token ids, exact bytes and numbers; knows no request."""

import codecs
from collections.abc import Sequence

from octavo.outputs import TokenLogprobs
from octavo.server.responses import CompletionLogprobs, PromptLogprob, PromptLogprobs, TokenLogprob, TopLogprob
from octavo.tokenizer.tokenizer import Tokenizer


def token_name(tokenizer: Tokenizer, token_id: int, as_id: bool) -> str:
    """A token as clients see it alone: its text, or `token_id:<id>`."""
    return f"token_id:{token_id}" if as_id else tokenizer.token_text(token_id)


def most_likely(entries: TokenLogprobs, count: int) -> list[int]:
    """The `count` most likely ids, most likely first, lowest id on ties; a negative count is all."""
    ordered = sorted(entries, key=lambda token_id: (-entries[token_id].logprob, token_id))
    return ordered if count < 0 else ordered[:count]


def chat_logprobs(
    tokenizer: Tokenizer,
    token_ids: Sequence[int],
    logprobs: Sequence[TokenLogprobs],
    count: int,
    *,
    skip_special: bool,
    as_ids: bool,
) -> list[TokenLogprob]:
    """Entries of the tokens that are part of the text; joining their `bytes` gives its UTF-8.

    Args:
        count: entries of `top_logprobs`.
        skip_special: special tokens are not part of the text.
    """
    return [
        TokenLogprob(
            token_name(tokenizer, token_id, as_ids),
            entries[token_id].logprob,
            list(tokenizer.token_bytes(token_id)),
            [
                TopLogprob(token_name(tokenizer, top, as_ids), entries[top].logprob, list(tokenizer.token_bytes(top)))
                for top in most_likely(entries, count)
            ],
        )
        for token_id, entries in zip(token_ids, logprobs, strict=True)
        if not (skip_special and token_id in tokenizer.special_ids)
    ]


def prompt_logprobs(tokenizer: Tokenizer, positions: Sequence[TokenLogprobs | None]) -> PromptLogprobs:
    """The extra field `prompt_logprobs`."""
    return [
        None
        if entries is None
        else {
            token_id: PromptLogprob(found.logprob, found.rank, tokenizer.token_text(token_id))
            for token_id, found in entries.items()
        }
        for entries in positions
    ]


class CompletionLogprobsWriter:
    """Writes the completions form of one sample, piece by piece.

    A character that several tokens make up belongs to the last of them, the others have the text "", and so has a
    special token that the text leaves out: `"".join(tokens)` is the text, and `text_offset` points into it.
    In `top_logprobs` the key of the actual token is its entry in `tokens`.
    """

    def __init__(self, tokenizer: Tokenizer, count: int, *, skip_special: bool, as_ids: bool) -> None:
        self._tokenizer = tokenizer
        self._count = count
        self._skip_special = skip_special
        self._as_ids = as_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._offset = 0

    def write_prompt(
        self,
        out: CompletionLogprobs,
        token_ids: Sequence[int],
        pieces: Sequence[str],
        positions: Sequence[TokenLogprobs | None],
    ) -> None:
        """Append the echoed prompt to `out`; comes before anything sampled."""
        for token_id, piece, entries in zip(token_ids, pieces, positions, strict=True):
            self._write(out, token_id, piece, entries)

    def write_sampled(
        self,
        out: CompletionLogprobs,
        token_ids: Sequence[int],
        logprobs: Sequence[TokenLogprobs],
        *,
        last_is_hidden: bool,
        finished: bool,
    ) -> None:
        """Append new tokens of the answer to `out`.

        Args:
            last_is_hidden: the last of them ended the text and is no part of it.
            finished: nothing follows, so the bytes of a character cut short become U+FFFD.
        """
        for i, (token_id, entries) in enumerate(zip(token_ids, logprobs, strict=True)):
            last = i == len(token_ids) - 1
            hidden = (last and last_is_hidden) or (self._skip_special and token_id in self._tokenizer.special_ids)
            data = b"" if hidden else self._tokenizer.token_bytes(token_id)
            self._write(out, token_id, self._decoder.decode(data, final=last and finished), entries)

    def _write(self, out: CompletionLogprobs, token_id: int, piece: str, entries: TokenLogprobs | None) -> None:
        name = f"token_id:{token_id}" if self._as_ids else piece
        out.tokens.append(name)
        out.text_offset.append(self._offset)
        self._offset += len(piece)
        if entries is None:
            out.token_logprobs.append(None)
            out.top_logprobs.append(None)
            return
        out.token_logprobs.append(entries[token_id].logprob)
        top = {name: entries[token_id].logprob}
        for other in most_likely(entries, self._count):
            if other != token_id:
                top.setdefault(token_name(self._tokenizer, other, self._as_ids), entries[other].logprob)
        out.top_logprobs.append(top)


def prompt_pieces(tokenizer: Tokenizer, token_ids: Sequence[int], text: str | None) -> list[str]:
    """Text of each prompt token, so that joining them gives `text` wherever the tokenizer kept every byte of it.

    A special token that `text` does not spell (an added beginning-of-sequence token) has the text "".

    Args:
        text: the prompt as it was sent; None if it was sent as ids, and then every token is spelled.
    """
    rest = text.encode() if text is not None else None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces = []
    for token_id in token_ids:
        data = tokenizer.token_bytes(token_id)
        if rest is not None:
            if not rest.startswith(data) and token_id in tokenizer.special_ids:
                data = b""
            elif data[:1] == b" " and not rest.startswith(data):
                data = data[1:]  # SentencePiece puts a space before the first word
            rest = rest.removeprefix(data)
        pieces.append(decoder.decode(data))
    return pieces
