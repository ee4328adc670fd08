"""Whether what is read at one place of a graph may as well be read at a later one."""

from collections.abc import Collection, Iterable, Iterator

from torch.fx import Node

from backbay.graph.effects import changes_state, may_write
from backbay.graph.values import storages


def disturbed(
    start: Node, end: Node, read: Iterable[Node], *, inside: Collection[Node] = ()
) -> str | None:
    """Say what stands between two places and forbids to read at the second; None if nothing does.

    Args:
        start: where values are read now.
        end: where they would be read instead.
        read: the values.
        inside: nodes between the two that do not count.
    """
    known = [storages(x) for x in read]
    for node in _between(start, end):
        if node in inside:
            continue
        if changes_state(node):
            return f"{node.name} changes a mode on the way"
        if not may_write(node):
            continue
        written = [storages(x) for x in node.all_input_nodes]
        if any(x is None or y is None or x & y for x in known for y in written):
            return f"{node.name} may write on the way what it reads"
    return None


def _between(start: Node, end: Node) -> Iterator[Node]:
    node = start.next
    while node is not end:
        yield node
        node = node.next
