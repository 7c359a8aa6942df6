"""Which pages one request holds. Written by the KV cache manager only; knows no pools."""


class BlockTable:
    """Block ids of one request, per KV group, by block index (position // block_size). Append-only.

    ```text
    groups[g]:  [ -1, passed by the window | in use, full | in use, being filled | allocated, empty ]
    ```

    Attributes:
        num_passed: per group, leading entries that are -1.
        num_slots: tokens that every group has room for, passed ones included.
        num_cached_blocks: leading blocks that the prefix cache was told of.
    """

    __slots__ = ("groups", "num_cached_blocks", "num_passed", "num_slots")

    def __init__(self, groups: list[list[int]] | None = None) -> None:
        self.groups = groups or []
        self.num_passed = [ids.count(-1) for ids in self.groups]
        self.num_slots = 0
        self.num_cached_blocks = 0

    def num_held(self, group: int) -> int:
        """Pages of one group that are in the table."""
        return len(self.groups[group]) - self.num_passed[group]

    def copy_groups(self) -> list[list[int]]:
        """A copy to send to the worker."""
        return [ids.copy() for ids in self.groups]
