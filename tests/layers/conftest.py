"""These tests look into plain tensors, so they run on the torch references unless they choose otherwise."""

import pytest


@pytest.fixture(autouse=True)
def plain_tensors(torch_references: None) -> None:
    """Every test here."""
