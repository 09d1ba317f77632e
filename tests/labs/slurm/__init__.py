"""A whole Slurm cluster of the project's own, on one machine, for as long as a test needs it."""
