"""What the figures of docs/PERFORMANCE.md are made by: ``make bench``."""
