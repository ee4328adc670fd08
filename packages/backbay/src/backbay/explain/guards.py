"""Guards as a readable list, and why they led to a recompile, out of torch's structured trace.

The tree of guards is what is checked at every call, in C++; torch's own list of guards
(``guard_export_fn``) holds also what is not checked, and says nothing of sizes.
"""

import json
import re
from collections.abc import Iterator

from backbay.explain.record import GuardRecord, ReasonRecord
from backbay.reporting import reasons
from backbay.reporting.lines import whole

_NODE = re.compile(r"^(?P<depth>(?:\| )*)\+- (?P<kind>\w+)(?:: (?P<rest>.*))?$")
_SOURCE = re.compile(r"source=(?P<source>.*?), accessed_by=")
_COMMENT = re.compile(r"^(?P<code>.*?)(?:\s*# )?(?P<file>\S+):(?P<number>\d+) in (?P<function>\S+)")
_TENSOR = re.compile(
    r"^check_tensor\(.*?, (?P<kind>\w+), DispatchKeySet\([^)]*\), torch\.(?P<dtype>\w+), "
    r"device=(?P<device>\w+), requires_grad=(?P<grad>\w+), "
    r"size=\[(?P<size>[^]]*)\], stride=\[(?P<stride>[^]]*)\]\)"
)
_TYPE = re.compile(r"^___check_type_id\(.*\), type=<class '(?P<type>.*)'>")
_IDENTITY = re.compile(r"^___check_obj_id\(.*?, \d+\), type=(?:<class '(.*)'>|(.*))$")
"""With the object's type; up to 2.12 with the object itself, where that is no class."""
_MARK = re.compile(r"^hasattr\(.*, '_dynamo_(?P<mark>\w+)_indices'\) == False")
_NAMED = re.compile(r"\b[LG]\[[^]]*\](?:\.\w+(?![\w(])|\[[^]]*\])*")

GROUPS = (
    "shapes",
    "tensors",
    "values",
    "types",
    "identities",
    "contents",
    "aliasing",
    "markings",
    "torch's state",
    "other",
)
_GROUP_OF = {
    "TENSOR_MATCH": "tensors",
    "NO_TENSOR_ALIASING": "aliasing",
    "TENSOR_ALIASING": "aliasing",
    "OBJECT_ALIASING": "aliasing",
    "STORAGE_OVERLAPPING": "aliasing",
    "EQUALS_MATCH": "values",
    "CONSTANT_MATCH": "values",
    "TRUE_MATCH": "values",
    "FALSE_MATCH": "values",
    "NONE_MATCH": "values",
    "BOOL_MATCH": "values",
    "NOT_NONE_MATCH": "values",
    "TYPE_MATCH": "types",
    "ID_MATCH": "identities",
    "CLASS_MATCH": "identities",
    "MODULE_MATCH": "identities",
    "BUILTIN_MATCH": "identities",
    "CLOSURE_MATCH": "identities",
    "FUNCTION_MATCH": "identities",
    "WEAKREF_ALIVE": "identities",
    "LENGTH_CHECK": "contents",
    "DICT_LENGTH": "contents",
    "DICT_CONTAINS": "contents",
    "SET_CONTAINS": "contents",
    "MAPPING_KEYS_CHECK": "contents",
    "DICT_KEYS_MATCH": "contents",
    "DICT_VERSION": "contents",
    "NO_HASATTR": "contents",
    "HASATTR": "contents",
    "NOT_PRESENT_IN_GENERIC_DICT": "contents",
    "TUPLE_ITERATOR_LEN": "contents",
    "RANGE_ITERATOR_MATCH": "contents",
    "DIMENSION_DYNAMIC_MARKING_GUARD": "markings",
    "DYNAMIC_INDICES": "markings",
    "GLOBAL_STATE": "torch's state",
    "GRAD_MODE": "torch's state",
    "TORCH_FUNCTION_MODE_STACK": "torch's state",
    "DEFAULT_DEVICE": "torch's state",
    "DETERMINISTIC_ALGORITHMS": "torch's state",
    "DISPATCH_KEY_SET_MATCH": "torch's state",
}


def parse(tree: str) -> tuple[GuardRecord, ...]:
    """Return the guards of a tree, in groups, the groups in the order of `GROUPS`."""
    found = list(dict.fromkeys(_guards(tree)))
    return tuple(sorted(found, key=lambda x: GROUPS.index(x.group)))


def _guards(tree: str) -> Iterator[GuardRecord]:
    sources: dict[int, str] = {}
    for line in tree.splitlines():
        node = _NODE.match(line)
        if node is None:
            continue
        depth, kind, rest = len(node["depth"]), node["kind"], node["rest"] or ""
        manager = _SOURCE.search(rest)
        if kind.endswith("Manager"):
            sources[depth] = manager["source"] if manager else ""
            continue
        yield _guard(kind, rest, sources.get(depth - 2, ""))


def _guard(kind: str, rest: str, parent: str) -> GuardRecord:
    check, _, comment = rest.partition("  # ")
    check = check.strip()
    group = _group(kind, check)
    source = parent
    if group == "shapes":
        source = ", ".join(dict.fromkeys(_NAMED.findall(check)))
    says = _says(check) or kind.lower().replace("_", " ")  # of several, one has the text
    return GuardRecord(group=group, kind=kind, source=source, says=says, line=_line(comment))


def _group(kind: str, check: str) -> str:
    if _MARK.match(check):  # a kind of its own from 2.12 on
        return "markings"
    if kind in _GROUP_OF:
        return _GROUP_OF[kind]
    if ".size()" in check or ".stride()" in check or "storage_offset" in check:
        return "shapes"
    return "torch's state" if check.startswith("torch._functorch") else "other"


def _says(check: str) -> str:
    tensor = _TENSOR.match(check)
    if tensor is not None:
        size = tensor["size"].replace("None", "any")
        stride = tensor["stride"].replace("None", "any")
        kind = f"{tensor['dtype']} {tensor['kind']}"
        return f"{kind} of size [{size}], stride [{stride}], requires_grad={tensor['grad']}"
    for pattern, words in (
        (_TYPE, "its type is {}"),
        (_IDENTITY, "it is the same object: {}"),
        (_MARK, "nobody marked its sizes {}"),
    ):
        found = pattern.match(check)
        if found is not None:
            return words.format(next(filter(None, found.groups())))
    if check.startswith("___check_global_state"):
        return "autocast, gradient mode, default dtype, threads and determinism are as they were"
    return check


def _line(comment: str) -> str:
    found = _COMMENT.match(comment.strip())
    if found is None:
        return ""
    place, code = f"{whole(found['file'])}:{found['number']}", found["code"].strip()
    return f"{place}: {code}" if code else place


def parse_reasons(payload: str) -> tuple[ReasonRecord, ...]:
    """Return why a function was compiled again; torch writes several reasons as a JSON list."""
    try:
        found = json.loads(payload) if payload.startswith("[") else [payload]
    except ValueError:
        found = [payload]
    return tuple(_reason(str(x)) for x in found)


def _reason(text: str) -> ReasonRecord:
    found = reasons.parse(text)
    return ReasonRecord(
        version=found.version,
        failed=found.guard,
        says=reasons.reason(found.guard).words,
        line=found.line,
        hint=found.hint,
    )
