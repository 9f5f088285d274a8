"""Policies whose steps and answers pass through a method, and which otherwise behave as before."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar, cast

from pfl_node.policies.base import Policy
from pfl_node.steps import Flow, Step, relay
from pfl_node.types import Offer

P = TypeVar("P", bound=Policy)


class InterceptedPolicy(Policy):
    """The first base of a class that `intercepted` creates; `super()` is the policy."""

    def intercept(self, step: Step[Any]) -> Generator[Step[Any], Any, Any]:
        """Yields the step for the driver; returns the answer for the policy."""
        return (yield step)

    def handler_begins(self, offer: Offer | None) -> None:
        """`on_model`, or without an offer `on_quiet`."""

    def handler_ends(self) -> None: ...

    async def main(self) -> None:
        await relay(super().main(), self.intercept)  # type: ignore[safe-super]

    async def on_model(self, offer: Offer) -> None:
        await self._handle(super().on_model(offer), offer)

    async def on_quiet(self) -> None:
        await self._handle(super().on_quiet(), None)

    async def _handle(self, handler: Flow, offer: Offer | None) -> None:
        self.handler_begins(offer)
        await relay(handler, self.intercept)
        self.handler_ends()

    @classmethod
    def pushes(cls) -> bool:
        return super().on_model is not Policy.on_model


def intercepted(cls: type[P], by: type[InterceptedPolicy], **attributes: Any) -> type[P]:
    """A subclass of both with the name of the policy."""
    body = {"__module__": cls.__module__, "__doc__": cls.__doc__, **attributes}
    return cast(type[P], type(cls.__name__, (by, cls), body))
