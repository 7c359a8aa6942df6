"""What an answer must match: grammars, and the matchers that follow a sequence of tokens. Knows no tensors."""
