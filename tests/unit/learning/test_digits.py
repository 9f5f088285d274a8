from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_node.errors import ConfigError
from pfl_node.learning.allocation import Share
from pfl_node.learning.digits import (
    IMAGES,
    digits,
    images,
    pools,
    rotated,
    set_aside,
    share_of,
)
from pfl_node.learning.learner import Learner
from pfl_node.learning.models.digits_nets import MODELS
from pfl_node.learning.task import Place, Task
from pfl_node.settings import TrainSettings

counts = st.lists(st.integers(0, 12), min_size=1, max_size=4).filter(lambda c: sum(c) > 0).map(tuple)
seeds = st.integers(0, 2**31)


def place(index: int | None, nodes: int | None, seed: int = 0, node_id: str = "n", **options: Any) -> Task:
    return digits(index, nodes, seed, node_id, **options)


def same(a: Share, b: Share) -> bool:
    return a.cluster == b.cluster and np.array_equal(a.train, b.train) and np.array_equal(val_of(a), val_of(b))


def indexed_share(counts: tuple[int, ...], samples: int | None, seed: int, index: int) -> Share:
    return share_of(Place(index, sum(counts), seed, "n"), counts, samples)


def drawn_share(counts: tuple[int, ...], samples: int | None, seed: int, node_id: str) -> Share:
    return share_of(Place(None, None, seed, node_id), counts, samples)


def skewed_share(counts: tuple[int, ...], alpha: float, seed: int, index: int, aside: int) -> Share:
    return share_of(Place(index, sum(counts), seed, "n"), counts, alpha=alpha, aside=aside)


def val_of(share: Share) -> Any:
    return share.train if share.val is None else share.val


def images_tested(share: Share, counts: tuple[int, ...], seed: int) -> set[int]:
    return set(pools(seed, counts)[share.cluster][1].tolist())


def everybody(counts: tuple[int, ...], samples: int | None, seed: int) -> list[Share]:
    return [indexed_share(counts, samples, seed, i) for i in range(sum(counts))]


def test_the_images_are_scikit_learns_own() -> None:
    from sklearn.datasets import load_digits

    x, y = images()
    theirs = load_digits()
    np.testing.assert_array_equal((x[:, 0] + 1) * 8, theirs.images)
    np.testing.assert_array_equal(y, theirs.target)
    assert (x.min(), x.max(), x.shape) == (-1, 1, (IMAGES, 1, 8, 8))


def test_a_quarter_turn_is_a_real_rotation() -> None:
    x, _ = images()
    np.testing.assert_array_equal(rotated(1)[3, 0], np.rot90(x[3, 0]))
    np.testing.assert_array_equal(rotated(2)[3, 0], x[3, 0, ::-1, ::-1])
    assert not np.array_equal(rotated(2), x[:, :, ::-1])  # not a flip


@given(counts, seeds)
def test_no_image_is_in_two_pools(counts: tuple[int, ...], seed: int) -> None:
    found = np.concatenate([np.concatenate(pair) for pair in pools(seed, counts)])
    assert sorted(found) == list(range(IMAGES))


@given(counts, seeds, st.none() | st.integers(1, 20))
def test_no_image_is_at_two_nodes_nor_in_a_test_set(
    counts: tuple[int, ...], seed: int, samples: int | None
) -> None:
    shares = everybody(counts, samples, seed)
    mine = np.concatenate([np.concatenate((s.train, val_of(s))) for s in shares])
    tests = [images_tested(s, counts, seed) for s in shares]
    assert len(set(mine.tolist())) == len(mine)
    assert not set().union(*tests) & set(mine.tolist())
    assert all(len(s.train) >= 1 and len(val_of(s)) >= 1 for s in shares)
    assert min(map(len, tests)) >= 80
    if samples is not None:
        assert {len(s.train) for s in shares} == {samples}


@given(counts, seeds)
def test_the_first_nodes_are_the_first_cluster(counts: tuple[int, ...], seed: int) -> None:
    expected = [c for c, size in enumerate(counts) for _ in range(size)]
    assert [s.cluster for s in everybody(counts, None, seed)] == expected


@given(counts, seeds)
def test_nodes_have_about_equally_much_whatever_their_cluster(counts: tuple[int, ...], seed: int) -> None:
    sizes = [len(s.train) for s in everybody(counts, None, seed)]
    assert max(sizes) - min(sizes) <= 1


@given(counts, seeds, st.integers(0, 11))
def test_the_same_seed_gives_the_same_share(counts: tuple[int, ...], seed: int, index: int) -> None:
    index %= sum(counts)
    first, second = (indexed_share(counts, 20, seed, index) for _ in range(2))
    assert same(first, second)


@settings(max_examples=20)
@given(seeds, st.integers(0, 999))
def test_a_thousand_nodes_share_images_but_no_node_has_one_twice(seed: int, index: int) -> None:
    share = indexed_share((500, 500), None, seed, index)
    mine = np.concatenate((share.train, val_of(share)))
    assert len(share.train) == 60
    assert len(set(mine.tolist())) == len(mine)
    assert not set(mine.tolist()) & images_tested(share, (500, 500), seed)
    assert set(mine.tolist()) <= set(pools(seed, (500, 500))[share.cluster][0].tolist())


