from octavo.server.restarts import DELAYS_S, WINDOW_S, Restarts


def test_starts_come_later_and_later_and_then_no_more_until_time_has_passed():
    restarts = Restarts()
    assert [restarts.next_delay_s(float(i)) for i in range(len(DELAYS_S))] == list(DELAYS_S)
    assert restarts.next_delay_s(10.0) is None
    assert restarts.next_delay_s(WINDOW_S + 0.5) == DELAYS_S[-1]
