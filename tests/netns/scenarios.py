"""What is done to the swarm in the lab, and what is found: cold start, partition, many killed at once, churn."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from math import inf
from random import Random
from statistics import median

from tests.netns import log_analysis
from tests.netns.expectations import Figures, Wishes
from tests.netns.log_analysis import Round
from tests.netns.netns_lab import Host, Lab
from tests.netns.swarm import Swarm

PATIENCE = 900.0
DEADLINE = 10.0 + 1.0  # seconds: the nodes' `round.patience`, and what they do besides waiting on a busy machine
LAST = 3  # rounds that everybody does after the last kill, so that a last accuracy is one of a member
KILLS = 3  # of the first scene, one after the other


Make = Callable[[str], Lab]


def _weather(lab: Lab, wishes: Wishes, figures: Figures) -> None:
    lab.weather(wishes.delay / 1e3, wishes.jitter / 1e3, wishes.loss / 100)
    kind = "light members" if wishes.light else f"nodes, {wishes.policy}"
    by = "netem" if lab.netem else "the router"
    figures.add(
        "swarm", f"{wishes.nodes} {kind}; each way {wishes.delay:g} ms, loss {wishes.loss:g} %, by {by}; "
        f"load at the start {os.getloadavg()[0]:.1f}",
    )  # fmt: skip


def _under_way(lab: Lab, wishes: Wishes, figures: Figures, rounds: int | None = None) -> Swarm:
    """Everybody knows everybody, and has done a round."""
    _weather(lab, wishes, figures)
    swarm = Swarm(lab, wishes, rounds=rounds)
    swarm.full_views(swarm.start_all(), PATIENCE)
    if not wishes.light:
        swarm.until(lambda: all(swarm.journal(h) for h in lab.hosts), PATIENCE, "everybody did a round")
    return swarm


def _false_deaths(swarm: Swarm, figures: Figures) -> None:
    found = swarm.deaths()
    for row in found.false[:5]:
        print(f"  {row.by} said at {row.time:.1f} that {row.about} is dead", flush=True)
    figures.at_most("false deaths", len(found.false), 0, "")
    figures.add("  true ones told, late ones, suspicions", f"{found.true}, {found.late}, {swarm.suspicions()}")


def views(wishes: Wishes, figures: Figures, make: Make) -> None:
    """Cold start, a quiet while, kills."""
    with make("views") as lab:
        _weather(lab, wishes, figures)
        swarm = Swarm(lab, wishes)
        began = swarm.start_all()
        figures.add("all processes started after, s", time.time() - began)
        full = swarm.full_views(began, PATIENCE)
        if wishes.light:
            figures.at_most("from the first start to full views everywhere", full, 20)
        else:
            last = max(row.time for row in swarm.said() if row.what == "joined") if swarm.said() else inf
            figures.add("from the first start to full views, s", full)
            came = _last_join(swarm, lab.hosts)
            figures.at_most("from the last join to full views", max(0.0, last - came), 20)
        time.sleep(wishes.watch)
        for host in Random(wishes.seed).sample(lab.hosts, KILLS):
            _kill_and_look(swarm, lab, host, figures)
        _false_deaths(swarm, figures)
        figures.add("router", str(lab.order(do="figures")))


def _last_join(swarm: Swarm, hosts: Sequence[Host]) -> float:
    """When the last host was first heard of by anybody."""
    first: dict[str, float] = {}
    for row in swarm.said():
        if row.what == "joined":
            first.setdefault(row.about, row.time)
    return max((first.get(host.address, inf) for host in hosts), default=inf)


def _kill_and_look(swarm: Swarm, lab: Lab, host: Host, figures: Figures) -> None:
    when = time.time()
    lab.kill(host)
    others = [h.address for h in lab.hosts if h.process]

    def found() -> dict[str, float]:
        return log_analysis.noticed(swarm.said(), host.address, when, others)

    swarm.until(lambda: max(found().values()) < inf, 120, f"all know that {host.name} is dead")
    after = found().values()
    figures.add(
        "kill -9 seen by the first and by half of the others after, s", f"{min(after):.1f}, {median(after):.1f}"
    )
    figures.at_most("  by all", max(after), 15)


def partition(wishes: Wishes, figures: Figures, make: Make) -> None:
    """A fifth on one side, the rest on the other; then it is healed."""
    with make("partition") as lab:
        swarm = _under_way(lab, wishes, figures)
        few = lab.hosts[::5]
        rest = [host for host in lab.hosts if host not in few]
        parted = time.time()
        lab.split(few, rest)
        time.sleep(wishes.parted)
        healed = time.time()
        lab.heal()
        swarm.until(lambda: swarm.complete(healed) < inf, 300, "the halves are one again")
        figures.at_most(
            f"{len(few)}|{len(rest)} for {healed - parted:.0f} s: full views after it ended",
            swarm.complete(healed),
            10,
        )
        _parted_views(swarm, figures, healed, few, rest)
        if wishes.light:
            return
        for side, name in ((few, "few"), (rest, "many")):
            done = [sum(parted < r.ended < healed for r in swarm.journal(h)) for h in side]
            figures.add(
                f"rounds of the {name} meanwhile, least and median",
                f"{min(done)}, {median(done):g}",
                ">= 1",
                min(done) >= 1,
            )
        time.sleep(15)
        after = [sum(r.ended > healed for r in swarm.journal(h)) for h in lab.hosts]
        figures.add(
            "rounds after it, least and median", f"{min(after)}, {median(after):g}", ">= 1", min(after) >= 1
        )
        codes = swarm.stop()
        figures.add("exit codes", str(sorted(set(codes))), "[0]", not any(codes))


def _parted_views(
    swarm: Swarm, figures: Figures, healed: float, few: Sequence[Host], rest: Sequence[Host]
) -> None:
    then = log_analysis.views(swarm.said(), healed)
    sides = [{h.address for h in side} for side in (few, rest)]
    wrong = sum(len((side - {me}) - then.get(me, set())) for side in sides for me in side)
    figures.at_most("members that somebody of their own side took for dead", wrong, 0, "")
    across = sum(len(then.get(me, set()) - side) for side in sides for me in side)
    figures.add("members of the other side that somebody still believed in when it ended", across)


def kill(wishes: Wishes, figures: Figures, make: Make) -> None:
    """30 % of the nodes at once; the rest finish."""
    with make("kill") as lab:
        swarm = _under_way(lab, wishes, figures, wishes.rounds)
        victims = Random(wishes.seed).sample(lab.hosts, round(0.3 * wishes.nodes))
        when = time.time()
        for host in victims:
            lab.kill(host)
        rest = [host for host in lab.hosts if host not in victims]
        here = [h.address for h in rest]
        codes = [lab.ended(host, PATIENCE) for host in rest]
        seen = [max(log_analysis.noticed(swarm.said(), v.address, when, here).values()) for v in victims]
        figures.add(f"{len(victims)} of {wishes.nodes} killed at once: all seen by all after, s", max(seen))
        done = [swarm.journal(host) for host in rest]
        finished = sum(bool(rounds) and rounds[-1].number == wishes.rounds - 1 for rounds in done)
        figures.add(
            "of the rest finished",
            f"{finished} of {len(rest)}",
            f"{len(rest)}",
            finished == len(rest) and not any(codes),
        )
        _longest([r for rounds in done for r in rounds], wishes, figures, "the longest round of the rest")
        figures.add("mean test accuracy of the rest, %", 100 * swarm.accuracy(rest))
        _false_deaths(swarm, figures)


def churn(wishes: Wishes, figures: Figures, make: Make) -> None:
    """One is killed every few seconds and started again; then the same run undisturbed, for as many rounds."""
    with make("churn") as lab:
        swarm = _under_way(lab, wishes, figures)
        kills = _churn(swarm, lab, wishes)
        figures.add("killed and started again", f"{kills} times in {wishes.seconds:.0f} s")
        end = time.time()
        swarm.until(lambda: swarm.complete(end) < inf, 300, "everybody is back")
        figures.add("all back and known to all after the last kill, s", swarm.complete(end))
        _false_deaths(swarm, figures)
        if wishes.light:
            return
        swarm.until(lambda: all(_since(swarm, h, end) >= LAST for h in lab.hosts), PATIENCE, "all go on")
        codes = swarm.stop()
        figures.add("exit codes at the end", str(sorted(set(codes))), "[0]", not any(codes))
        every = {host.name: swarm.journal(host) for host in lab.hosts}
        _longest(
            [r for rounds in every.values() for r in rounds], wishes, figures, "the longest round of any life"
        )
        reached = [rounds[-1].number + 1 for rounds in every.values()]
        figures.add("rounds reached, least, median, most", f"{min(reached)}, {median(reached):g}, {max(reached)}")
        disturbed = 100 * swarm.accuracy()
    _undisturbed(wishes, figures, make, int(median(reached)), disturbed)


def _churn(swarm: Swarm, lab: Lab, wishes: Wishes) -> int:
    """Everybody's turn comes, in an order of chance. Who was killed is started again after a while."""
    rng, kills = Random(wishes.seed), 0
    queue: list[Host] = []
    down: list[tuple[float, Host]] = []
    begun = time.monotonic()
    while (now := time.monotonic()) < begun + wishes.seconds or down:
        if down and down[0][0] <= now:
            swarm.start(down.pop(0)[1])
        elif now >= begun + wishes.every * kills and now < begun + wishes.seconds:
            queue = queue or rng.sample(lab.hosts, len(lab.hosts))
            host = queue.pop()
            if not lab.running(host):
                print(f"{host.name} has ended by itself, with exit code {lab.ended(host)}", flush=True)
            else:
                lab.kill(host)
            down.append((now + wishes.down, host))
            kills += 1
        else:
            time.sleep(0.05)
    return kills


