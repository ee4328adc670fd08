"""Torch's texts are taken apart; what is not of their form is kept, and never dropped."""

import pytest

from backbay.explain import guards
from backbay.reporting import breaks, reasons

BREAK = """Graph break in user code at /home/me/model.py:3
Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call:

Some kind of call
  Higher Order Operator: cond
  Explanation: It is not supported
    on two lines.
  Hint: Do this.
  Hint: Or do
    that.

  Developer debug context: builtin f

 For more details about this graph break, please visit: https://example.org/gb1.html

*** While handling this graph break, another graph break occurred: ***

graph break in loop
  Explanation: Skipping the frame and falling back to eager.
  Hint: This may have been caused by an earlier one.

  Developer debug context: frame skipped

User code traceback:
  File "/home/me/model.py", line 9, in forward
    return helper(x)
  File "/home/me/model.py", line 3, in helper
    f(x)

Traceback (most recent call last):
  File "/elsewhere/x.py", line 1, in y
"""

TREE = """
TREE_GUARD_MANAGER:
+- RootGuardManager
| +- GuardManager: source=L['x'], accessed_by=FrameLocalsGuardAccessor(key='x'), type=<class 'T'>
| | +- TENSOR_MATCH: check_tensor(L['x'], Tensor, DispatchKeySet(CPU, X), torch.float16, \
device=0, requires_grad=True, size=[None, 6], stride=[6, 1])  # y = x + 1  # me/model.py:4 in f
| | +- NEW_KIND_OF_GUARD: something(L['x'], 'a # b')  # me/model.py:5 in f
| | +- GuardManager: source=L['x'].a, accessed_by=GetAttrGuardAccessor(a)
| | | +- EQUALS_MATCH: L['x'].a == 3                                  # if a:  # me/model.py:6 in f
| | +- LENGTH_CHECK: len(L['x']) == 2
+- LAMBDA_GUARD: 4 <= L['x'].size()[0]  # if x.shape[0] > 3:  # me/model.py:7 in f (_x/y.py:1 in z)

Guard latency = 3.4 us
"""


def test_a_break_gives_itself_and_not_what_it_led_to():
    found = breaks.parse(BREAK)
    assert found.reason == "Some kind of call"
    assert found.explanation == "It is not supported on two lines."
    assert found.hints == ("Do this.", "Or do that.")
    assert found.context == "builtin f"
    assert found.url == "https://example.org/gb1.html"
    assert found.line == "/home/me/model.py:3"
    assert found.stack == ("/home/me/model.py:9", "/home/me/model.py:3")
    assert found.skipped


def test_a_break_of_another_form_is_kept_as_it_is():
    found = breaks.parse("Graph break in user code at a.py:1\nGraph Break Reason: odd\nmore\n")
    assert (found.reason, found.explanation, found.hints) == ("odd", "more", ())
    assert breaks.parse("nothing of the kind").reason == "nothing of the kind"
    assert breaks.parse("").reason == "unknown"


def test_a_failure_that_only_the_metrics_tell_has_its_place():
    found = breaks.parse_failure("Odd\n  Explanation: E\n  Hint: H\n\n  Developer debug context: C",
                                 "/home/me/model.py", 7)  # fmt: skip
    assert (found.reason, found.hints, found.line) == ("Odd", ("H",), "/home/me/model.py:7")
    assert found.skipped
    assert breaks.parse_failure("Odd", __file__, 1).line.startswith(f'{__file__}:1: """Torch')


def test_each_guard_has_its_source_from_where_it_stands_in_the_tree():
    found = {x.kind: x for x in guards.parse(TREE)}
    tensor = found["TENSOR_MATCH"]
    assert (tensor.group, tensor.source, tensor.line) == (
        "tensors",
        "L['x']",
        "me/model.py:4: y = x + 1",
    )
    assert tensor.says == "float16 Tensor of size [any, 6], stride [6, 1], requires_grad=True"
    value = found["EQUALS_MATCH"]
    assert (value.group, value.source, value.line) == ("values", "L['x'].a", "me/model.py:6: if a:")
    assert found["LENGTH_CHECK"].source == "L['x']"  # not of the attribute that came before it
    size = found["LAMBDA_GUARD"]
    assert (size.group, size.source) == ("shapes", "L['x']")
    assert size.says == "4 <= L['x'].size()[0]"
    assert size.line == "me/model.py:7: if x.shape[0] > 3:"


