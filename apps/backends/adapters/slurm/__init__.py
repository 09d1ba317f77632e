"""Slurm by its command line: on a login node, or over SSH with a key."""

from apps.backends.adapters.slurm.backend import SlurmBackend, open_backend
from apps.backends.adapters.slurm.options import check_options

__all__ = ["SlurmBackend", "check_options", "open_backend"]
