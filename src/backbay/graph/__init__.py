"""What a backend is handed: read it, check it, match it, rewrite it."""