@given(counts, seeds, st.text(max_size=20))
def test_a_node_with_only_an_id_draws_its_share_with_it(counts: tuple[int, ...], seed: int, node_id: str) -> None:
    samples = min(60, min(len(pool) for pool, _ in pools(seed, counts) if len(pool)) // 2)
    first, second = (drawn_share(counts, samples, seed, node_id) for _ in range(2))
    assert same(first, second)
    assert counts[first.cluster] > 0
    mine = np.concatenate((first.train, val_of(first)))
    assert set(mine.tolist()) <= set(pools(seed, counts)[first.cluster][0].tolist())
    assert len(first.train) == samples


def test_ids_fall_into_the_clusters_by_their_sizes() -> None:
    clusters = [drawn_share((3, 1), None, 0, f"node-{i}").cluster for i in range(400)]
    assert 0.65 < clusters.count(0) / 400 < 0.85
    assert set(clusters) == {0, 1}


def test_the_data_of_a_place_is_rotated_as_its_cluster_is() -> None:
    tasks = [place(i, 20, angles=(0, 180), sizes=(14, 6)) for i in range(20)]
    assert [t.cluster for t in tasks] == [0] * 14 + [1] * 6
    for task, turn in ((tasks[13], 0), (tasks[14], 2)):
        share = indexed_share((14, 6), None, 0, 13 if turn == 0 else 14)
        np.testing.assert_array_equal(task.train.x, rotated(turn)[share.train])
        np.testing.assert_array_equal(task.train.y, images()[1][share.train])


def test_nodes_of_a_cluster_share_one_test_set_in_memory() -> None:
    first, second, other = (place(i, 4).test for i in (0, 1, 2))
    assert first is not None
    assert other is not None
    assert first is second
    assert not torch.equal(first.x, other.x)


def test_twenty_nodes_have_about_sixty_samples_each() -> None:
    task = place(0, 20)
    assert task.val is not None
    assert (len(task.train.x), len(task.val.x)) == (56, 14)
    assert len(place(None, None).train.x) == 60


def test_one_node_alone_is_a_swarm_too() -> None:
    task = place(0, 1)
    assert (task.cluster, len(task.train.x)) == (0, 60)


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_both_models_learn_something_in_a_few_rounds(model: str) -> None:
    me = Learner(place(0, 20, model=model), TrainSettings(), "cpu")
    trained = me.fresh(0)
    for round in range(8):
        trained = me.train(trained, seed=round)
    assert me.score([trained], split="test")[0].accuracy > 0.6
    assert me.layout.head_entries[0].name == "head.weight"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"angles": (0, 45)}, "angle 45 is not a multiple of 90"),
        ({"angles": ()}, "angles is empty"),
        ({"angles": "left"}, "not a list of whole numbers"),
        ({"sizes": (10, 5, 5)}, "3 sizes for 2 angles"),
        ({"sizes": (10, 5)}, "15 nodes, but there are 20"),
        ({"sizes": (-1, 21)}, "are not valid numbers of nodes"),
        ({"samples": 2000}, "has only"),
        ({"samples": 0}, "samples = 0"),
        ({"model": "mpl"}, "did you mean 'mlp'?"),
        ({"model": "cnn,mpl"}, "task.model = 'mpl': there is no such name; did you mean 'mlp'?"),
        ({"model": ["cnn", 3]}, "task.model = 3: there is no such name"),
        ({"model": []}, "task.model is empty"),
        ({"model": 3}, "task.model = 3: there is no such name"),
        ({"auxiliary": 1438}, "auxiliary = 1438 is neither a share"),
        ({"auxiliary": -0.1}, "auxiliary = -0.1 is neither a share"),
        ({"auxiliary": True}, "auxiliary = True is neither a share"),
        ({"auxiliary": "half"}, "auxiliary = 'half' is neither a share"),
        ({"auxiliary": 0.98}, "leaves a cluster only 14 images"),
        ({"alpha": 0}, "alpha = 0 is not a number above zero"),
        ({"alpha": "little"}, "alpha = 'little' is not a number"),
        ({"alpha": float("inf")}, "alpha = inf"),
        ({"alpha": 1.0, "samples": 20}, "leave out task.samples"),
    ],
)
def test_a_mistake_in_an_option_is_one_line(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError) as error:
        place(0, 20, **options)
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_places_of_an_unknown_number_have_clusters_in_turn_and_samples_of_their_own_id() -> None:
    tasks = [place(i, None, node_id=f"n{i}") for i in range(50)]
    assert [task.cluster for task in tasks[:4]] == [0, 1, 0, 1]
    assert sum(task.cluster or 0 for task in tasks) == 25
    assert place(3, None, node_id="n3").train.x.equal(tasks[3].train.x)
    assert not place(3, None, node_id="other").train.x.equal(tasks[3].train.x)
    assert [place(i, None, sizes=[3, 1]).cluster for i in range(8)].count(1) == 2


