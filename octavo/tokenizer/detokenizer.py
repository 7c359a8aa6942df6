"""Text of an answer while its tokens arrive, and the search for stop strings. Knows no request and no logits.

The text of an answer is, by definition, what the deltas join to; how the tokens were grouped into steps never shows.
* A character appears with the token that completes it. An answer cut inside a character ends with one U+FFFD.
* Text goes on where the prompt ends, so a leading space stays, unless nothing of the prompt is visible text: then
  the space that SentencePiece puts before every text is left out. (Transformers: decode(prompt + answer) minus
  decode(prompt).)
* Of several stop strings the one that is complete first ends the text; of two complete at the same character, the
  longer. A stop string counts if its last character comes after the first `min_tokens` tokens.
"""

from collections.abc import Collection, Iterable, Sequence

from octavo.tokenizer.tokenizer import TextDecoder, Tokenizer


class Detokenizer:
    """One answer. Push tokens, then take the text that may be sent.

    Args:
        prompt_token_ids: of the prompt; they decide about the first space only.
        skip_special_tokens: leave special tokens out of the text.
        kept: special tokens that stay in it all the same.
        stop: strings that end the text, none of them empty.
        include_stop_str_in_output: the stop string that ended the text stays in it.
        min_tokens: this many tokens first, before a stop string counts.

    Attributes:
        num_tokens: tokens pushed and used; those after a stop string are not.
        stop_reason: the stop string that ended the text.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        prompt_token_ids: Iterable[int],
        *,
        skip_special_tokens: bool = True,
        kept: Collection[int] = (),
        stop: Sequence[str] = (),
        include_stop_str_in_output: bool = False,
        min_tokens: int = 0,
    ) -> None:
        self.num_tokens = 0
        self.stop_reason: str | None = None
        self._token_bytes = tokenizer.token_bytes
        skipped = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._skipped = skipped.difference(kept) if kept else skipped
        strips = tokenizer.strips_first_space and all(token_id in self._skipped for token_id in prompt_token_ids)
        self._decoder = TextDecoder(strips_first_space=strips)
        self._stops = [_StopString(text) for text in stop]
        self._keeps_stop = include_stop_str_in_output
        self._min_tokens = min_tokens
        self._undecoded: list[bytes] = []
        self._unsent: list[str] = []

    def push(self, token_ids: Iterable[int]) -> str | None:
        """Add tokens of the answer; returns the stop string that ends the text, and ignores what follows it.

        A stop *token* that is not to be part of the text must not be pushed.
        """
        for token_id in token_ids:
            if self.stop_reason is not None:
                break
            self.num_tokens += 1
            if token_id not in self._skipped:
                self._undecoded.append(self._token_bytes(token_id))
                if self._stops:
                    self._search(self._decode())
        return self.stop_reason

    def delta(self, finished: bool) -> str:
        """The text to send now: all that is new but the beginning of a possible stop string, or all if `finished`."""
        self._decode()
        if finished and self.stop_reason is None:
            self._unsent.append(self._decoder.finish())
        text = "".join(self._unsent)
        self._unsent.clear()
        if finished or self._keeps_stop or not self._stops:
            return text
        num_ready = len(text) - max(stop.matched for stop in self._stops)
        self._unsent.append(text[num_ready:])
        return text[:num_ready]

    def _decode(self) -> str:
        """Let the tokens pushed since the last time become text, and return that."""
        text = self._decoder.add(b"".join(self._undecoded))
        self._undecoded.clear()
        self._unsent.append(text)
        return text

    def _search(self, text: str) -> None:
        """End the text if its last part, `text`, completes a stop string."""
        counts = self.num_tokens > self._min_tokens
        found = [(end, -len(stop.text), stop) for stop in self._stops if (end := stop.feed(text, counts)) is not None]
        if not found:
            return
        end, _, stop = min(found, key=lambda match: match[:2])
        surplus = len(text) - end + (0 if self._keeps_stop else len(stop.text))
        whole = "".join(self._unsent)
        self._unsent = [whole[: len(whole) - surplus]]
        self.stop_reason = stop.text
        self._stops = []


class _StopString:
    """Searches for one string in a text that arrives in pieces, looking at each character once (Knuth, Morris, Pratt).

    Attributes:
        matched: characters of the string that the text so far ends with.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.matched = 0
        self._borders = _borders(text)

    def feed(self, piece: str, counts: bool) -> int | None:
        """Where in `piece` the string is first complete (exclusive end); never, unless the match `counts`."""
        text, matched = self.text, self.matched
        if not matched and text[0] not in piece:
            return None
        for index, character in enumerate(piece):
            while matched and text[matched] != character:
                matched = self._borders[matched - 1]
            matched += text[matched] == character
            if matched == len(text):
                if counts:
                    return index + 1
                matched = self._borders[-1]
        self.matched = matched
        return None


def _borders(text: str) -> list[int]:
    """For each prefix of `text`, the length of its longest proper prefix that is also its suffix."""
    borders = [0]
    for character in text[1:]:
        border = borders[-1]
        while border and text[border] != character:
            border = borders[border - 1]
        borders.append(border + (text[border] == character))
    return borders
