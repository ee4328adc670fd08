"""The reader of manifests, the JSON schema that says the same, and input that means harm.

The long run is ``python tools/fuzz_manifest.py --inputs 100000``.
"""

import copy
import dataclasses
import functools
import math
import re
import tomllib
from datetime import date
from pathlib import Path

import jsonschema
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from backbay.registry import Origin, manifest
from backbay.registry.discovery import load_toml
from backbay.registry.manifest import json_schema, read
from backbay.registry.spec import (
    TEXT_PATTERN,
    BackendSpec,
    KnownFault,
    Option,
    Requirements,
    Traits,
    as_data,
)

WHOLE = """
schema = 1

[[backend]]
name = "mine"
summary = "Fuses pointwise operators"
aliases = ["also_mine"]
tags = ["alias"]
experimental = true
homepage = "https://example.org/mine"
install = "pip install mine[runtime]"
reserved_launch_param_names = ["stream"]
registers = "callable"
target = "mine.backend:make"
factory = true

[backend.traits]
devices = ["cpu", "cuda"]
dtypes = ["float32"]
training = false
dynamic_shapes = true
mutation = true
boxed = false
mode = false
options = true
name = false

[backend.requires]
distributions = ["mine-runtime>=3; python_version >= '3.11'"]
torch = ">=2.11,<2.16"
python = "!=3.12.*, >= 3.11"
platforms = ["linux", "darwin-arm64"]
devices = ["cuda"]
modules = ["mine.native"]
environment = ["MINE_HOME"]
tools = { cuda = "triton", cpu = "c++" }

[backend.options.level]
type = "int"
default = 2
choices = [0, 1, 2]
help = "how much to fuse"

[backend.options.passes]
type = "dict"
default = { first = ["a", { b = 1.5 }] }

[[backend.broken]]
torch = ">=2.14"
version = "<1.2"
reason = "it reads a field that is gone"
remedy = "pip install -U mine"
errors = ["no attribute 'gone'"]

[[backend.limits]]
reason = "no float16"
"""

HUGE = 10**5_000


def understood(text):
    return reading(tomllib.loads(text))


def reading(data):
    return read(data, lambda name: Origin(kind="distribution", distribution=name), declared_by="m")


def entry(**fields):
    return {"schema": 1, "backend": [{"name": "mine", **fields}]}


# -- what it reads


def test_every_field_reaches_the_spec():
    found = understood(WHOLE)
    assert found.problems == []
    mine, alias = found.specs
    assert mine == BackendSpec(
        name="mine",
        origin=Origin(kind="distribution"),
        loading="callable",
        target="mine.backend:make",
        factory=True,
        summary="Fuses pointwise operators",
        tags=("alias", "experimental"),
        traits=Traits(
            devices=("cpu", "cuda"),
            dtypes=("float32",),
            training=False,
            dynamic_shapes=True,
            mutation=True,
            boxed=False,
            mode=False,
            options=True,
            name=False,
        ),
        requires=Requirements(
            distributions=("mine-runtime>=3; python_version >= '3.11'",),
            torch=">=2.11,<2.16",
            python="!=3.12.*, >= 3.11",
            platforms=("linux", "darwin-arm64"),
            devices=("cuda",),
            modules=("mine.native",),
            environment=("MINE_HOME",),
            tools=(("cuda", "triton"), ("cpu", "c++")),
        ),
        broken=(
            KnownFault(
                torch=">=2.14",
                version="<1.2",
                reason="it reads a field that is gone",
                remedy="pip install -U mine",
                errors=("no attribute 'gone'",),
            ),
        ),
        limits=(KnownFault(reason="no float16"),),
        options=(
            Option(name="level", type="int", default=2, choices=(0, 1, 2), help="how much to fuse"),
            Option(name="passes", type="dict", default={"first": ["a", {"b": 1.5}]}),
        ),
        reserved_launch_param_names=("stream",),
        install="pip install mine[runtime]",
        homepage="https://example.org/mine",
        declared_by="m",
    )
    assert alias == dataclasses.replace(mine, name="also_mine", alias_of="mine")


