"""How long calls take and how much memory: clocks, interleaved rounds, statistics."""
