"""The table of fair-share policies."""

POLICIES: dict[str, object] = {"fair_tree": None, "classic": None}