def test_every_field_of_a_spec_can_be_said():
    said = set(manifest._ENTRY) | set(manifest._TABLES)
    of_the_reader = {"aliases", "distribution", "experimental", "module", "registers"}
    made = {"alias_of", "declared_by", "loading", "origin"}
    assert {x.name for x in dataclasses.fields(BackendSpec)} == (said - of_the_reader) | made
    for kind, table in (
        (Traits, manifest._TRAITS),
        (Requirements, manifest._REQUIRES),
        (KnownFault, manifest._FAULT),
    ):
        assert {x.name for x in dataclasses.fields(kind)} == set(table)
    assert {x.name for x in dataclasses.fields(Option)} == set(manifest._OPTION) | {"name"}


def test_what_is_not_said_is_unknown_not_no():
    (spec,) = reading(entry()).specs
    assert spec.traits == Traits()
    assert spec.options is None
    assert reading(entry(options={})).specs[0].options == ()
    assert reading(entry(options="inductor")).specs[0].options == "inductor"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"sumary": "x"}, "has an unknown key 'sumary' (did you mean summary?)"),
        ({"traits": {"trains": True}}, "unknown key traits.'trains' (did you mean training?)"),
        ({"requires": {"device": []}}, "unknown key requires.'device' (did you mean devices?)"),
        ({"options": {"x": {"tipe": "int"}}}, "key options.x.'tipe' (did you mean type?)"),
        ({"broken": [{"reson": "x"}]}, "unknown key broken.'reson' (did you mean reason?)"),
        ({"traits": {"training": "yes"}}, "traits.training = 'yes', which must be true or false"),
        ({"traits": {"training": 1}}, "has traits.training = 1, which must be true or false"),
        ({"traits": []}, "has traits = [], which must be a table"),
        ({"requires": {"torch": "2.11"}}, "has requires.torch = '2.11', which must be a PEP 440"),
        ({"requires": {"platforms": ["beos"]}}, "must be linux, darwin or win32"),
        ({"requires": {"tools": {"cpu": "rustc"}}}, "must be one of c++, cc, triton"),
        ({"requires": {"modules": ["../evil"]}}, "which must be a module's name"),
        ({"tags": "debug"}, "has tags = 'debug', which must be a list of at most 256 names"),
        ({"tags": ["x"] * 257}, "which must be a list of at most 256 names"),
        ({"tags": [3]}, "which must be a name without spaces of 1 to 100 characters"),
        ({"summary": ""}, "must be one line of text of 1 to 2000 characters"),
        ({"summary": "two\nlines"}, r"has summary = 'two\nlines', which must be one line of text"),
        ({"summary": "\x1b[2J"}, r"has summary = '\x1b[2J', which must be one line of text"),
        ({"summary": "x" * 2_001}, "must be one line of text of 1 to 2000 characters"),
        ({"registers": "magic"}, "must be one of torch, entry_point, import, callable, removed"),
        ({"target": "file.py"}, "target = 'file.py', which must be of the form module:attr"),
        ({"aliases": ["a:b"]}, "which must not have a colon"),
        ({"aliases": ["mine"]}, "gives the name mine a second time; the first counts"),
        ({"broken": {}}, "has broken, which must be a list of at most 256 tables"),
        ({"broken": ["x"]}, "has 'x' in broken, which must be a table"),
        ({"broken": [{"torch": ">=2"}]}, "has a table of broken without a reason"),
        ({"options": []}, "has options = [], which must be a table, or 'inductor'"),
        ({"options": {"a b": {}}}, "has an option 'a b', which must be a name without spaces"),
        ({"options": {"x": 3}}, "has options.x = 3, which must be a table"),
        ({"options": {"x": {"type": "integer"}}}, "must be one of bool, int, float, str, list"),
        ({"options": {"x": {"choices": [[1]]}}}, "has options.x.choices = [[1]], which must be"),
        ({"options": {"x": {"default": HUGE}}}, "options.x.default = int, which must be a plain"),
        ({"options": {"x": {"default": date(2026, 1, 1)}}}, "which must be a plain value"),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_said_with_its_place(fields, said):
    found = reading(entry(**fields))
    assert any(said in x for x in found.problems), found.problems
    assert all(x.startswith("m: backend[0] (mine) ") for x in found.problems)
    assert all(len(x) < 300 and x.isprintable() for x in found.problems)
    assert found.specs[0].name == "mine"  # what is left of the entry still counts


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ([], "m: not a table"),
        ({}, "m: schema = None is not understood, only schema = 1"),
        ({"schema": 2}, "m: schema = 2 is not understood, only schema = 1"),
        ({"schema": True}, "m: schema = True is not understood"),
        ({"schema": HUGE}, "m: schema = int is not understood"),
        ({"schema": 1}, "m: backend must be a list of at most 1000 tables"),
        ({"schema": 1, "backend": {}}, "m: backend must be a list"),
        ({"schema": 1, "backend": [{}] * 1_001}, "m: backend must be a list of at most 1000"),
        ({"schema": 1, "backend": [], "extra": 1}, "m: unknown key 'extra'"),
        ({"schema": 1, "backend": [3]}, "m: backend[0] must be a table"),
        ({"schema": 1, "backend": [{}]}, "m: backend[0] has no usable name, and is left out"),
        ({"schema": 1, "backend": [{"name": "a b"}]}, "m: backend[0] has name = 'a b', which must"),
    ],
)
def test_a_document_that_gives_no_backend_says_why(data, said):
    found = reading(data)
    assert found.specs == []
    assert found.problems[0].startswith(said)


