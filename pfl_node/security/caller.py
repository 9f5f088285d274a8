"""Who is calling, as TLS says: set for the length of a call, None where connections are plain."""

from __future__ import annotations

from contextvars import ContextVar

from pfl_node.errors import Reason, Refused
from pfl_node.types import PeerId

CALLER: ContextVar[PeerId | None] = ContextVar("caller", default=None)


def check_sender(claimed: str) -> None:
    """The sender of a message is whom TLS says. Raises Refused."""
    caller = CALLER.get()
    if caller is not None and claimed != caller:
        raise Refused(Reason.IMPOSTOR, f"the message says {claimed[:64]}, TLS says {caller}", caller)
