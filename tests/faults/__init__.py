"""What must hold when processes die: real workers, a real Redis, SIGKILL."""