def test_a_name_given_twice_counts_once_whoever_gives_it():
    names = [{"name": "a"}, {"name": "b", "aliases": ["a", "c", "c"]}, {"name": "c"}]
    found = reading({"schema": 1, "backend": names})
    assert [(x.name, x.alias_of) for x in found.specs] == [("a", None), ("b", None), ("c", "b")]
    assert len(found.problems) == 3


def test_no_number_of_aliases_makes_more_than_a_thousand_names():
    entries = [{"name": f"n{n}", "aliases": [f"n{n}_{m}" for m in range(200)]} for n in range(10)]
    found = reading({"schema": 1, "backend": entries})
    assert len(found.specs) == 1_000
    assert len(found.problems) == 100
    assert "is one too many" in found.problems[0]


def test_a_fault_with_a_specifier_that_is_not_understood_matches_nothing():
    bad = {"reason": "x", "torch": "2.14 or so"}
    for faults in ([bad], [{**bad, "torch": 3}], [{**bad, "torch": ">=2", "versoin": "<1"}]):
        found = reading(entry(broken=faults, limits=faults))
        assert found.specs[0].broken == found.specs[0].limits == ()
        assert found.problems


def test_of_very_many_problems_the_first_are_told():
    found = reading(entry(**{f"key{n}": 1 for n in range(100_000)}))
    assert len(found.problems) == 100
    assert found.problems[-1].endswith("whatever else is wrong is not told")


def test_a_default_that_is_too_deep_is_refused_at_any_depth():
    deep = {}
    for _ in range(100_000):  # as dotted keys of a table's header would make it
        deep = {"a": deep}
    (problem,) = reading(entry(options={"x": {"default": deep}})).problems
    assert "must not be deeper than 8" in problem
    while deep:
        deep = deep.pop("a")


def test_the_catalogue_is_a_manifest_without_problems():
    data = tomllib.loads(Path(manifest.__file__).with_name("catalog.toml").read_text())
    assert reading(data).problems == []
    jsonschema.validate(data, json_schema())


