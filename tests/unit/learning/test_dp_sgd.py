"""DP-SGD: clipped gradients of single samples, noise, Poisson batches, and what is spent."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from opacus.accountants import PRVAccountant, RDPAccountant
from torch import nn

from pfl_node.errors import ConfigError, StoreError, TaskError
from pfl_node.learning.accountant import epsilon
from pfl_node.learning.auxiliary import IGNORED
from pfl_node.learning.learner import Learner
from pfl_node.learning.seeding import generator, noise_of
from pfl_node.learning.task import Data, Place, Task
from pfl_node.learning.tasks import load_task
from pfl_node.model import Model
from pfl_node.protocol.privacy.dp_account import DpAccount, DpStep
from pfl_node.settings import TaskSettings, TrainSettings
from pfl_node.settings.sections import PrivacySettings
from tests.unit.learning.nets import blobs, convolutions, learner, plain, student, task, with_batch_norm

NOISELESS: dict[str, Any] = {"dp_noise": 1e-9, "dp_clip": 1e3}
N = 40


def private(
    model: Any = plain, data: Any = None, account: DpAccount | None = None, train: Any = None, **dp: Any
) -> Learner:
    settings = PrivacySettings(dp=True, **dp)
    return Learner(task(model, data), TrainSettings(**(train or {})), "cpu", settings, account)


def moved(me: Learner, **options: Any) -> Model:
    return me.train(me.fresh(0), seed=1, **options)


@pytest.mark.parametrize(("model", "shape"), [(plain, (4,)), (convolutions, (2, 6, 6))])
@pytest.mark.parametrize("options", [{}, {"only": "head"}, {"only": "core"}, {"prox": 0.5}])
def test_without_clipping_and_noise_whole_batches_train_as_plain_sgd(
    model: Any, shape: tuple[int, ...], options: Any
) -> None:
    data = blobs(N, shape)
    train: dict[str, Any] = {"batch": N, "steps": 3, "lr": 0.1, "momentum": 0.9}
    ours = moved(private(model, data, train=train, **NOISELESS), **options)
    theirs = moved(learner(model, data, **train), **options)
    np.testing.assert_allclose(ours.vector, theirs.vector, atol=2e-4)
    assert not np.array_equal(ours.vector, learner(model, data).fresh(0).vector)


def test_one_sample_moves_a_step_by_no_more_than_its_clipped_gradient() -> None:
    data = blobs(N)
    other = type(data)(data.x.clone(), data.y.clone())
    other.x[3] *= 1000.0
    train, clip = {"batch": N, "steps": 1, "lr": 1.0}, 0.01
    first, second = (moved(private(plain, d, train=train, dp_clip=clip, dp_noise=1e-6)) for d in (data, other))
    assert np.linalg.norm(first.vector - second.vector) <= 2 * clip / N + 1e-6
    start = learner().fresh(0)
    assert np.linalg.norm(first.vector - start.vector) <= clip + 1e-6


def tokens(first: int, form: str) -> Task:
    """Samples of 50 positions with one valid label, except that all of the first one's are `first`."""
    chance = torch.Generator().manual_seed(0)
    y = torch.full((N, 50), IGNORED)
    y[:, 0] = 1
    y[0] = first
    x = 3 + 0.1 * torch.randn(N, 4, 50, generator=chance)
    if form == "of the model":
        data: Any = {"x": x.numpy(), "labels": y.numpy()}
        return Task("tokens", LossInside, data, val=data)
    loss = nn.CrossEntropyLoss() if form == "of the task" else None
    return task(lambda: nn.Conv1d(4, 3, 1), Data(x, y), loss=loss)


