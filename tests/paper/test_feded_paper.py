"""`feded` against Eriksson 2022, "Weighted Ensemble Distillation in Federated Learning with Non-IID Data":
Algorithm 2 and sections 2.4, 3.1 and 3.4. Each test quotes its source. The formulas of the weights are tested in
`tests/unit/policies/test_ensemble.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from pfl_node import predictions
from pfl_node.errors import ConfigError
from pfl_node.learning.distill import LOSSES
from pfl_node.model import Model
from pfl_node.policies.feded import FedEd
from pfl_node.steps import (
    Distill,
    Fresh,
    Gather,
    Linger,
    Peers,
    Predict,
    Publish,
    Report,
    Score,
    Send,
    Step,
    Train,
)
from pfl_node.types import Eval, Offer, PeerId
from tests.drive_policy import A, B, Hand, make, model, said
from tests.unit.learning.nets import student

OUTPUTS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 1.0, -3.0]])  # of a student, for two samples
TEACHER = torch.tensor([[0.6, 0.4, 0.0], [0.1, 0.3, 0.6]])
MINE = said(1.0, 0.5, novelty=[0.1, 0.2], counts=[5, 5])


def told(sender: PeerId, words: Model, samples: int = 1, round: int = 0) -> Offer:
    return Offer(sender, words, round, samples=samples)


def played(
    *offers: Offer, peers: tuple[PeerId, ...] = (A, B), samples: int = 1, **knobs: Any
) -> tuple[FedEd, Hand]:
    """One round that receives `offers`."""
    policy, hand = make(FedEd, rounds=1, samples=samples, **knobs), Hand(peers)
    hand.answers[Predict] = lambda _: MINE
    hand.answers[Gather] = lambda _: offers
    hand.run(policy.main())
    return policy, hand


def taught(hand: Hand) -> list[float]:
    """The teacher's output for the first class."""
    return [round(float(p), 4) for p in predictions.outputs(hand.all(Distill)[0].teacher)[:, 0]]


# -- Algorithm 2 -------------------------------------------------------------------------------------------------


def test_a_round_is_local_training_then_predictions_then_a_teacher_then_a_student() -> None:
    """2.4.1: "letting each client train a local model [...] then generate predictions z_k on the unlabeled
    auxiliary dataset [...] aggregated [...] to form the teacher predictions z_T, which are used as targets to
    train a student model"."""
    _, hand = played()
    kinds: tuple[type[Step[Any]], ...] = (Train, Predict, Send, Gather, Distill, Report, Linger)
    assert [type(s) for s in hand.asked if isinstance(s, kinds)][:4] == [Train, Predict, Send, Gather]
    assert [type(s) for s in hand.asked if isinstance(s, kinds)][-3:] == [Distill, Report, Linger]


def test_the_local_model_is_trained_for_twenty_epochs() -> None:
    """3.4: "The number of local epochs was set to E = 20 for all distillation experiments"."""
    _, hand = played()
    assert hand.all(Train) == [Train(model(0), epochs=20)]


def test_only_predictions_leave_a_node() -> None:
    """2.4.2: "the only information leaving the clients is the softmax output on the auxiliary dataset"; with w1
    and w2 also the values for these weights."""
    policy, hand = played()
    assert policy.takes == ("predictions",)
    assert all(s.model == MINE for s in hand.all(Send))
    assert [s.model for s in hand.all(Publish)] == [MINE]


@pytest.mark.parametrize(("how", "novelty", "counts"), [("w0", 0, False), ("w1", 0, True), ("w2", 30, False)])
def test_a_node_tells_of_its_data_only_what_the_weights_need(how: str, novelty: int, counts: bool) -> None:
    """3.1: with w2 "local data sizes or class distributions do not have to be shared directly"."""
    _, hand = played(weights=how)
    assert hand.all(Predict) == [Predict(model(1), novelty=novelty, counts=counts)]


def test_everybody_sends_to_everybody_as_there_is_no_server() -> None:
    """ "aggregated at the central server"; here at every node."""
    _, hand = played(told(A, MINE), told(B, MINE))
    send = hand.all(Send)[0]
    assert (set(send.to), send.round) == ({A, B}, 0)
    assert set(hand.all(Gather)[0].peers) == {A, B}


def test_the_student_is_a_new_model_that_is_the_same_everywhere() -> None:
    """Algorithm 2: f_S is not one of the f_k."""
    _, hand = played()
    assert hand.all(Fresh) == [Fresh(seed=1, common=True)]
    assert hand.all(Distill)[0].model == model(101)


