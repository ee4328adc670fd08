"""Where decisions and measurements are kept: one SQLite file, for many processes at once.

What is in it decides what is compiled, so it is believed as `backbay.cache` believes its files.
A file that is damaged is put aside and begun anew: it costs decisions, never a run. One that a
newer Backbay wrote is left alone, and nothing is kept.
"""

import contextlib
import datetime as dt
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from backbay.cache import cache_folder, check_owner, own_folder
from backbay.causes import of_file, one_line
from backbay.decisions.decision import Decision
from backbay.errors import InputError

FILE = "decisions.sqlite"
VERSION = 3
"""Of the tables; in the file as ``user_version``."""
LARGEST = 64 << 20
"""Bytes of the file."""
MOST_DECISIONS = 10_000
MOST_MEASUREMENTS = 100_000
_WAIT_S = 10.0
"""For another process that writes; each write takes milliseconds."""

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}
_NOT_WRITABLE = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}
"""What SQLite says of a file, or a folder, that it may not write: it writes even to read."""

_TABLES = """
CREATE TABLE IF NOT EXISTS decisions (
  name TEXT PRIMARY KEY, created TEXT NOT NULL, decision BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS graphs (
  digest TEXT NOT NULL, place TEXT NOT NULL,
  name TEXT NOT NULL REFERENCES decisions (name) ON DELETE CASCADE,
  PRIMARY KEY (digest, place, name)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS measurements (
  kind TEXT NOT NULL, key TEXT NOT NULL, created TEXT NOT NULL, value BLOB NOT NULL,
  PRIMARY KEY (kind, key)
);
"""
_Kept = TypeVar("_Kept")
_Answer = TypeVar("_Answer")


class StoreError(InputError):
    """What was to be kept could not be; the message says why and what to do."""


class Store:
    """The decisions of a user, or those of a file.

    Reading never fails: what can't be read is as good as absent, and ``on_problem`` is told why.
    """

    def __init__(
        self, path: Path | None = None, *, on_problem: Callable[[str], None] = lambda _: None
    ) -> None:
        """Name a store; nothing is opened yet.

        Args:
            path: the file. Default: ``decisions.sqlite`` in the cache folder.
            on_problem: is given one line for what could not be read, or was put aside.
        """
        self._given = path
        self._on_problem = on_problem

    @property
    def path(self) -> Path:
        """The file."""
        return self._given or cache_folder() / FILE

    def keep(self, decision: Decision) -> None:
        """Keep a decision, in place of an earlier one on the same model and place.

        Raises:
            StoreError: it can't be written.
        """
        self.keep_all([decision])

    def keep_all(self, decisions: Iterable[Decision]) -> None:
        """Keep decisions: all of them, or none.

        Raises:
            StoreError: they can't be written.
        """

        def write(connection: sqlite3.Connection) -> None:
            for one in decisions:
                row = (one.name, one.created, msgspec.json.encode(one))
                connection.execute("DELETE FROM decisions WHERE name = ?", row[:1])
                connection.execute("INSERT INTO decisions VALUES (?, ?, ?)", row)
                rows = [(x, one.place.key, one.name) for x in dict.fromkeys(one.graphs)]
                connection.executemany("INSERT INTO graphs VALUES (?, ?, ?)", rows)
            _trim(connection, "decisions", MOST_DECISIONS)

        self._write(write)

    def decided(self, graph: str, place: str) -> tuple[Decision, ...]:
        """Return what was decided for workloads that have this graph, at this place."""
        query = (
            "SELECT decision FROM decisions JOIN graphs USING (name) "
            "WHERE digest = ? AND place = ? ORDER BY decisions.created DESC"
        )
        return tuple(self._decoded(Decision, self._read(query, (graph, place))))

    def decisions(self) -> tuple[Decision, ...]:
        """Return every decision, the newest first."""
        rows = self._read("SELECT decision FROM decisions ORDER BY created DESC, name", ())
        return tuple(self._decoded(Decision, rows))

    def forget(self, names: Iterable[str]) -> int:
        """Forget decisions by name, and return how many there were.

        Raises:
            StoreError: the file can't be written.
        """
        rows = [(x,) for x in names]

        def write(connection: sqlite3.Connection) -> int:
            return connection.executemany("DELETE FROM decisions WHERE name = ?", rows).rowcount

        return self._write(write)

    def measured(self, kind: type[_Kept], key: str) -> _Kept | None:
        """Return what was measured under a key, as `keep_measured` kept it."""
        query = "SELECT value FROM measurements WHERE kind = ? AND key = ?"
        rows = self._read(query, (_kind(kind), key))
        return next(self._decoded(kind, rows), None)

    def keep_measured(self, key: str, value: msgspec.Struct) -> None:
        """Keep what was measured; it is found by its type and the key.

        Raises:
            StoreError: it can't be written.
        """
        row = (_kind(type(value)), key, _now(), msgspec.json.encode(value))

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("INSERT OR REPLACE INTO measurements VALUES (?, ?, ?, ?)", row)
            _trim(connection, "measurements", MOST_MEASUREMENTS)

        self._write(write)

    def _decoded(self, kind: type[_Kept], rows: Iterable[Any]) -> Iterator[_Kept]:
        for (blob,) in rows:
            try:
                yield msgspec.json.decode(blob, type=kind)
            except msgspec.MsgspecError as error:
                self._on_problem(f"{self.path}: an entry is left out: {one_line(error)}")

    def _read(self, query: str, values: tuple[str, ...]) -> list[Any]:
        try:
            if not self.path.exists():  # raises in a folder that this user may not look into
                return []
            return self._rows(query, values)
        except (OSError, sqlite3.Error) as error:
            self._on_problem(f"{self.path} is not read: {of_file(self.path, error)}")
            return []

    def _rows(self, query: str, values: tuple[str, ...]) -> list[Any]:
        try:
            return self._answered(lambda x: x.execute(query, values).fetchall())
        except sqlite3.OperationalError as error:
            if _code(error) not in _NOT_WRITABLE:
                raise
        with contextlib.closing(_opened_unwritten(self.path)) as connection:
            return connection.execute(query, values).fetchall()

    def _write(self, write: Callable[[sqlite3.Connection], _Answer]) -> _Answer:
        def whole(connection: sqlite3.Connection) -> _Answer:
            with connection:  # commits, or rolls back
                connection.execute("BEGIN IMMEDIATE")
                return write(connection)

        try:
            try:
                return self._answered(whole)
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_FULL:
                    raise
            self._answered(_halve)
            return self._answered(whole)
        except (OSError, sqlite3.Error) as error:
            raise StoreError(
                f"{self.path} could not be written: {of_file(self.path, error)}"
            ) from error

    def _answered(self, ask: Callable[[sqlite3.Connection], _Answer]) -> _Answer:
        """Ask; where the file turns out to be damaged, once more of a new one.

        Each question opens the file anew (0.3 ms): a connection must not live on in a fork.
        """
        try:
            with contextlib.closing(_opened(self.path)) as connection:
                return ask(connection)
        except sqlite3.DatabaseError as error:
            if _code(error) not in _DAMAGE:
                raise
        aside = _put_aside(self.path)
        self._on_problem(f"{self.path} was damaged: it is begun anew, and kept as {aside.name}")
        with contextlib.closing(_opened(self.path)) as connection:
            return ask(connection)