def test_the_same_object_is_said_without_its_address():
    says = {
        x.says
        for kind in ("<class 'module'>", "<module 'sys' (built-in)>")
        for x in guards.parse(f"| +- ID_MATCH: ___check_obj_id(G['sys'], 1399), type={kind}  # a")
    }
    assert says == {
        "it is the same object: module",
        "it is the same object: <module 'sys' (built-in)>",
    }


def test_a_kind_of_guard_that_we_do_not_know_is_listed_all_the_same():
    strange = next(x for x in guards.parse(TREE) if x.kind == "NEW_KIND_OF_GUARD")
    assert strange.group == "other"
    assert strange.says == "something(L['x'], 'a # b')"
    assert guards.parse(TREE)[0].group == "shapes"
    assert guards.parse("") == ()


def test_one_reason_and_a_list_of_reasons():
    text = (
        "0/2: self.n == 2          # self.n += 1  # me/model.py:10 in forward "
        "(HINT: make it (a) tensor.)\nUser stack trace:\n  File x"
    )
    (one,) = guards.parse_reasons(text)
    assert (one.version, one.failed) == ("0/2", "self.n == 2")
    assert one.line == "me/model.py:10: self.n += 1"
    assert one.hint == "make it (a) tensor."
    two = guards.parse_reasons('[\n"0/1: a",\n"0/0: b"\n]')
    assert [(x.version, x.failed) for x in two] == [("0/1", "a"), ("0/0", "b")]
    assert guards.parse_reasons("[not json")[0].failed == "[not json"


GONE = "is made anew at each call, and the one that was compiled for is gone"


@pytest.mark.parametrize(
    ("failed", "kind", "words"),
    [
        (
            "tensor 'x' size mismatch at index 0. expected 4, actual 7",
            "size",
            "the size of x's dimension 0 changed from 4 to 7",
        ),
        ("L['x'].size()[0] == 4", "size", "the size of x's dimension 0 is not 4 any more"),
        (
            "L['x'].size()[1] <= 128",
            "size",
            "the size of x's dimension 1 is not as in x.size(1) <= 128 any more",
        ),
        (
            "tensor 'x' dtype mismatch. expected Float, actual BFloat16",
            "other",
            "the dtype of x changed from float32 to bfloat16",
        ),
        (
            "tensor 'x' rank mismatch. expected 2, actual 3",
            "other",
            "the number of x's dimensions changed from 2 to 3",
        ),
        ("self.calls == 0", "value", "self.calls was 0, and changed"),
        ("len(self.cache) == 1", "value", "the length of self.cache was 1, and changed"),
        ("not L['flag']", "value", "flag was false, and changed"),
        (
            "Cache line invalidated because L['___stack0'] got deallocated",
            "other",
            f"an intermediate result {GONE}",
        ),
        ("L['x'] is L['y']", "value", "x was y, and changed"),
        (
            "2*L['x'].size()[0] == 8",
            "size",
            "the size of x's dimension 0 is not as in 2*x.size(0) == 8 any more",
        ),
        ("Unable to find recompilation reasons", "other", "torch does not say what changed"),
        ("GLOBAL_STATE changed: grad_mode ", "other", "torch's state changed: grad mode"),
        ("odd(L['x'], G['y'])", "other", "odd(x, y) does not hold any more"),
    ],
)
def test_a_failed_guard_is_said_in_the_users_words(failed, kind, words):
    found = reasons.reason(failed)
    assert (found.kind, found.words) == (kind, words)


def test_an_intermediate_result_reads_as_one():
    assert reasons.plainly("L['___stack0']") == "an intermediate result"
    assert reasons.plainly("L['___stack0'].size()[1]") == "(an intermediate result).size(1)"


def test_of_several_versions_the_one_that_tells_what_changed_is_told():
    gone = "Cache line invalidated because L['f'] got deallocated"
    assert reasons.told([gone, "L['n'] == 3"]).words == "n was 3, and changed"
    assert reasons.told([gone, gone]).words.startswith("f is made anew at each call")


def test_advice_for_torchs_developers_reaches_no_user():
    kept = "Use another function."
    hints = ["Please report an issue to PyTorch.", "inject_X_TESTING_ONLY = True", kept]
    assert breaks.useful(hints) == (kept,)
