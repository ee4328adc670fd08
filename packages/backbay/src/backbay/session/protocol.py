"""What a client and a handler say to each other: JSON, a line a request, a frame a reply.

A request's line begins with the nonce that the reply to it has; see `channel`.
"""

import functools
import traceback
from typing import Any, ClassVar, Literal, Protocol, TypeVar

import msgspec

from backbay.causes import one_line
from backbay.errors import InputError

Request_contra = TypeVar("Request_contra", contravariant=True)
Reply_co = TypeVar("Reply_co", covariant=True)

Failure = Literal["crashed", "timeout", "failed"]
"""Why there is no reply: the process died, it took too long, or the request could not be done."""


class Handler(Protocol[Request_contra, Reply_co]):
    """Answers requests, one after the other."""

    requests: ClassVar[Any]
    """The type of its requests, as msgspec decodes it; may be a union."""

    def answer(self, request: Request_contra, /) -> Reply_co:
        """Return the reply. What it raises is a refusal; see `Refused`."""


class NoReply(Exception):  # noqa: N818 (what happened to a request, not an error of who asks)
    """A request has no reply; ``status`` is why."""

    def __init__(self, reason: str, status: Failure = "failed") -> None:
        super().__init__(reason)
        self.reason = reason
        self.status: Failure = status


class Lost(NoReply):
    """The process is gone: it died, or it was ended because it took too long.

    Attributes:
        exit_code: of a process that died by itself; negative: the number of the signal.
        printed: the end of what it printed.
        too_much_printed: whether it was ended because of that.
    """

    def __init__(
        self,
        reason: str,
        status: Failure = "crashed",
        *,
        exit_code: int | None = None,
        printed: str = "",
        too_much_printed: bool = False,
    ) -> None:
        super().__init__(reason, status)
        self.exit_code = exit_code
        self.printed = printed
        self.too_much_printed = too_much_printed


class Refused(NoReply):
    """The handler raised; the process is there for the next request.

    Attributes:
        input_error: whether what the user gave is at fault.
        detail: the user's own traceback, where their code raised.
    """

    def __init__(self, reason: str, *, input_error: bool = False, detail: str = "") -> None:
        super().__init__(reason)
        self.input_error = input_error
        self.detail = detail


class Refusal(msgspec.Struct, frozen=True, tag="refused"):
    """`Refused`, on its way."""

    reason: str
    input_error: bool = False
    detail: str = ""


@functools.cache
def replies(expected: Any) -> "msgspec.json.Decoder[Any]":
    """Return what decodes a reply of the expected type, or the refusal in its place."""
    return msgspec.json.Decoder(expected | Refusal)


def replied(handler: Handler[Any, Any], request: object) -> object:
    """Return a handler's reply, or the refusal that stands for what it raised."""
    try:
        return handler.answer(request)
    except Refused as error:
        return Refusal(error.reason, error.input_error, error.detail)
    except InputError as error:
        notes = "\n".join(getattr(error, "__notes__", ()))
        return Refusal(_encodable(str(error)), input_error=True, detail=_encodable(notes))
    except Exception as error:  # noqa: BLE001 (whatever a model or a backend raises is a result)
        traceback.print_exc()
        return Refusal(_encodable(one_line(error)))


def _encodable(text: str) -> str:
    """Return a text without the lone surrogates that no message can have."""
    return text.encode("utf-8", "backslashreplace").decode()