def test_a_split_over_all_places_needs_their_number() -> None:
    with pytest.raises(ConfigError, match=r"and how many there are, task\.nodes"):
        place(3, None, alpha=1.0)


def test_lists_may_come_as_text_from_a_command_line() -> None:
    task = place(3, 4, angles="0,90", sizes="1,3")
    assert task.cluster == 1
    assert place(0, 4, angles=90).cluster == 0


# -- auxiliary images ------------------------------------------------------------------------------------------


@given(counts, seeds, st.integers(0, 1000))
def test_auxiliary_images_are_at_no_node_and_in_no_test_set(
    counts: tuple[int, ...], seed: int, aside: int
) -> None:
    out = set_aside(seed, aside)
    found = np.concatenate([out, *(np.concatenate(pair) for pair in pools(seed, counts, aside))])
    assert len(out) == aside
    assert sorted(found) == list(range(IMAGES))
    for with_them, without in zip(pools(seed, counts, aside), pools(seed, counts), strict=True):
        assert np.array_equal(with_them[1], without[1])  # the tests stay the same


def aside(task: Task) -> torch.Tensor:
    assert isinstance(task.auxiliary, torch.Tensor)
    return task.auxiliary


def test_auxiliary_images_are_the_same_at_all_places_and_shared_in_memory() -> None:
    tasks = [place(i, 10, auxiliary=0.5, model="mlp,cnn") for i in range(10)]
    tasks.append(place(None, None, auxiliary=0.5, node_id="late"))
    assert len({id(t.auxiliary) for t in tasks}) == 1
    assert aside(tasks[0]).shape == (719, 1, 8, 8)
    assert not torch.equal(aside(tasks[0]), aside(place(0, 10, seed=1, auxiliary=0.5)))
    assert place(0, 10).auxiliary is None


def test_auxiliary_images_are_turned_by_one_angle_after_the_other() -> None:
    found = aside(place(0, 4, angles=(0, 90, 180), auxiliary=0.1)).numpy()
    which = set_aside(0, len(found))
    for turn in range(3):
        np.testing.assert_array_equal(found[turn::3], rotated(turn)[which[turn::3]])


# -- unequal labels --------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(counts, seeds, st.sampled_from([0.01, 0.1, 1.0, 100.0]), st.sampled_from([0, 700]))
def test_with_alpha_all_images_of_a_cluster_are_given_out_once(
    counts: tuple[int, ...], seed: int, alpha: float, aside: int
) -> None:
    shares = [skewed_share(counts, alpha, seed, i, aside) for i in range(sum(counts))]
    for cluster, (pool, _) in enumerate(pools(seed, counts, aside)):
        mine = [s for s in shares if s.cluster == cluster]
        assert len(mine) == counts[cluster]
        given_out = {i for s in mine for i in (*s.train.tolist(), *val_of(s).tolist())}
        assert given_out == (set(pool.tolist()) if mine else set())
    for share in shares:
        n = len({*share.train.tolist(), *val_of(share).tolist()})
        assert (len(share.train), len(val_of(share))) == ((n - n // 5, n // 5) if n >= 5 else (n, n))


def test_the_smaller_alpha_the_fewer_classes_a_node_has() -> None:
    def kinds(alpha: float) -> float:
        return float(np.mean([len(place(i, 10, angles=0, alpha=alpha).train.y.unique()) for i in range(10)]))

    assert kinds(0.01) < 3 < kinds(0.1) < 8 < kinds(10)


def test_the_test_data_of_unequal_nodes_is_that_of_their_cluster() -> None:
    equal, unequal = place(3, 10).test, place(3, 10, alpha=0.1, auxiliary=0.5).test
    assert equal is unequal


def test_alpha_needs_to_know_the_place() -> None:
    with pytest.raises(ConfigError, match=r"say which place this is, task\.index"):
        place(None, None, alpha=0.1)


# -- several models --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("models", ["mlp,cnn", ["mlp", "cnn"], ("mlp", "cnn")], ids=str)
def test_places_have_the_models_in_turn(models: Any) -> None:
    tasks = [place(i, 4, model=models) for i in range(4)]
    assert [t.model for t in tasks] == [MODELS["mlp"], MODELS["cnn"]] * 2


def test_without_a_place_the_id_decides_the_model() -> None:
    found = [place(None, None, node_id=f"n{i}", model="mlp,cnn").model for i in range(60)]
    assert 15 < found.count(MODELS["cnn"]) < 45
    assert found == [place(None, None, node_id=f"n{i}", model="mlp,cnn").model for i in range(60)]


def test_nodes_with_different_models_predict_the_same_samples() -> None:
    options: dict[str, Any] = {"model": "mlp,cnn", "auxiliary": 0.1, "alpha": 0.5}
    mlp, cnn = (Learner(place(i, 10, **options), TrainSettings(), "cpu") for i in (0, 1))
    assert mlp.layout != cnn.layout
    assert mlp.predictions == cnn.predictions
    taught = mlp.distill(mlp.fresh(0), seed=0, teacher=cnn.predict(cnn.fresh(0), seed=0), epochs=1)
    assert taught.is_finite()
