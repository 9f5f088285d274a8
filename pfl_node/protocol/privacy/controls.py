"""The privacy controls of one node, real or simulated: noisy answers and the DP-SGD account."""

from __future__ import annotations

import random
import secrets
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import structlog

from pfl_node.protocol.privacy.dp_account import TRAINED, DpAccount
from pfl_node.protocol.privacy.noisy_scores import ANSWERED, NoisyScores

if TYPE_CHECKING:
    from pfl_node.errors import StoreError
    from pfl_node.settings import Settings
    from pfl_node.types import PeerId

log = structlog.get_logger(__name__)


class PrivacyControls:
    """`oracle` is None if answers are exact."""

    def __init__(self, settings: Settings, oracle: NoisyScores | None, account: DpAccount) -> None:
        self.settings = settings.privacy
        self.oracle = oracle
        self.account = account

    def status(self) -> dict[str, Any]:
        """JSON values; empty if nothing is on."""
        found: dict[str, Any] = {}
        if self.oracle:
            s, o = self.settings, self.oracle
            found["oracle"] = {
                "answers": o.answers,
                "budget": s.oracle_budget,
                "spent": {peer: round(spent, 6) for peer, spent in sorted(dict(o.spent).items())},
                "total": round(o.total, 6),
            }
        if self.settings.dp:
            found["dp"] = {
                "epsilon": round(self.account.epsilon, 6),
                "delta": self.settings.dp_delta,
                "steps": self.account.steps.total(),
                "exhausted": self.account.exhausted,
            }
            if self.settings.dp_correlated:
                found["dp"] |= {"partners": self.account.partners, "colluders": self.settings.dp_colluders}
        return found

    def dump(self) -> dict[str, Any]:
        """The state between segments of a simulation; empty if nothing is on."""
        oracle = {"oracle": self.oracle.dump()} if self.oracle else {}
        return oracle | ({"trained": self.account.rows()} if self.settings.dp else {})


class Ledger(Protocol):
    """Where a node records what it has disclosed, so that a restart does not reset its budgets."""

    def __call__(self, event: str, data: Mapping[str, Any]) -> None: ...
    def begin(self) -> None: ...
    def rows(self) -> Iterable[Mapping[str, Any]]: ...
    def damaged(self, line: int) -> StoreError: ...


def privacy_of(settings: Settings, ledger: Ledger, *, certain: bool) -> PrivacyControls:
    """The controls of a real node: secret noise, and the remaining budgets according to the ledger. `certain`:
    callers are authenticated."""
    s = settings.privacy
    oracle = NoisyScores(s, secrets.SystemRandom(), ledger) if s.oracle else None
    account = DpAccount(ledger, secrets.token_hex(16))
    if s.oracle and not certain and s.oracle_total is None:
        log.warning("without TLS a peer can use many names, each with its own budget: set privacy.oracle_total")
    if s.dp_correlated:
        log.info(
            "neighbours add noise that cancels: epsilon holds against anyone who sees all messages, together with "
            f"{s.dp_colluders} of this node's neighbours in a round; the others must have the same settings "
            "and keep their noise secret"
        )
    if not (s.oracle or s.dp):
        return PrivacyControls(settings, oracle, account)
    ledger.begin()
    for n, row in enumerate(ledger.rows(), 1):
        try:
            if row["event"] == TRAINED:
                account.load(row)
            elif row["event"] == ANSWERED and oracle:
                oracle.load(row)
        except (KeyError, ValueError, TypeError):
            raise ledger.damaged(n) from None
    return PrivacyControls(settings, oracle, account)


def simulated(
    settings: Settings, me: PeerId, account: DpAccount, held: Mapping[str, Any] | None = None
) -> PrivacyControls:
    """The controls of a simulated node, new or as `dump` described them; the seed determines the noise."""
    oracle = None
    if settings.privacy.oracle:
        before = held["oracle"] if held else {"spent": {}, "total": 0.0, "answers": 0, "told": []}
        oracle = NoisyScores(settings.privacy, random.Random(f"{settings.seed}/oracle/{me}/{before['answers']}"))
        oracle.restore(before)
    if held is not None:
        account.steps.clear()  # the learner still has them if the run was not interrupted
    for row in (held or {}).get("trained", ()):
        account.load(row)
    return PrivacyControls(settings, oracle, account)
