"""Reading `--logprobs-mode`."""

from octavo.worker.logprobs import LogprobsMode


def test_modes_are_read_from_their_names() -> None:
    assert LogprobsMode.parse("raw_logprobs") == (False, True)
    assert LogprobsMode.parse("raw_logits") == (False, False)
    assert LogprobsMode.parse("processed_logprobs") == (True, True)
    assert LogprobsMode.parse("processed_logits") == (True, False)
