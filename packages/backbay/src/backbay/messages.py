"""Messages of errors, for a table."""

_LONGEST = 400  # characters: a row of a table, not a log


def one_line(error: BaseException) -> str:
    """Return an error's kind and the first line of its message.

    Dynamo wraps what a backend raises; what it raised is what a reader needs.
    """
    while isinstance(inner := getattr(error, "inner_exception", None), BaseException):
        error = inner
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