def test_the_student_may_be_the_local_model_itself() -> None:
    _, hand = played(student="mine")
    assert hand.all(Fresh) == []
    assert hand.all(Distill)[0].model == model(1)


def test_the_student_may_be_of_another_architecture_than_the_local_model() -> None:
    """3.4: "The local model is the CNN1 model for all MNIST and EMNIST experiments and the student model has been
    tested for all three architectures"."""
    policy, hand = played(student_model="cnn3")
    assert hand.all(Fresh) == [Fresh(seed=0, local=True), Fresh(seed=1, common=True)]
    assert [s.model for s in hand.all(Train)] == [model(100)]
    assert [s.model for s in hand.all(Predict)] == [model(101)]  # the local model teaches
    assert hand.all(Distill)[0].model == model(101)  # seed 1: a fresh one, by chance the same number
    assert hand.all(Report)[0].model == policy.model == model(1)  # and the student is mine


def test_a_student_of_another_architecture_is_new() -> None:
    with pytest.raises(ConfigError, match="student_model needs a new model"):
        make(FedEd, student_model="cnn3", student="mine")


def test_the_ensemble_is_measured_without_a_student() -> None:
    """3.4: "the ensemble performance [...] which is the aggregated predictions from all local models"."""
    hand = Hand((A,), {Predict: lambda _: MINE, Score: lambda s: (Eval(0.5, 0.9, len(s.models)),)})
    hand.run(make(FedEd, rounds=1).main())
    assert [s.models for s in hand.all(Score)] == [[hand.all(Distill)[0].teacher]]
    assert hand.all(Report)[0].data["ensemble"] == 0.9


def test_all_clients_teach_every_sample() -> None:
    """3.4: "The fraction gamma of participating clients each round was set to 1"."""
    assert make(FedEd).cfg.gamma == 1
    _, hand = played(told(A, said(0.0, 0.5), samples=1), weights="w0", samples=1, gamma=0.5)
    assert taught(hand)[0] in (0.0, 1.0)  # one of the two


def test_the_personal_model_is_the_student() -> None:
    policy, hand = played(told(A, said(0.0, 0.5, novelty=[1e-3, 1.0])))
    assert hand.all(Report)[0].model == policy.model
    assert policy.model == model(float(predictions.outputs(hand.all(Distill)[0].teacher)[0, 0]))


def test_one_round_of_communication_is_enough() -> None:
    """2.4.1: "only one communication round of local predictions is needed"."""
    _, hand = played(told(A, MINE), told(B, MINE))
    assert len(hand.all(Gather)) == 1
    assert len([s for s in hand.all(Send) if s.to]) == 1


def test_more_rounds_go_on_from_the_student() -> None:
    """2.5, of others' algorithms: it "then acts as an initial model for the next round of local training"."""
    policy, hand = make(FedEd, rounds=3), Hand()
    hand.answers[Predict] = lambda _: MINE
    hand.run(policy.main())
    assert [s.model for s in hand.all(Train)] == [model(0), model(1), model(1)]  # the teacher predicts 1.0
    assert [s.seed for s in hand.all(Fresh)] == [1, 2, 3]
    assert [s.round for s in hand.all(Report)] == [0, 1, 2]


# -- section 3.1: the teacher -----------------------------------------------------------------------------------


def test_with_w0_the_teacher_counts_everybody_by_size() -> None:
    """3.1: w_k = N_k / N; we have 30 samples and predict 1.0."""
    _, hand = played(told(A, said(0.0, 0.5), samples=10), weights="w0", samples=30)
    assert taught(hand) == [0.75, 0.5]


def test_with_w1_the_teacher_counts_everybody_by_its_samples_of_the_class() -> None:
    """3.2: w_k^c = N_k^c / sum_k N_k^c; A has no samples of the first class."""
    _, hand = played(told(A, said(0.5, 0.5, counts=[0, 5])), weights="w1")
    rows = predictions.outputs(hand.all(Distill)[0].teacher)
    assert rows[0].tolist() == [1.0, 0.5 * 0.0 + 0.5 * 0.5]  # no row is made to sum to one: 3.2 does not, nor does
    # the code, except for w2


def test_with_w2_the_client_that_has_seen_the_sample_has_the_higher_weight() -> None:
    """3.1: "the weight should be high when the loss is low"; we have seen the first sample, A the second."""
    _, hand = played(told(A, said(0.0, 0.0, novelty=[0.2, 0.1]), samples=10**6))
    assert taught(hand) == [round(64 / 65, 4), round(0.5 / 65, 4)]


