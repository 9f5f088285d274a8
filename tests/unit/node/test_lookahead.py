"""Which model a training starts away from (`train.lookahead`)."""

from __future__ import annotations

import numpy as np

from pfl_node.model import Model
from pfl_node.node.lookahead import Lookahead
from pfl_node.steps import Average, Train
from pfl_node.store.policy_state import freeze, thaw
from tests.toy import LAYOUT, constant


def mixed(core: float, head: float) -> Model:
    return constant(core).core + constant(head).head


def test_a_training_of_an_average_starts_away_from_my_model_in_it() -> None:
    ahead = Lookahead(0.5)
    ahead.averaged(3, Average(constant(1), [constant(3)]), constant(2))
    assert ahead.past(Train(constant(2))) == constant(1)


def test_a_training_of_another_model_starts_at_that_model() -> None:
    ahead = Lookahead(0.5)
    ahead.averaged(3, Average(constant(1), [constant(3)]), constant(2))
    assert ahead.past(Train(constant(5))) is None


def test_an_average_is_found_in_the_core_or_the_head_of_what_is_trained() -> None:
    ahead = Lookahead(0.5)
    ahead.averaged(0, Average(constant(1).core, [constant(3).core]), constant(2).core)
    assert ahead.past(Train(mixed(2, 7))) == mixed(1, 7)
    ahead.averaged(0, Average(constant(4).head, [constant(8).head]), constant(6).head)
    ahead.averaged(0, Average(constant(5).head, [constant(9).head]), constant(7).head)  # of another cluster
    assert ahead.past(Train(mixed(2, 7))) == mixed(1, 5)
    assert ahead.past(Train(mixed(9, 6))) == mixed(9, 4)


def test_where_my_model_has_no_weight_the_one_that_i_trained_counts_if_it_is_among_the_others() -> None:
    """fedavg averages the models of the round's clients, without the model from before."""
    ahead = Lookahead(0.5)
    ahead.trained(constant(5))
    ahead.averaged(0, Average(constant(1), [constant(3), constant(4)], own=0), constant(2))
    assert ahead.past(Train(constant(2))) is None  # I was not one of them
    ahead.averaged(0, Average(constant(1), [constant(3), constant(5)], own=0), constant(2))
    assert ahead.past(Train(constant(2))) == constant(5)


def test_a_corrected_training_starts_where_the_policy_says() -> None:
    ahead = Lookahead(0.5)
    ahead.averaged(3, Average(constant(1), [constant(3)]), constant(2))
    assert ahead.past(Train(constant(2), correction=constant(0))) is None


def test_a_running_mean_is_kept_once_and_what_is_no_model_not_at_all() -> None:
    ahead, running = Lookahead(0.5), constant(0)
    for i in range(1, 100):
        ahead.averaged(0, Average(running, [constant(5)], own=float(i)), after := constant(i))
        running = after
    ahead.averaged(0, Average(constant(1), [constant(3)], gated=False), constant(2))
    kept = ahead.dump()
    assert kept is not None
    assert [answer for _, _, answer in kept["averages"]] == [running]
    assert ahead.past(Train(running)) == constant(98)


def test_averages_are_forgotten_after_a_round() -> None:
    ahead = Lookahead(0.5)
    ahead.averaged(0, Average(constant(1), [constant(3)]), constant(2))
    ahead.averaged(1, Average(constant(10), [constant(30)]), constant(20))
    assert ahead.past(Train(constant(2))) == constant(1)
    ahead.averaged(2, Average(constant(10), [constant(30)]), constant(20))
    assert ahead.past(Train(constant(2))) is None


def test_the_state_survives_a_checkpoint() -> None:
    ahead, again = Lookahead(0.5), Lookahead(0.5)
    ahead.trained(constant(5))
    ahead.averaged(3, Average(constant(1), [constant(3)]), constant(2))
    again.load(thaw(*freeze(ahead.dump()), LAYOUT))
    assert again.past(Train(constant(2))) == constant(1)
    again.averaged(4, Average(constant(1), [constant(5)], own=0), constant(8))
    assert again.past(Train(constant(8))) == constant(5)
    assert np.array_equal(again.dump()["trained"].vector, constant(5).vector)  # type: ignore[index]


def test_switched_off_it_remembers_nothing() -> None:
    off = Lookahead(0.0)
    off.trained(constant(5))
    off.averaged(3, Average(constant(1), [constant(3)]), constant(2))
    assert off.past(Train(constant(2))) is None
    assert off.dump() is None
    off.load({"averages": [], "trained": constant(1)})
    assert off.dump() is None