# -- the schema says the same


VALIDATOR = jsonschema.Draft202012Validator(json_schema())


def test_the_schema_is_one():
    jsonschema.Draft202012Validator.check_schema(json_schema())
    VALIDATOR.validate(tomllib.loads(WHOLE))


words = st.sampled_from(
    ["mine", "a b", " ", "", "cpu", ">=2.11,<2.16", ">= 2", "2.11", ">=2\n", "linux",
     "linux-x86_64", "linux-", "m.n", "m:a.b", "m:", "c++", "int", "callable", "torch",
     "inductor", "\n", "\x1b", "\u202e", "x" * 101, "x" * 2_001, "é", "==2.*", "name\n"]
)  # fmt: skip
scalars = st.one_of(
    words, st.text(max_size=5), st.booleans(), st.integers(-3, 3), st.floats(), st.none()
)
values = st.recursive(
    scalars,
    lambda x: st.lists(x, max_size=3) | st.dictionaries(words | st.text(max_size=3), x, max_size=3),
    max_leaves=6,
)


def some_of(**fields):
    return st.fixed_dictionaries({}, optional=fields)


lines = st.sampled_from(["x", "one line", "é", "x" * 2_000])
good_names = st.sampled_from(["cpu", "float32", "é", "x" * 100])
lists = st.lists(good_names, max_size=3)
specifiers = st.sampled_from([">=2.11,<2.16", "== 2.*", "~=3.1", "===x", " >1 , <2 "])
modules = st.sampled_from(["m", "m.n_1"])
flags = st.booleans()
plain = st.sampled_from([0, -1.5, True, "x", math.inf])
faults = st.lists(
    some_of(torch=specifiers, version=specifiers, remedy=lines).flatmap(
        lambda x: lines.map(lambda reason: {**x, "reason": reason})
    ),
    max_size=2,
)
option = some_of(
    type=st.sampled_from(["int", "any"]),
    default=plain | st.just({"a": [[{}]]}),
    choices=st.lists(plain, max_size=2),
    help=lines,
)
good_entries = st.fixed_dictionaries(
    {"name": st.sampled_from(["mine", "other", "a.b"])},
    optional={
        "summary": lines,
        "registers": st.sampled_from(["entry_point", "callable", "import"]),
        "target": st.just("m.n:a.b"),
        "module": modules,
        "factory": flags,
        "aliases": st.lists(st.sampled_from(["a1", "a2"]), max_size=1),
        "tags": lists,
        "traits": some_of(devices=lists, dtypes=lists, training=flags, name=flags),
        "requires": some_of(
            torch=specifiers,
            python=specifiers,
            platforms=st.lists(st.sampled_from(["linux", "darwin-arm64"]), max_size=2),
            modules=st.lists(modules, max_size=2),
            distributions=st.lists(lines, max_size=2),
            environment=lists,
            tools=st.dictionaries(good_names, st.sampled_from(["cc", "c++"]), max_size=2),
        ),
        "options": st.just("inductor") | st.dictionaries(good_names, option, max_size=2),
        "broken": faults,
        "limits": faults,
    },
)


def places(data, at=()):
    """Return the way to every place in a document."""
    yield at
    below = dict(enumerate(data)) if isinstance(data, list) else data
    for key, value in below.items() if isinstance(below, dict) else ():
        yield from places(value, (*at, key))


def put(data, at, value):
    """Return a document with another value in a place, or without the place."""
    changed, last = copy.copy(data), len(at) == 1
    if last and value is GONE:
        del changed[at[0]]
        return changed
    changed[at[0]] = value if last else put(data[at[0]], at[1:], value)
    return changed


GONE = object()


