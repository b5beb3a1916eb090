"""Settings of the generated tests: the same examples in every run, and no limit on a busy machine."""

from hypothesis import settings

settings.register_profile("timer-service", deadline=None, derandomize=True, database=None)
settings.load_profile("timer-service")