def _since(swarm: Swarm, host: Host, when: float) -> int:
    """Rounds."""
    return sum(r.ended > when for r in swarm.journal(host))


def _undisturbed(wishes: Wishes, figures: Figures, make: Make, rounds: int, disturbed: float) -> None:
    with make("undisturbed") as lab:
        swarm = Swarm(lab, wishes, rounds=rounds)
        swarm.start_all()
        for host in lab.hosts:
            lab.ended(host, PATIENCE * 2)
        alone = 100 * swarm.accuracy()
        _longest(
            [r for h in lab.hosts for r in swarm.journal(h)],
            wishes,
            figures,
            f"undisturbed, {rounds} rounds: the longest",
        )
    figures.add("mean test accuracy, undisturbed and disturbed, %", f"{alone:.1f}, {disturbed:.1f}")
    figures.at_most("  lost by it", round(alone - disturbed, 2), 1, "points")


def _longest(rounds: Sequence[Round], wishes: Wishes, figures: Figures, what: str) -> None:
    seconds = sorted(r.seconds for r in rounds)
    if not seconds:
        figures.add(what, "no round at all", "some", False)
        return
    figures.add(f"{what}, and the median, s", f"{seconds[-1]:.1f}, {median(seconds):.1f}")
    if wishes.policy == "el":  # in gossip a round is as long as chance has it: nobody waits for a certain peer
        figures.at_most(
            "  the longest without its learning", max(r.seconds - r.learning for r in rounds), DEADLINE
        )


SCENES: dict[str, Callable[[Wishes, Figures, Make], None]] = {
    "views": views,
    "partition": partition,
    "kill": kill,
    "churn": churn,
}
