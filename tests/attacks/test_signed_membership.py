"""With TLS, one member lies about others to real processes. Each attack runs with a CA and with pinned ids."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from pfl_node.membership.member import INCARNATION_LIMIT, Member, State
from pfl_node.membership.signatures import Signed
from pfl_node.security.identity_keys import IdentityKeys
from tests.attacks.conftest import Figure
from tests.attacks.forger import Directories, Forger, forger
from tests.e2e.in_process import Town, play
from tests.e2e.processes import Process
from tests.unit.membership.keyed_members import Keyed

INVENTED = 4200
WAIT = 60.0
Start = Callable[..., Process]

pytestmark = pytest.mark.attacks


@dataclass
class Scene:
    """A victim and a witness, each a process, and a third member that lies."""

    start: Start
    places: Directories
    trust: str
    victim: Process
    witness: Process
    eve: Forger

    @property
    def both(self) -> tuple[str, str]:
        return self.victim.address, self.witness.address

    async def record(self, of: str = "victim") -> Member:
        """The record that the witness has of a member."""
        return (await self.eve.view(self.witness.address))[self.places.ids[of]]

    async def until(self, so: Callable[[dict[str, Member]], bool], at: Process | None = None) -> dict[str, Member]:
        end = time.monotonic() + WAIT
        while not so(view := await self.eve.view((at or self.witness).address)):
            assert time.monotonic() < end, view
            await asyncio.sleep(0.1)
        return view

    async def moved(self, before: Member) -> bool:
        """Whether the victim is not alive where it was, at the witness or, by its own word, at home."""
        found = [(await self.eve.view(address))[before.id] for address in self.both]
        return any(
            (now.state, now.address) != (State.ALIVE, before.address) or now.incarnation > before.incarnation + 1
            for now in found
        )


def bootstrap(start: Start, name: str, *words: str) -> Process:
    common = ("--listen", "127.0.0.1:0", "--tls", "--log-format", "json")
    return start("bootstrap", "--data-dir", name, *common, *words)


@pytest.fixture(params=["ca", "pinned"])
def attack(
    request: pytest.FixtureRequest, tmp_path: Path, start: Start
) -> Callable[[Callable[[Scene], Awaitable[None]]], None]:
    """Plays an attack on two processes that know each other and the attacker."""

    def run(scene: Callable[[Scene], Awaitable[None]]) -> None:
        async def main() -> None:
            names = ("victim", "witness", "eve", "absent")
            places = Directories(tmp_path, names, ca=request.param == "ca")
            victim = bootstrap(start, "victim")
            witness = bootstrap(start, "witness", "--peer-seed", victim.address)
            tls = places.tls("eve")
            async with forger(tls, witness.address) as eve:
                trust = "CA" if request.param == "ca" else "pinned ids"
                made = Scene(start, places, trust, victim, witness, eve)
                three = {places.ids[name] for name in names[:3]}
                for process in (victim, witness):
                    await made.until(lambda view: set(view) == three, process)
                await scene(made)

        asyncio.run(main())

    return run


Attack = Callable[[Callable[[Scene], Awaitable[None]]], None]


def test_a_forged_departure_address_or_incarnation_changes_nothing(attack: Attack, figure: Figure) -> None:
    async def scene(made: Scene) -> None:
        before = await made.record()
        lies = (
            made.eve.forge(before, state=State.LEFT),
            made.eve.forge(before, state=State.LEFT, incarnation=before.incarnation + 1),
            made.eve.forge(before, address="127.0.0.1:9", incarnation=before.incarnation + 1),
            made.eve.forge(before, incarnation=INCARNATION_LIMIT - 1),
            replace(before, state=State.LEFT),  # the victim's own signature, which is for another state
            replace(before, address="127.0.0.1:9"),
            replace(before, incarnation=before.incarnation + 1),
            replace(before, state=State.LEFT, seal=None),
        )
        changed = 0
        for lie in lies:
            await made.eve.tell(made.both, lie)
            changed += await made.moved(before)
            assert changed == 0, lie
        assert "is forged" in made.witness.says("is forged")
        figure(
            f"forged LEFT, address and incarnation, {made.trust}",
            "evicted, moved",
            f"{changed} of {len(lies)} accepted",
        )

    attack(scene)


def test_a_forged_member_is_not_met(attack: Attack) -> None:
    """Its id has a valid certificate, or is on the list, but the member does not run."""

    async def scene(made: Scene) -> None:
        before = await made.record()
        ghost = replace(before, id=made.places.ids["absent"], name="absent", address="127.0.0.1:9")
        await made.eve.tell(made.both, made.eve.forge(ghost), replace(ghost, seal=None))
        assert not await made.moved(before)
        for address in made.both:
            assert ghost.id not in await made.eve.view(address)

    attack(scene)


def test_thousands_of_invented_members_with_keys_of_their_own_are_not_met(attack: Attack, figure: Figure) -> None:
    """The attacker has keys for them and certificates of a CA that it made up."""
    crowd = Keyed(64, ca="the CA of eve", clock=time.time)
    credentials = {id: crowd.credential(id) for id in crowd.ids}

    async def scene(made: Scene) -> None:
        before = await made.record()
        assert made.eve.membership.verifier
        made.eve.membership.verifier.serve = lambda ids: [  # type: ignore[method-assign]
            credentials[id] for id in ids if id in credentials
        ]
        keys: dict[str, Signed] = {id: crowd.sign(id) for id in crowd.ids}
        real = [keys[id].sign(Member(id, "x", "127.0.0.1:9", incarnation=1, round=1 << 52)) for id in crowd.ids]
        rest = [replace(real[0], id=f"{n:032x}") for n in range(INVENTED - len(real))]
        await made.eve.tell(made.both, *real, *rest)
        await asyncio.sleep(2)  # for the victims to fetch what they want
        await made.eve.tell(made.both, *real[1:])
        assert not await made.moved(before)
        met = [len(await made.eve.view(address)) - 3 for address in made.both]
        assert met == [0, 0]
        figure(
            f"{INVENTED:,} invented members, {made.trust}",
            "view full, 0 models exchanged",
            f"{sum(met)} of {INVENTED:,} met",
        )

    attack(scene)


def test_records_from_before_a_restart_can_be_repeated_without_harm(attack: Attack, figure: Figure) -> None:
    async def scene(made: Scene) -> None:
        alive = await made.record()
        made.victim.popen.send_signal(signal.SIGTERM)
        assert made.victim.wait() == 0
        view = await made.until(lambda view: view[alive.id].state is State.LEFT)
        gone = view[alive.id]
        made.victim = bootstrap(made.start, "victim", "--peer-seed", made.witness.address)
        view = await made.until(
            lambda view: view[alive.id].state is State.ALIVE and view[alive.id].address == made.victim.address
        )
        now = view[alive.id]
        assert now.incarnation > gone.incarnation
        replays = (gone, alive, replace(alive, state=State.DEAD), replace(alive, state=State.SUSPECT))
        evicted = 0
        for replay in replays:
            await made.eve.tell(made.both, replay)
            evicted += await made.moved(now)
            assert evicted == 0, replay
        assert "is forged" not in made.witness.output
        figure(
            f"records from before a restart, repeated, {made.trust}",
            "evicted",
            f"evicted by {evicted} of {len(replays)}",
        )

    attack(scene)


def test_a_false_death_is_refuted_before_it_is_believed(attack: Attack, figure: Figure) -> None:
    async def scene(made: Scene) -> None:
        before = await made.record()
        took = []
        for _ in range(5):
            now = await made.record()
            began = time.perf_counter()
            await made.eve.tell([made.witness.address], replace(now, state=State.DEAD, seal=None))
            assert (await made.record()).state.present
            await made.until(lambda view, now=now: view[before.id].incarnation > now.incarnation)  # type: ignore[misc]
            took.append(time.perf_counter() - began)
            assert (await made.record()).state is State.ALIVE
        died = made.witness.output.count('"died"')
        assert died == 0
        figure(
            f"5 false deaths, {made.trust}",
            "evicted until it refutes",
            f"{died} evictions, refuted after {max(took):.1f} s at most",
        )

    attack(scene)


def test_thousands_of_opinions_about_a_member_cost_one_refutation(attack: Attack, figure: Figure) -> None:
    async def scene(made: Scene) -> None:
        before = await made.record()
        lies = [replace(before, state=State.SUSPECT, round=n, seal=None) for n in range(12_000)]
        began = time.perf_counter()
        await made.eve.gossip(made.victim.address, *lies[:6000])
        await made.eve.gossip(made.victim.address, *lies[6000:])
        await made.eve.view(made.victim.address)
        took = time.perf_counter() - began
        mine = (await made.eve.view(made.victim.address))[before.id]
        assert mine.incarnation <= before.incarnation + 2
        figure(
            f"12,000 opinions about a member, {made.trust}",
            "loop frozen for 114 s",
            f"{1000 * took:.0f} ms in all",
        )

    attack(scene)


def test_a_revoked_member_stays_out(attack: Attack, figure: Figure) -> None:
    """Its own signature is genuine, and another member passes it on."""

    async def scene(made: Scene) -> None:
        thief = Signed(IdentityKeys(made.places.tls("absent").trust))
        record = thief.sign(Member(made.places.ids["absent"], "absent", "127.0.0.1:9", incarnation=1))
        for name in ("victim", "witness"):
            (made.places.path / name / "revoked").write_text(f"{record.id}\n")
        await asyncio.sleep(2.5)  # the list is read once a second
        await made.eve.tell(made.both, record)
        lists = [record.id in await made.eve.view(address) for address in made.both]
        assert lists == [False, False]
        assert "is forged" not in made.witness.output
        figure(
            f"a revoked member, passed on by another, {made.trust}",
            "listed",
            f"listed by {sum(lists)} of {len(lists)}",
        )

    attack(scene)


@pytest.mark.parametrize("ca", [True, False], ids=["ca", "pinned"])
def test_a_swarm_with_tls_trains_on_after_thousands_of_invented_members(
    tmp_path: Path, figure: Figure, ca: bool
) -> None:
    places = Directories(tmp_path, ("ann", "bob", "carl", "eve"), ca=ca)

    async def scene(town: Town) -> None:
        facts = {"policy": {"name": "el"}, "tls": {"on": True}}
        ann = await town.runs("ann", **facts)
        bob = await town.runs("bob", **facts, peer_seed=[ann.address])
        await bob.until(lambda: bob.node.host.received)
        usual = await bob.rounds_per_second()
        async with forger(places.tls("eve"), ann.address) as eve:
            one = eve.forge(eve.me, round=1 << 52)
            crowd = [replace(one, id=f"{n:032x}", address=f"127.0.0.1:{1 + n % 60000}") for n in range(INVENTED)]
            await eve.tell([ann.address, bob.address], *crowd)
            before, first = sum(bob.node.host.received.values()), bob.round
            now = await bob.rounds_per_second()
            assert len(bob.node.peers()) <= 2
            came, done = sum(bob.node.host.received.values()) - before, bob.round - first
            assert came >= 10
            later = await bob.rounds_per_second()
            assert later > 3 * now  # eve, who sends no models, is not awaited any more
            carl = await town.runs("carl", **facts, peer_seed=[ann.address])
            await carl.trains()
            assert carl.round < bob.round + 1000
        figure(
            f"the same Sync, real nodes, {'CA' if ca else 'pinned ids'}",
            "3 of 52 rounds/s, 0 models",
            f"{came} models in {done} rounds; {now:.0f} rounds/s at first, then {later:.0f} of {usual:.0f}",
        )

    play(tmp_path, scene)
