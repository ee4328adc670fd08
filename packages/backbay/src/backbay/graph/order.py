"""Whether what is read at one place of a graph may as well be read at another one."""

from collections.abc import Collection, Iterable, Iterator

from torch.fx import Node

from backbay.graph.effects import changes_state, may_write
from backbay.graph.values import storages


def disturbed(
    start: Node, end: Node, read: Iterable[Node], *, inside: Collection[Node] = ()
) -> str | None:
    """Say what stands between two places and forbids to read at the other; None if nothing does.

    Args:
        start: the earlier place.
        end: the later one.
        read: the values.
        inside: nodes between the two that do not count.
    """
    return Disturbances(start, inside=inside).until(end, read)


class Disturbances:
    """What stands behind a place, looked at once however often it is asked for."""

    def __init__(self, start: Node, *, inside: Collection[Node] = ()) -> None:
        """Begin behind a node.

        Args:
            start: the node.
            inside: nodes that do not count.
        """
        self._looked_at = start
        self._inside = inside
        self._mode: str | None = None
        self._writes: list[tuple[Node, list[frozenset[int] | None]]] = []

    def until(self, end: Node, read: Iterable[Node]) -> str | None:
        """Say what forbids to read values at ``end`` in place of the beginning, or the other way.

        Args:
            end: a place behind the beginning; what was asked for further behind counts, too.
            read: the values.
        """
        self._look(end)
        if self._mode is not None:
            return self._mode
        known = [storages(x) for x in read]
        for node, written in self._writes:
            if any(x is None or y is None or x & y for x in known for y in written):
                return f"{node.name} may write on the way what it reads"
        return None

    def _look(self, end: Node) -> None:
        if not self._looked_at < end:
            return
        for node in _between(self._looked_at, end):
            if node in self._inside:
                continue
            if changes_state(node) and self._mode is None:
                self._mode = f"{node.name} changes a mode on the way"
            if may_write(node):
                self._writes.append((node, [storages(x) for x in node.all_input_nodes]))
        self._looked_at = end.prev


def _between(start: Node, end: Node) -> Iterator[Node]:
    node = start.next
    while node is not end:
        yield node
        node = node.next
