"""The handlers of a push policy, one after the other: every model of the inbox, and the silence between them."""

from __future__ import annotations

from pfl_node.policies.base import Policy
from pfl_node.protocol.mailbox import Mailbox
from pfl_node.sim.clock import Timer
from pfl_node.sim.fiber import Answerer, Fiber


class Lane:
    """At most one handler at a time, and at most one timer for the silence."""

    def __init__(self, policy: Policy, mailbox: Mailbox, clock: Timer, answer: Answerer) -> None:
        self.fiber: Fiber | None = None
        self._policy = policy
        self._mailbox = mailbox
        self._clock = clock
        self._answer = answer
        self._heard = clock.now
        self._running = False
        self._timer = False
        self._stopped = False

    def go(self) -> None:
        """Handle what there is to handle until a handler has to wait or nothing is left."""
        if self._running or self.fiber or self._stopped:
            return
        self._running = True
        while not self.fiber and self._next():
            pass
        self._running = False
        if not self.fiber:
            self._arm()

    def stop(self) -> None:
        self._stopped = True
        if self.fiber:
            self.fiber.stop()
            self.fiber = None

    def _next(self) -> bool:
        if offers := self._mailbox.take(1):
            self.fiber = Fiber(
                f"{self._policy.me}, on_model", self._policy.on_model(offers[0]), self._answer, self._ended
            )
        elif self._quiet_at <= self._clock.now:
            self.fiber = Fiber(f"{self._policy.me}, on_quiet", self._policy.on_quiet(), self._answer, self._ended)
        else:
            return False
        self.fiber.run()
        return True

    def _ended(self) -> None:
        self.fiber = None
        self._heard = self._clock.now
        self.go()

    @property
    def _quiet_at(self) -> float:
        patience = self._policy.quiet_after
        return float("inf") if patience is None else self._heard + patience

    def _arm(self) -> None:
        if not self._timer and self._quiet_at < float("inf"):
            self._timer = True
            self._clock.at(self._quiet_at, self._rang)

    def _rang(self) -> None:
        self._timer = False
        self.go()