@st.composite
def documents(draw):
    """Make a document that is right, or wrong in a place or two."""
    entries = draw(st.lists(good_entries, max_size=2))
    data = {"schema": 1, "backend": entries}
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.sampled_from(list(places(data))))
        found = functools.reduce(lambda x, key: x[key], at, data)
        if at and draw(st.booleans()):
            data = put(data, at, draw(values | st.just(GONE)))
        elif isinstance(found, dict):
            data = put(data, (*at, draw(words | st.text(max_size=3))), draw(values))
        elif isinstance(found, list):
            data = put(data, at, [*found, draw(values)]) if at else data
    return data


def beyond_a_schema(data):
    """Return what JSON schema has no words for: names given twice, and how deep a default is."""
    found = reading(data)
    said = ("a second time", "must not be deeper")
    return found.problems and all(any(x in problem for x in said) for problem in found.problems)


@settings(max_examples=700, deadline=None, suppress_health_check=list(HealthCheck))
@given(documents())
@example({"schema": 1})
@example({"schema": 1.0, "backend": []})
@example(entry(requires={"torch": ">=2\n"}))
@example(entry(name="name\n"))
@example(entry(options=None))
@example(entry(options={"x": {"choices": [None]}}))
@example(entry(options={"x": {"default": {"": [[[[{"a": None}]]]]}}}))
@example(entry(traits={"devices": ["x" * 100, "x" * 101]}))
@example(entry(broken=[{"reason": "x", "torch": ">=2,"}]))
@example(entry(tags=["x"] * 256, broken=[{"reason": "x"}] * 256))
@example(entry(tags=["x"] * 257))
@example(entry(limits=[{"reason": "x"}] * 257))
@example({"schema": 1, "backend": [{}] * 1_001})
def test_what_the_reader_takes_the_schema_takes_and_no_more(data):
    accepted = not reading(data).problems
    if beyond_a_schema(data):
        return
    errors = list(VALIDATOR.iter_errors(data))
    assert accepted == (not errors), (reading(data).problems, errors)


# -- input that means harm


def assert_harmless(found):
    assert len(found.specs) <= 1_000
    assert len(found.problems) <= 100
    assert all(re.search(TEXT_PATTERN, x) and len(x) < 600 for x in found.problems)
    for spec in found.specs:
        hash(spec)
        assert spec == copy.copy(spec)
        text = str(as_data(spec))
        text.encode()  # and so can be printed


@settings(max_examples=1_000, deadline=None, suppress_health_check=list(HealthCheck))
@given(documents() | values)
def test_no_data_makes_the_reader_raise(data):
    assert_harmless(reading(data))


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(st.integers() | st.none() | st.booleans() | st.text(), values))
def test_no_keys_make_the_reader_raise(data):
    assert_harmless(
        reading({"schema": 1, "backend": [data, {"name": "a", "traits": data}], **data})
    )


WHOLE_LINES = WHOLE.splitlines(keepends=True)
edits = st.lists(
    st.tuples(
        st.integers(0, len(WHOLE) - 1),
        st.integers(0, 12),
        st.text(max_size=3)
        | st.sampled_from(['"', "[", "]", "=", "\n", "[[", '"""', "{", "0x", "."]),
    ),
    max_size=6,
)


@settings(max_examples=1_500, deadline=None, suppress_health_check=list(HealthCheck))
@given(edits, st.permutations(range(len(WHOLE_LINES))) | st.none())
def test_no_text_makes_the_whole_path_raise(tmp_path_factory, edits, order):
    text = WHOLE if order is None else "".join(WHOLE_LINES[n] for n in order)
    for at, length, new in edits:
        text = text[:at] + new + text[at + length :]
    path = tmp_path_factory.getbasetemp() / "fuzzed.toml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    data = load_toml(str(path))
    if isinstance(data, str):
        assert len(data) < 600
        return
    assert_harmless(reading(data))


def test_numbers_that_are_none_do_no_harm():
    found = reading(
        entry(options={"x": {"type": "float", "default": math.nan, "choices": [math.inf]}})
    )
    assert found.problems == []
    assert_harmless(found)
