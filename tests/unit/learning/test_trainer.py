from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable

import pytest

from pfl_node.learning.trainer import Between, TrainerThread
from pfl_node.model import Model
from pfl_node.types import Eval
from tests.unit.learning.nets import learner, with_dropout

EARLIER = weakref.WeakSet[threading.Thread]()  # of trainers that tests of other modules have not closed


@pytest.fixture(autouse=True)
def only_own_threads() -> None:
    EARLIER.update(threading.enumerate())


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "trainer" and t not in EARLIER]


class Batches:
    """A long job that goes on by one batch for each word it is given."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.done = 0
        self.started = threading.Event()
        self.turn = threading.Semaphore(0)

    def __call__(self, between: Between) -> int:
        self.started.set()
        for _ in range(self.n):
            self.turn.acquire()
            self.done += 1
            between()
        return self.done

    async def running(self) -> None:
        await asyncio.to_thread(self.started.wait)

    def go_on(self, n: int = 1) -> None:
        self.turn.release(n)


def test_a_job_runs_in_the_trainers_thread_and_its_result_comes_back() -> None:
    async def story() -> None:
        trainer = TrainerThread()
        assert threads() == []
        assert await trainer.do(lambda _: threading.current_thread().name) == "trainer"
        assert await trainer.soon(lambda: threading.current_thread().name) == "trainer"
        assert threads() == ["trainer"]
        await trainer.close()
        assert threads() == []

    asyncio.run(story())


def test_jobs_are_served_in_the_order_they_came() -> None:
    async def story() -> list[int]:
        trainer, seen, first = TrainerThread(), list[int](), Batches(1)
        held = asyncio.create_task(trainer.do(first))
        await first.running()
        rest = [asyncio.create_task(trainer.do(lambda _, n=n: seen.append(n))) for n in range(5)]  # type: ignore[misc]
        await asyncio.sleep(0)
        first.go_on()
        await asyncio.gather(held, *rest)
        await trainer.close()
        return seen

    assert asyncio.run(story()) == [0, 1, 2, 3, 4]


def test_urgent_work_overtakes_waiting_jobs_and_runs_after_one_batch_of_the_running_one() -> None:
    async def story() -> None:
        trainer, long = TrainerThread(), Batches(100)
        job = asyncio.create_task(trainer.do(long))
        waiting = asyncio.create_task(trainer.do(lambda _: "later"))
        await long.running()
        urgent = asyncio.create_task(trainer.soon(lambda: long.done))
        await asyncio.sleep(0)
        long.go_on(1)
        assert await urgent == 1
        assert not job.done()
        assert not waiting.done()
        long.go_on(99)
        assert (await job, await waiting) == (100, "later")
        await trainer.close()

    asyncio.run(story())


def test_urgent_work_without_end_does_not_keep_jobs_from_running() -> None:
    async def story() -> None:
        trainer, busy = TrainerThread(), True

        async def ask_again_and_again() -> None:
            while busy:
                await trainer.soon(lambda: None)

        asking = [asyncio.create_task(ask_again_and_again()) for _ in range(5)]
        await asyncio.sleep(0)
        job = Batches(50)
        job.go_on(50)
        assert await trainer.do(job) == 50
        busy = False
        await asyncio.gather(*asking)
        await trainer.close()

    asyncio.run(story())


@pytest.mark.parametrize("error", [ValueError("no"), KeyError("x"), StopIteration("end")])
def test_an_error_goes_to_whoever_asked_and_the_trainer_goes_on(error: Exception) -> None:
    def fail() -> None:
        raise error

    async def story() -> None:
        trainer = TrainerThread()
        with pytest.raises((type(error), RuntimeError)):
            await trainer.do(lambda _: fail())
        with pytest.raises((type(error), RuntimeError)):
            await trainer.soon(fail)
        assert await trainer.do(lambda _: 1) == 1
        await trainer.close()

    asyncio.run(story())


def test_an_error_of_urgent_work_does_not_touch_the_job_around_it() -> None:
    def fail() -> None:
        raise ValueError("urgent")

    async def story() -> None:
        trainer, long = TrainerThread(), Batches(2)
        job = asyncio.create_task(trainer.do(long))
        await long.running()
        urgent = asyncio.create_task(trainer.soon(fail))
        await asyncio.sleep(0)
        long.go_on(2)
        with pytest.raises(ValueError, match="urgent"):
            await urgent
        assert await job == 2
        await trainer.close()

    asyncio.run(story())


def test_a_cancelled_job_stops_after_its_batch() -> None:
    async def story() -> None:
        trainer, long = TrainerThread(), Batches(100)
        job = asyncio.create_task(trainer.do(long))
        await long.running()
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        long.go_on(100)
        assert await trainer.do(lambda _: "next") == "next"
        assert long.done == 1
        await trainer.close()

    asyncio.run(story())


def test_work_that_is_cancelled_while_it_waits_never_runs() -> None:
    async def story() -> None:
        trainer, long, ran = TrainerThread(), Batches(1), list[str]()
        job = asyncio.create_task(trainer.do(long))
        await long.running()
        later = asyncio.create_task(trainer.do(lambda _: ran.append("job")))
        urgent = asyncio.create_task(trainer.soon(lambda: ran.append("urgent")))
        await asyncio.sleep(0)
        later.cancel()
        urgent.cancel()
        await asyncio.gather(later, urgent, return_exceptions=True)
        long.go_on()
        await job
        await trainer.do(lambda _: None)
        assert ran == []
        await trainer.close()

    asyncio.run(story())


def test_a_job_cannot_hold_on_to_its_thread_by_catching_exceptions() -> None:
    def stubborn(between: Between) -> None:
        while True:
            try:
                between()
            except Exception:
                continue

    async def story() -> None:
        trainer = TrainerThread()
        job = asyncio.create_task(trainer.do(stubborn))
        await asyncio.sleep(0)
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        assert await trainer.do(lambda _: 1) == 1
        await trainer.close()

    asyncio.run(story())


def test_closing_stops_what_runs_cancels_what_waits_and_leaves_no_thread() -> None:
    async def story() -> None:
        trainer, long = TrainerThread(), Batches(100)
        work = [
            asyncio.create_task(trainer.do(long)),
            asyncio.create_task(trainer.do(lambda _: None)),
            asyncio.create_task(trainer.soon(lambda: None)),
        ]
        await long.running()
        closing = asyncio.create_task(trainer.close())
        again = asyncio.create_task(trainer.close())
        await asyncio.sleep(0)
        long.go_on(100)
        await asyncio.gather(closing, again)
        results = await asyncio.gather(*work, return_exceptions=True)
        assert isinstance(results[0], asyncio.CancelledError)
        assert isinstance(results[1], asyncio.CancelledError)
        assert long.done == 1
        assert threads() == []
        with pytest.raises(RuntimeError, match="closed"):
            await trainer.do(lambda _: None)

    asyncio.run(story())


def test_closing_a_trainer_that_never_worked_is_nothing() -> None:
    async def story() -> None:
        trainer = TrainerThread()
        await trainer.close()
        await trainer.close()

    asyncio.run(story())
    assert threads() == []


def test_a_trainer_outlives_a_loop_that_went_away() -> None:
    trainer, long = TrainerThread(), Batches(1)

    async def leave() -> None:
        job = asyncio.create_task(trainer.do(long))
        await long.running()
        job.cancel()

    async def come_back() -> int:
        long.go_on()
        answer = await trainer.do(lambda _: 3)
        await trainer.close()
        return answer

    asyncio.run(leave())
    assert asyncio.run(come_back()) == 3
    assert threads() == []


def test_a_result_is_not_kept_once_it_was_given() -> None:
    class Big:
        pass

    async def story() -> None:
        trainer = TrainerThread()
        given = weakref.ref(await trainer.do(lambda _: Big()))
        await trainer.soon(lambda: None)
        assert given() is None
        await trainer.close()

    gc.disable()
    try:
        asyncio.run(story())
    finally:
        gc.enable()


def test_many_nodes_share_one_thread() -> None:
    async def story() -> None:
        trainer = TrainerThread()
        names: list[Callable[[Between], str]] = [lambda _: threading.current_thread().name] * 50
        assert set(await asyncio.gather(*(trainer.do(job) for job in names))) == {"trainer"}
        assert threads() == ["trainer"]
        await trainer.close()

    asyncio.run(story())


def test_a_peers_evaluation_between_two_batches_changes_neither_it_nor_the_training() -> None:
    me = learner(with_dropout)
    start = me.fresh(0)
    trained, (scored,) = me.train(start, seed=1), me.score([start])

    async def story() -> None:
        trainer, asked = TrainerThread(), list[asyncio.Future[tuple[Eval, ...]]]()
        loop = asyncio.get_running_loop()

        def job(between: Between) -> Model:
            def ask_and_wait_until_it_is_handed_in() -> None:
                handed_in = threading.Event()
                loop.call_soon_threadsafe(ask, handed_in)
                handed_in.wait()
                between()

            return me.train(start, seed=1, between=ask_and_wait_until_it_is_handed_in)

        def ask(handed_in: threading.Event) -> None:
            asked.append(asyncio.ensure_future(trainer.soon(lambda: me.score([start]))))
            loop.call_soon(handed_in.set)

        assert await trainer.do(job) == trained
        assert [await a for a in asked] == [(scored,)] * 5
        await trainer.close()

    asyncio.run(story())
