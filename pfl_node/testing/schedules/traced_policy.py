"""A policy whose every step and answer is seen by a watcher on their way. It is otherwise as it was."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from functools import partial
from typing import Any, Protocol, TypeVar, cast

from pfl_node.model import Layout
from pfl_node.policies.base import Policy
from pfl_node.steps import Step, relay
from pfl_node.store.policy_state import freeze, thaw
from pfl_node.types import Offer

P = TypeVar("P", bound=Policy)


class Watcher(Protocol):
    """Told of everything that passes between a policy and its node."""

    def handles(self, policy: Policy, offer: Offer | None) -> None:
        """A handler begins; None: of the silence."""

    def handled(self, policy: Policy) -> None: ...

    def asks(self, policy: Policy, step: Step[Any]) -> float:
        """Answers with the time by the node's own clock."""

    def got(self, policy: Policy, step: Step[Any], answer: Any, asked: float) -> None: ...

    def restored(self, policy: Policy) -> None: ...


def _seen(policy: Policy, watcher: Watcher, step: Step[Any]) -> Generator[Step[Any], Any, Any]:
    asked = watcher.asks(policy, step)
    answer = yield step
    watcher.got(policy, step, answer, asked)
    return answer


def witnessed(cls: type[P], watcher: Watcher, layout: Layout) -> type[P]:
    """The policy's class, watched. What it is restored from has been what a checkpoint holds: JSON and vectors."""

    async def main(self: Any) -> None:
        await relay(cls.main(self), partial(_seen, self, watcher))

    async def on_model(self: Any, offer: Offer) -> None:
        watcher.handles(self, offer)
        await relay(cls.on_model(self, offer), partial(_seen, self, watcher))
        watcher.handled(self)

    async def on_quiet(self: Any) -> None:
        watcher.handles(self, None)
        await relay(cls.on_quiet(self), partial(_seen, self, watcher))
        watcher.handled(self)

    def restore(self: Any, state: Mapping[str, Any]) -> None:
        frozen, vectors = freeze(dict(state))
        cls.restore(self, thaw(json.loads(json.dumps(frozen)), vectors, layout))
        watcher.restored(self)

    body: dict[str, Any] = {
        "main": main,
        "on_quiet": on_quiet,
        "restore": restore,
        "__module__": cls.__module__,
        "__doc__": cls.__doc__,
    }
    if cls.pushes():
        body["on_model"] = on_model
    return cast(type[P], type(cls.__name__, (cls,), body))