class LossInside(nn.Module):
    """Computes its own loss, like the models of Hugging Face."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Conv1d(4, 3, 1)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.inner(x)
        return SimpleNamespace(logits=logits, loss=nn.functional.cross_entropy(logits, labels))


@pytest.mark.parametrize("form", ["default", "of the model", "of the task"])
def test_a_sample_with_many_labels_does_not_scale_those_that_ignore_most(form: str) -> None:
    """Nulling a sample changes the sum of the clipped gradients by at most one clip."""
    sums = []
    for first in (1, IGNORED):
        settings = PrivacySettings(dp=True, dp_noise=1e-9)
        me = Learner(tokens(first, form), TrainSettings(batch=N, steps=1, lr=1.0), "cpu", settings)
        start = me.fresh(0)
        sums.append(N * (start.vector - me.train(start, seed=1).vector))
    assert 0.5 < np.linalg.norm(sums[0] - sums[1]) <= 1 + 1e-4
    assert np.linalg.norm(sums[1]) == pytest.approx(N - 1, rel=0.05)  # the same direction, each clipped


def test_noise_has_the_scale_that_the_settings_say() -> None:
    train, clip, noise = {"batch": N, "steps": 1, "lr": 1.0}, 1e-9, 3e9
    me = private(train=train, dp_clip=clip, dp_noise=noise)
    trained = [me.train(me.fresh(0), seed=seed).vector for seed in range(40)]
    spread = np.std(np.stack(trained), axis=0).mean()
    assert spread == pytest.approx(clip * noise / N, rel=0.1)


def test_there_are_too_many_noises_to_try_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a seed torch's generator on a CPU takes 32 bits, so noise is none of its."""
    assert torch.equal(torch.randn(9, generator=generator(5)), torch.randn(9, generator=generator(5 + 2**32)))
    made: list[np.random.Generator] = []

    def watched(*words: object) -> np.random.Generator:
        made.append(noise_of(*words))
        return made[-1]

    monkeypatch.setattr("pfl_node.learning.dp_sgd.noise_of", watched)
    moved(private(account=DpAccount(secret="s")))
    (sequence,) = (chance.bit_generator.seed_seq for chance in made)
    assert isinstance(sequence, np.random.SeedSequence)
    assert not isinstance(sequence.entropy, int | None)
    assert len(sequence.entropy) * 32 == 256


class OwnNorm(nn.BatchNorm1d):
    pass


