"""Property tests are not timed: a busy machine must not fail them."""

from hypothesis import HealthCheck, settings

settings.register_profile("parsers", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("parsers")
