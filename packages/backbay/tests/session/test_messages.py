"""An error, as a row of a table has it."""

from backbay.causes import one_line


class WrappedError(Exception):
    def __init__(self, inner):
        super().__init__("backend='x' raised:\n...")
        self.inner_exception = inner


def test_what_the_backend_raised_is_the_reason_not_what_dynamo_wrapped_it_in():
    assert one_line(WrappedError(ValueError("no kernel\nand more"))) == "ValueError: no kernel"
    assert one_line(WrappedError(WrappedError(KeyError("x")))) == "KeyError: 'x'"


def test_a_reason_fits_a_table():
    assert len(one_line(ValueError("long " * 1000))) <= 400
    assert one_line(ValueError()) == "ValueError"
    assert one_line(ValueError("\n\n  second")) == "ValueError: second"
