from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.errors import TaskError
from pfl_node.learning.train_options import BUILT_IN, Options, check_defaults, resolve
from pfl_node.learning.training_loop import batches


def options(**more: Any) -> Options:
    return resolve([more, BUILT_IN])


def sizes(samples: int, *, single: bool = True, **more: Any) -> list[int]:
    return [len(b) for b in batches(samples, options(**more), 0, single=single)]


def test_by_epochs_the_last_smaller_batch_is_kept() -> None:
    assert sizes(20, batch=8, epochs=2) == [8, 8, 4, 8, 8, 4]


def test_by_steps_all_batches_are_full() -> None:
    assert sizes(20, batch=8, steps=5) == [8, 8, 8, 8, 8]


def test_a_batch_larger_than_the_data_is_the_data() -> None:
    assert sizes(5, batch=8, epochs=2) == [5, 5]
    assert sizes(5, batch=8, steps=3) == [5, 5, 5]


def test_a_fraction_of_an_epoch_is_at_least_one_batch() -> None:
    assert sizes(40, batch=8, epochs=0.4) == [8, 8]
    assert sizes(40, batch=8, epochs=0.01) == [8]
    assert sizes(40, batch=8, epochs=1.2) == [8] * 6


def test_a_lone_last_sample_is_left_out_where_it_cannot_be_used() -> None:
    assert sizes(17, batch=8, epochs=2, single=False) == [8, 8, 8, 8]
    assert sizes(3, batch=1, epochs=1, single=False) == [1, 1, 1]
    assert sizes(1, batch=8, epochs=1, single=False) == [1]


@given(st.integers(1, 50), st.integers(1, 12), st.integers(1, 3), st.integers(0, 2**70))
def test_every_epoch_sees_every_sample_once(samples: int, batch: int, epochs: int, seed: int) -> None:
    seen = [int(i) for b in batches(samples, options(batch=batch, epochs=epochs), seed) for i in b]
    for e in range(epochs):
        assert sorted(seen[e * samples : (e + 1) * samples]) == list(range(samples))


@given(st.integers(2, 50), st.integers(1, 12), st.integers(1, 20), st.integers(0, 2**70))
def test_the_same_seed_gives_the_same_batches(samples: int, batch: int, steps: int, seed: int) -> None:
    first, second = (
        [b.tolist() for b in batches(samples, options(batch=batch, steps=steps), seed)] for _ in range(2)
    )
    assert first == second


def test_another_seed_gives_other_batches() -> None:
    first, second = ([b.tolist() for b in batches(50, options(), seed)] for seed in (1, 2))
    assert first != second


def test_the_first_level_that_names_an_option_decides_it() -> None:
    chosen = resolve(
        [{"lr": None}, {"lr": 0.2, "batch": 4}, {"lr": 0.3, "batch": 16, "optimizer": "adam"}, BUILT_IN]
    )
    assert (chosen.lr, chosen.batch, chosen.optimizer, chosen.epochs) == (0.2, 4, "adam", 1.0)


@pytest.mark.parametrize(
    ("levels", "epochs", "steps"),
    [
        ([{}, {}, {}], 1.0, None),
        ([{}, {}, {"epochs": 3, "steps": 5}], 3, 5),  # steps wins over epochs at the same level
        ([{}, {"epochs": 2}, {"steps": 5}], 2, None),  # and a nearer level over both
        ([{"steps": 7}, {"epochs": 2}, {}], 2, 7),
        ([{"epochs": 4}, {"steps": 7}, {"steps": 5}], 4, None),
    ],
)
def test_epochs_and_steps_are_decided_together(
    levels: list[dict[str, Any]], epochs: float, steps: int | None
) -> None:
    chosen = resolve([*levels, BUILT_IN])
    assert (chosen.epochs, chosen.steps) == (epochs, steps)


@pytest.mark.parametrize(
    ("defaults", "text"),
    [
        ({"learning_rate": 1}, "no option 'learning_rate'"),
        ({"optimiser": "sgd"}, "did you mean 'optimizer'?"),
        ({"init": "common"}, "no option 'init'"),
        ({"lr": -1}, "lr = -1"),
        ({"optimizer": "my lion"}, "optimizer = 'my lion'"),
    ],
)
def test_a_mistake_in_a_tasks_training_values_is_named(defaults: dict[str, Any], text: str) -> None:
    with pytest.raises(TaskError) as error:
        check_defaults("mine", defaults)
    assert text in str(error.value)
    assert "\n" not in str(error.value)
