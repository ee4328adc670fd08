"""What the store in a cache folder holds beside decisions."""

import contextlib
import sqlite3


def kept_keys(folder, kind):
    """Return the keys of measurements of a type."""
    path = folder / "decisions.sqlite"
    if not path.exists():
        return []
    query = "SELECT key FROM measurements WHERE kind = ? ORDER BY key"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        rows = connection.execute(query, (f"{kind.__module__}.{kind.__qualname__}",))
        return [key for (key,) in rows]


def spoil(folder):
    """Make every measurement unreadable."""
    path = folder / "decisions.sqlite"
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute("UPDATE measurements SET value = '{'").rowcount
