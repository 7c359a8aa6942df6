"""Who is next among tenants: each gets the same part of the engine, in tokens, however many requests it sends.

A virtual clock shows how much every tenant that keeps waiting has had. A request starts, in that time, when its
tenant's earlier ones have had their tokens, and not before now; the queue is sorted by that start. So a tenant that
comes anew is served next to one with a thousand requests in the queue, requests of one tenant keep their order, with
one tenant there is no other order than that of arrival, and a start is a fixed number: nobody is overtaken for ever.

Knows no queue, pages or steps.
"""

from dataclasses import dataclass

GUESSED_ANSWER_TOKENS = 256
"""What an answer is taken to cost at most until it has ended and its cost is known."""


@dataclass
class _Account:
    last_start: int
    next_start: int


class FairShare:
    """Virtual time, and where each tenant that is ahead of it stands."""

    def __init__(self) -> None:
        self._now = 0
        self._accounts: dict[str, _Account] = {}

    def start(self, tenant: str, num_tokens: int) -> int:
        """When a request that just arrived starts; it is charged `num_tokens`."""
        account = self._accounts.get(tenant)
        if account is None:
            self._forget()
            account = self._accounts[tenant] = _Account(self._now, self._now)
        account.last_start = max(self._now, account.last_start, account.next_start)
        account.next_start = account.last_start + num_tokens
        return account.last_start

    def begin(self, start: int) -> None:
        """A request is let in: this is the present now."""
        self._now = max(self._now, start)

    def settle(self, tenant: str, num_tokens: int) -> None:
        """A request has cost so many more tokens (or fewer, if negative) than it was charged."""
        account = self._accounts.get(tenant)
        if account is not None:
            account.next_start = max(account.next_start + num_tokens, account.last_start)

    def _forget(self) -> None:
        """Tenants that the present has caught up with are like new ones."""
        self._accounts = {name: account for name, account in self._accounts.items() if account.next_start > self._now}