class Watching(nn.Module):
    """Lets everything through, and keeps its mean."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen += x.detach().mean(0)
        return x


@pytest.mark.parametrize("affine", [True, False])
def test_a_batch_norm_by_another_name_is_refused_too(affine: bool) -> None:
    with pytest.raises(TaskError, match="cannot train OwnNorm, which mixes samples"):
        private(lambda: nn.Sequential(plain(), OwnNorm(3, affine=affine)))


def test_what_a_layer_keeps_of_its_samples_without_noise_does_not_leave_the_learner() -> None:
    with pytest.raises(TaskError, match=r"privacy.dp adds no noise to 1\.seen"):
        moved(private(lambda: nn.Sequential(plain(), Watching())))


def test_a_full_disk_costs_the_training_and_the_next_one_is_made() -> None:
    full = True

    def note(event: str, data: Mapping[str, Any]) -> None:
        if full:
            raise StoreError("the disk is full")

    me = private(account=DpAccount(note))
    start = me.fresh(0)
    assert me.train(start, seed=1) is start
    assert (me.account.steps.total(), me.account.epsilon, me.account.exhausted) == (0, 0.0, False)
    full = False
    assert me.train(start, seed=2) != start
    assert me.account.epsilon > 0


def test_the_same_seed_gives_the_same_bytes_and_another_secret_gives_others() -> None:
    first, again, other = (moved(private(account=DpAccount(secret=s))).vector for s in ("a", "a", "b"))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_batches_are_poisson_samples_of_the_rate_that_is_accounted() -> None:
    sizes: list[int] = []

    class Counting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = plain()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training:
                sizes.append(len(x))
            return self.inner(x)  # type: ignore[no-any-return]

    me = private(Counting, train={"batch": 4, "steps": 200})
    me.train(me.fresh(0), seed=2, steps=1)  # checks the gradients
    sizes.clear()
    moved(me)
    (step,) = me.account.steps
    assert step.rate == 4 / N
    assert me.account.steps[step] == 201
    assert 150 < len(sizes) <= 200  # about one in 70 is empty
    assert sum(sizes) / 200 == pytest.approx(4, rel=0.15)
    assert np.var(sizes) == pytest.approx(4 * (1 - 4 / N), rel=0.4)


@pytest.mark.parametrize(("train", "steps"), [({"batch": 8, "epochs": 2}, 10), ({"batch": 100, "epochs": 3}, 3)])
def test_an_epoch_is_as_many_steps_as_its_samples_need(train: dict[str, Any], steps: int) -> None:
    me = private(train=train)
    moved(me)
    assert me.account.steps.total() == steps


@pytest.mark.parametrize(("noise", "rate", "steps"), [(1.0, 0.1, 100), (4.0, 0.9, 50)])
def test_the_epsilon_is_that_of_opacus(noise: float, rate: float, steps: int) -> None:
    ours = epsilon({DpStep(noise, rate): steps}, 1e-5)
    renyi, exact = RDPAccountant(), PRVAccountant()
    renyi.history = exact.history = [(noise, rate, steps)]
    assert ours == pytest.approx(renyi.get_epsilon(1e-5), rel=1e-9)
    tight = exact.get_epsilon(1e-5, eps_error=0.1)
    assert tight - 0.1 <= ours <= 1.6 * tight + 0.1


def test_what_was_spent_adds_up_over_trainings_rates_and_restarts() -> None:
    account = DpAccount()
    me = private(account=account, train={"batch": 8})
    moved(me)
    first = account.epsilon
    assert first > 0
    moved(me)
    assert account.epsilon > first
    assert account.facts() == {"dp_epsilon": round(account.epsilon, 6)}
    restarted = DpAccount()
    for row in account.rows():
        restarted.load(row)
    assert private(account=restarted, train={"batch": 16}).account.epsilon == account.epsilon
    moved(private(account=restarted, train={"batch": 16}))
    assert len(restarted.steps) == 2
    assert restarted.epsilon > account.epsilon


def test_beyond_the_limit_nothing_is_trained_or_spent() -> None:
    me = private(dp_epsilon=1e9)
    moved(me)
    enough = private(dp_epsilon=me.account.epsilon * 1.01)
    trained = moved(enough)
    assert not enough.account.exhausted
    assert enough.train(trained, seed=2) is trained
    assert enough.account.exhausted
    assert enough.account.epsilon == me.account.epsilon


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_the_embedded_networks_have_the_gradients_that_torch_computes(model: str) -> None:
    """Images of one channel may lie in memory in any order of channels."""
    given = load_task(TaskSettings.model_validate({"model": model}), Place(0, 4, 0, "n"))
    me = Learner(given, TrainSettings(steps=1, batch=30), "cpu", PrivacySettings(dp=True))
    moved(me)
    assert me._private
    assert me._private._compared


def test_a_plain_learner_of_the_same_pool_is_not_affected() -> None:
    before = moved(learner())
    moved(private())
    assert np.array_equal(moved(learner()).vector, before.vector)


def test_batch_normalisation_is_refused_with_one_line_that_says_what_to_do() -> None:
    with pytest.raises(TaskError, match=r"privacy.dp cannot train BatchNorm1d.*use GroupNorm"):
        private(with_batch_norm)


def test_without_opacus_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opacus.validators", None)
    with pytest.raises(ConfigError, match=r"pip install 'pfl-node\[dp\]'"):
        private()


def test_what_a_policy_tells_besides_its_model_is_refused() -> None:
    me = student()
    plain_words = me.predict(me.fresh(0), seed=0, counts=True)
    assert plain_words.is_finite()
    me._private = private()._private
    assert me.predict(me.fresh(0), seed=0).is_finite()
    for told in ({"counts": True}, {"novelty": 1}):
        with pytest.raises(ConfigError, match=r"policy.weights = w0"):
            me.predict(me.fresh(0), seed=0, **told)


def test_every_sample_by_itself_adds_up_to_the_score() -> None:
    for me in (learner(), learner(convolutions, blobs(N, (2, 6, 6))), learner(task_options={"loss": own_loss})):
        model = me.fresh(3)
        losses, right = me.each(model)
        (score,) = me.score([model])
        assert len(losses) == len(right) == score.samples
        assert losses.mean() == pytest.approx(score.loss, rel=1e-5)
        assert right.mean() == pytest.approx(score.accuracy)


def own_loss(output: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(output, y) * 2
