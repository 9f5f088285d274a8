"""A policy whose steps and answers pass through an observer, and which otherwise behaves as before."""

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


class StepObserver(Protocol):
    def handler_begins(self, policy: Policy, offer: Offer | None) -> None:
        """`on_model`, or without an offer `on_quiet`."""

    def handler_ends(self, policy: Policy) -> None: ...

    def before_step(self, policy: Policy, step: Step[Any]) -> float:
        """Returns the time by the node's own clock."""

    def after_step(self, policy: Policy, step: Step[Any], answer: Any, began: float) -> None: ...

    def restored(self, policy: Policy) -> None: ...


def _observe(policy: Policy, observer: StepObserver, step: Step[Any]) -> Generator[Step[Any], Any, Any]:
    began = observer.before_step(policy, step)
    answer = yield step
    observer.after_step(policy, step, answer, began)
    return answer


def traced(cls: type[P], observer: StepObserver, layout: Layout) -> type[P]:
    """A traced subclass. Its state passes through the checkpoint format before it is restored."""

    async def main(self: Any) -> None:
        await relay(cls.main(self), partial(_observe, self, observer))

    async def on_model(self: Any, offer: Offer) -> None:
        observer.handler_begins(self, offer)
        await relay(cls.on_model(self, offer), partial(_observe, self, observer))
        observer.handler_ends(self)

    async def on_quiet(self: Any) -> None:
        observer.handler_begins(self, None)
        await relay(cls.on_quiet(self), partial(_observe, self, observer))
        observer.handler_ends(self)

    def restore(self: Any, state: Mapping[str, Any]) -> None:
        frozen, vectors = freeze(dict(state))
        cls.restore(self, thaw(json.loads(json.dumps(frozen)), vectors, layout))
        observer.restored(self)

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
