"""Child processes that may be lost, and how they are asked. No torch here.

A `Service` names a *handler*, the types of its requests and of its replies. A *client* carries
requests to one handler: to a child process (`ProcessClient`), or to this one (`LocalClient`). A
`Session` opens a client when the first request needs it, and another one when that was lost.

::

    SERVICE = Service[Request, Reply]("backbay.race.handler:RaceHandler", {Load: Loaded, ...})

    with SERVICE.session({"OMP_NUM_THREADS": "1"}) as session:
        reply = session.ask(Load(...), timeout_s=60.0)
"""

from backbay.session.client import Client, LocalClient, ProcessClient
from backbay.session.protocol import Failure, Handler, Lost, NoReply, Refused
from backbay.session.session import Service, Session, end_until_done

__all__ = [
    "Client",
    "Failure",
    "Handler",
    "LocalClient",
    "Lost",
    "NoReply",
    "ProcessClient",
    "Refused",
    "Service",
    "Session",
    "end_until_done",
]
