"""Pages in a real Chromium; a leg of its own (make test ONLY=browser)."""