def _opened(path: Path) -> sqlite3.Connection:
    """Open a store, and make its tables where it has none.

    Raises:
        OSError: its folder can't be made, others may have written it, or a newer Backbay did.
        sqlite3.Error: it can't be opened, or is damaged.
    """
    own_folder(path)
    if path.exists():
        check_owner(path)
    connection = sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)
    try:
        _prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _opened_unwritten(path: Path) -> sqlite3.Connection:
    """Open a store that this user can't write, to read it.

    Raises:
        OSError: not all of it is in the file, others may have written it, or a newer Backbay did.
        sqlite3.Error: it can't be opened, or is damaged.
    """
    log = path.with_name(f"{path.name}-wal")
    if log.exists() and log.stat().st_size:  # SQLite would not look at it
        raise OSError(f"a part of it is in {log.name}, and SQLite has to write to read that")
    connection = sqlite3.connect(f"{path.absolute().as_uri()}?immutable=1", uri=True)
    try:
        _check_version(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection) -> None:
    found = _check_version(connection)
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA synchronous = NORMAL")  # a killed process loses nothing by it
    connection.execute(f"PRAGMA max_page_count = {LARGEST // _page_size(connection)}")
    if found == VERSION:
        return
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {VERSION}; COMMIT;")


def _check_version(connection: sqlite3.Connection) -> int:
    """Return the version of a store's tables, unless a newer Backbay wrote them."""
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if found > VERSION:
        raise OSError(
            f"it was written by a newer Backbay (version {found} of its tables; this one knows "
            f"{VERSION}): upgrade Backbay, or set BACKBAY_CACHE to another folder"
        )
    return found


def _page_size(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA page_size").fetchone()[0])


def _put_aside(path: Path) -> Path:
    """Move a damaged file, and what SQLite keeps beside it, out of the way."""
    aside = path.with_name(f"{path.name}.damaged")
    for ending in ("-wal", "-shm", ""):
        with contextlib.suppress(FileNotFoundError):  # another process was first
            path.with_name(path.name + ending).replace(aside.with_name(aside.name + ending))
    return aside


def _trim(connection: sqlite3.Connection, table: str, most: int) -> None:
    """Forget the oldest rows of a table above so many."""
    connection.execute(
        f"DELETE FROM {table} WHERE rowid IN "  # noqa: S608 (a constant of this file)
        f"(SELECT rowid FROM {table} ORDER BY created DESC LIMIT -1 OFFSET ?)",
        (most,),
    )


def _halve(connection: sqlite3.Connection) -> None:
    """Forget the older half of everything, so that a full file takes more."""
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        for table in ("decisions", "measurements"):
            count = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
            _trim(connection, table, count // 2)


def _code(error: sqlite3.Error) -> int:
    """Return SQLite's primary code of an error."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _kind(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
