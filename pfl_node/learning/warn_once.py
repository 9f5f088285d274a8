"""Warnings about a task, once per process: the nodes of a simulation or a swarm would repeat them."""

from __future__ import annotations

import structlog

log = structlog.get_logger(__name__)
said: set[tuple[str, ...]] = set()


def warn_once(text: str, **facts: str) -> None:
    key = (text, *facts.values())
    if key not in said:
        said.add(key)
        log.warning(text, **facts)
