"""The embedded simulated cluster: a backend with a world of its own, not a mock."""

from apps.backends.adapters.simulator.backend import SimulatorBackend, open_backend, preflight
from apps.backends.adapters.simulator.world import World
from apps.backends.adapters.simulator.worlds import forget_world, world_of

__all__ = [
    "SimulatorBackend",
    "World",
    "forget_world",
    "open_backend",
    "preflight",
    "world_of",
]
