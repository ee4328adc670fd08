"""A name that nobody can type, or be sure of, is refused, and the reason is said."""

import pytest

from backbay.registry.spec import name_problem

GROUP = "[torch_dynamo_backends]\n"
REFUSED = {
    "--all": "hyphen",
    "-": "hyphen",
    "A,B": "comma",
    ",": "comma",
    "a b": "space",
    "a\u00a0b": "space",
    "a\u3000b": "space",
    "a:b": "colon",
    "a\u200bb": "can't be seen",
    "a\u3164b": "can't be seen",
    "a\U000e0041b": "can't be seen",
    "a\u202eb": "can't be seen",
    "a\ufe0fb": "can't be seen",
    "\u0430pple": "mix scripts: Cyrillic, Latin",
    "induct\u03bfr": "mix scripts: Greek, Latin",
    "\uff49nductor": "look like another, 'inductor'",
    "ﬁne": "look like another, 'fine'",
    "x" * 101: "1 to 100",
}


@pytest.mark.parametrize(("name", "why"), REFUSED.items(), ids=map(ascii, REFUSED))
def test_a_name_is_refused_and_the_reason_is_listed(name, why, registry, install):
    assert why in (name_problem(name) or "")
    install("plug-in", entry_points=f"{GROUP}{name} = plug_in:fn\nfine = plug_in:fn\n")
    listed = registry.list_backends()
    assert "fine" in listed
    assert name not in listed
    (problem,) = (x for x in registry.problems if "plug-in" in x)
    assert problem.startswith("plug-in 1.0: [torch_dynamo_backends] ")
    assert why in problem
    assert problem.isascii()


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "a-b",
        "a.b",
        "a_b",
        "A+1",
        "é",
        "Привет",
        "ελ",
        "日本語ひらカタ",
        "한글x",
        "ツー",
        "a😀",
        "x[/x]",
    ],
)
def test_a_name_that_can_be_typed_is_listed(name, registry, install):
    assert name_problem(name) is None
    install("plug-in", entry_points=f"{GROUP}{name} = plug_in:fn\n")
    assert name in registry.list_backends()
