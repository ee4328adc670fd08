"""What a race calls backends with while they are timed, and what they give."""

from dataclasses import dataclass
from pathlib import Path

from backbay.judge import Piece
from backbay.judge.client import secret


@dataclass(frozen=True, kw_only=True)
class InputSets:
    """Which sets of inputs rounds have, and what is judged of their results."""

    files: tuple[Path, ...] = ()
    """Of the sets after the workload's own."""
    seeds: tuple[int, ...] = (0,)
    """Of each set, what elements are drawn from; 0 is a secret of the moment."""
    last: Path | None = None
    """The file of a set that nobody saw before timing has ended."""
    sampled: bool = True
    """Whether what is given while the clock runs can be judged."""
    afterwards: bool = True
    """Whether a call after timing can be."""

    def picked(self, inputs: int) -> int:
        """Return what the elements are drawn from that are handed on."""
        return self.seeds[inputs] or secret()


@dataclass(frozen=True)
class Given:
    """What a call gave, in this process's memory: others share the backend's, and its files."""

    piece: Piece
    data: bytes

    @classmethod
    def taken(cls, piece: Piece) -> "Given":
        """Take what a backend handed on, and leave nothing behind.

        Raises:
            OSError: there is nothing.
        """
        path = Path(piece.path)
        data = path.read_bytes()
        path.unlink()
        return cls(piece, data)

    def put_back(self) -> Piece:
        """Write it where the judge finds it."""
        Path(self.piece.path).write_bytes(self.data)
        return self.piece
