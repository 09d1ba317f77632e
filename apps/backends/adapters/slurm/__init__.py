"""Slurm by its commands, here or over SSH with a key, or by slurmrestd with a token."""

from apps.backends.adapters.slurm.backend import SlurmBackend, open_backend
from apps.backends.adapters.slurm.fields import OPTION_FIELDS, WORKLOAD_FIELDS
from apps.backends.adapters.slurm.options import check_options
from apps.backends.adapters.slurm.preflight import preflight

__all__ = [
    "OPTION_FIELDS",
    "WORKLOAD_FIELDS",
    "SlurmBackend",
    "check_options",
    "open_backend",
    "preflight",
]
