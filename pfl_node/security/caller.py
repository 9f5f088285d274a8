"""The caller of the current RPC as authenticated by TLS; None on plain connections."""

from __future__ import annotations

from contextvars import ContextVar

from pfl_node.errors import Reason, Refused
from pfl_node.types import PeerId

CALLER: ContextVar[PeerId | None] = ContextVar("caller", default=None)


def check_sender(claimed: str) -> None:
    """Raises Refused if a message names a sender other than the authenticated caller."""
    caller = CALLER.get()
    if caller is not None and claimed != caller:
        raise Refused(Reason.IMPOSTOR, f"the message says {claimed[:64]}, TLS says {caller}", caller)
