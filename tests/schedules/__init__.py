"""Random schedules on the real engine, judged by each request alone; see `tests/test_schedules.py`."""