def test_the_weights_of_the_thesis_are_the_default() -> None:
    """3.1: "beta = 6 was chosen by means of experimentation"."""
    cfg = make(FedEd).cfg
    assert (cfg.weights, cfg.beta) == ("w2", 6)


# -- section 3.4: the student -----------------------------------------------------------------------------------


def test_the_student_learns_by_the_mean_squared_error_unless_told() -> None:
    """4: "The loss function used when training the student model is MSE, unless stated otherwise"; the code:
    batches of 50, a fifth of the samples is not trained on, and the last epoch's model is the student."""
    _, hand = played()
    step = hand.all(Distill)[0]
    assert (step.loss, step.batch, step.held, step.temperature) == ("mse", 50, 0.2, 1.0)
    assert step.best is False


def test_the_student_learns_as_it_is_told() -> None:
    """2.4.1: MSE, or Kullback-Leibler with a temperature; 3.4: or CE."""
    knobs: dict[str, Any] = {"loss": "kl", "temperature": 3.0, "batch": 7, "held": 0.0, "lr": 0.5, "best": True}
    _, hand = played(student_epochs=4, **knobs)
    step = hand.all(Distill)[0]
    assert {name: getattr(step, name) for name in knobs} == knobs
    assert step.epochs == 4


def test_the_labels_of_ce_are_the_teachers_classes() -> None:
    """Equation 2.3, sum_c -y_c log z_c, has one-hot labels y. The auxiliary samples have none; in the thesis' code
    y is the teacher's most probable class. 5.1: "the CE loss -log z_S^c [...] assuming that the aggregated class
    probabilities produce a confident prediction z_T^c"."""
    y = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    expected = -(y * OUTPUTS.softmax(1).log()).sum(1).mean()
    torch.testing.assert_close(LOSSES["ce"](OUTPUTS, TEACHER, 1.0), expected)


def test_mse_is_the_mean_over_the_classes_of_the_squared_differences() -> None:
    """Equation 2.10; in the thesis' code z_S are the student's outputs before the softmax."""
    expected = ((OUTPUTS - TEACHER) ** 2).sum(1).mean() / 3
    torch.testing.assert_close(LOSSES["mse"](OUTPUTS, TEACHER, 1.0), expected)


@pytest.mark.parametrize("lr", [1e-3, 1e-5])
def test_the_optimizer_of_the_student_is_adam(lr: float) -> None:
    """3.4. The first step of Adam changes each number by the learning rate, whatever its gradient is."""
    learner = student()
    start = learner.fresh(0)
    assert learner.predictions is not None
    rows = np.tile(np.array([0.7, 0.2, 0.1], np.float32), (learner.predictions.entries[0].shape[0], 1))
    teacher = predictions.pack(learner.predictions, rows)
    taught = learner.distill(start, seed=0, teacher=teacher, epochs=1, lr=lr, batch=len(rows), held=0)
    moved = np.abs(taught.vector - start.vector)
    assert moved.max() == pytest.approx(lr, rel=0.05)
    assert np.median(moved[moved > 0]) == pytest.approx(lr, rel=0.05)


def test_what_is_no_probability_has_no_say() -> None:
    bad = predictions.pack(MINE.layout, np.array([[9.0, -8.0], [0.5, 0.5]]), np.array([1e-9, 1e-9]))
    _, hand = played(told(A, bad))
    assert taught(hand) == [1.0, 0.5]


def test_all_nodes_put_the_teacher_together_in_the_same_order() -> None:
    """A server has one teacher. Here all nodes have the same teacher, bit for bit."""
    words = {A: said(0.3, 0.1, novelty=[0.3, 0.2]), B: said(0.7, 0.2, novelty=[0.1, 0.7])}
    teachers = []
    for me, other in ((A, B), (B, A)):
        policy, hand = make(FedEd, rounds=1, me=me), Hand([other])
        hand.answers[Predict] = lambda _, me=me: words[me]  # type: ignore[misc]
        hand.answers[Gather] = lambda s: tuple(told(p, words[p]) for p in s.peers)
        hand.run(policy.main())
        teachers.append(hand.all(Distill)[0].teacher)
    assert teachers[0] == teachers[1]


def test_the_others_are_asked_for_after_the_local_training() -> None:
    """Training times differ, and peers that join meanwhile take part in the round."""
    _, hand = played()
    kinds = [type(s) for s in hand.asked]
    assert kinds.index(Peers) > kinds.index(Train)
