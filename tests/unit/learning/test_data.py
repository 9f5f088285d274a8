from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, TensorDataset

from pfl_node.errors import TaskError
from pfl_node.learning.data import complete, inputs, read, split, stacked
from pfl_node.learning.task import Data, Task
from pfl_node.settings import DataSettings
from tests.unit.learning.nets import blobs, plain


def made(data: Any) -> Data:
    found = read(Task("mine", plain, data), "train", DataSettings())
    assert isinstance(found, Data)
    return found


class Pairs(Dataset[tuple[Any, Any]]):
    """A Dataset as users write them."""

    def __init__(self, *rows: tuple[Any, Any]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return self.rows[index]


@pytest.mark.parametrize(
    "data",
    [
        (torch.ones(2, 3, dtype=torch.float64), torch.tensor([0, 1], dtype=torch.int16)),
        (np.ones((2, 3), dtype=np.float16), np.array([0, 1], dtype=np.uint8)),
        ([[1, 1, 1.0], [1, 1, 1]], [0, 1]),
        Data(np.ones((2, 3)), np.array([False, True])),
        TensorDataset(torch.ones(2, 3), torch.tensor([0, 1])),
        Pairs((np.ones(3, dtype=np.float32), 0), (torch.ones(3), torch.tensor(1))),
    ],
)
def test_data_may_come_as_tensors_arrays_lists_or_a_dataset(data: Any) -> None:
    x, y = made(data)
    assert (x.tolist(), x.dtype) == ([[1.0] * 3] * 2, torch.float32)
    assert (y.tolist(), y.dtype) == ([0, 1], torch.int64)


def test_words_stay_whole_numbers_and_pixels_stay_bytes() -> None:
    assert made((np.array([[3, 4]], dtype=np.int32), [1])).x.dtype == torch.int64
    assert made((np.array([[3, 4]], dtype=np.uint8), [1])).x.dtype == torch.uint8


def test_a_tensor_of_the_right_kind_is_not_copied() -> None:
    x, y = torch.ones(2, 3), torch.tensor([0, 1])
    assert made((x, y)).x.data_ptr() == x.data_ptr()


def test_a_read_only_array_is_fine() -> None:
    x = np.ones((2, 3), dtype=np.float32)
    x.flags.writeable = False
    assert made((x, np.array([0, 1]))).x.shape == (2, 3)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ((torch.ones(0, 3), torch.ones(0)), "the train data is empty"),
        (Pairs(), "the train data is empty"),
        ((torch.ones(3, 2), torch.zeros(2)), "3 samples in x but 2 labels in y"),
        ((torch.tensor([[1.0, float("nan")]]), [0]), "x contains a NaN"),
        (([[1.0]], [float("inf")]), "y contains a NaN or an infinity"),
        ((np.array([["a"], ["b"]]), [0, 1]), "x is <U1: only numbers"),
        ((np.array([[None]], dtype=object), [0]), "x is object: only numbers"),
        (([[1, 2], [3]], [0, 1]), "x is list: only numbers"),
        ((torch.ones(2, 2, dtype=torch.complex64), [0, 1]), "only real numbers"),
        ((torch.tensor(1.0), torch.tensor(1)), "one row per sample"),
        (torch.ones(2), "the train data is a Tensor: give (x, y)"),
        ((1, 2, 3), "the train data is a tuple: give (x, y)"),
        (Pairs((torch.ones(2), 0), (torch.ones(3), 1)), "sample 0 has x (2,) and sample 1 (3,): make them equal"),
        (Pairs((torch.ones(2), "cat")), "sample 0's y is the text 'cat': number the categories 0, 1, …"),
        (Pairs((torch.ones(2), 0), (torch.ones(2), 1.5)), "sample 0 has y torch.int64 and sample 1 torch.float"),
        (Pairs((torch.ones(2), None), (torch.ones(2), 1)), "only some samples have y"),
    ],
)
def test_data_that_cannot_be_used_says_what_is_wrong(data: Any, text: str) -> None:
    with pytest.raises(TaskError) as error:
        made(data)
    assert text in str(error.value)
    assert str(error.value).startswith("task mine: the train data")
    assert "\n" not in str(error.value)


@given(st.integers(10, 200), st.integers(0, 2**70))
def test_a_missing_val_is_a_tenth_of_train_and_apart_from_it(n: int, seed: int) -> None:
    rows = torch.arange(n)
    train, val = split(Data(rows.float(), rows), seed)
    assert len(val.x) == max(1, round(n / 10))
    assert sorted([*train.y.tolist(), *val.y.tolist()]) == list(range(n))
    assert torch.equal(train.x.long(), train.y)
    again = split(Data(rows.float(), rows), seed)
    assert torch.equal(again[1].y, val.y)


def test_with_few_samples_val_is_train_and_without_a_test_it_is_val() -> None:
    few = complete(Task("t", plain, blobs(9)), 0)
    assert few.val is few.train
    many = complete(Task("t", plain, blobs(50)), 0)
    assert many.val is not None
    assert many.test is many.val
    assert (len(many.train.x), len(many.val.x)) == (45, 5)


def test_splits_that_are_given_are_kept() -> None:
    given = complete(Task("t", plain, blobs(50), val=blobs(3), test=blobs(4)), 0)
    assert given.val is not None
    assert given.test is not None
    assert [len(d.x) for d in (given.train, given.val, given.test)] == [50, 3, 4]
    with pytest.raises(TaskError, match="the test data is empty"):
        complete(Task("t", plain, blobs(50), test=Data(torch.ones(0), torch.ones(0))), 0)


# -- auxiliary samples -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        torch.ones(2, 3, dtype=torch.float64),
        np.ones((2, 3), dtype=np.float16),
        (np.ones((2, 3)), [0, 1]),
        (torch.ones(2, 3), None),
        Data(torch.ones(2, 3), torch.tensor([7, 7, 7])),
        TensorDataset(torch.ones(2, 3)),
        TensorDataset(torch.ones(2, 3), torch.ones(2)),
        Pairs((torch.ones(3), "cat"), (np.ones(3, dtype=np.float32), "dog")),
    ],
    ids=lambda data: type(data).__name__,
)
def test_auxiliary_samples_may_come_in_any_shape_and_their_labels_are_ignored(data: Any) -> None:
    x = inputs(data, Data(torch.zeros(5, 3), None), "mine")
    assert (x.tolist(), x.dtype) == ([[1.0] * 3] * 2, torch.float32)


def test_a_list_of_rows_is_no_pair() -> None:
    assert inputs([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], Data(torch.zeros(5, 2), None), "mine").shape == (3, 2)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (torch.ones(0, 3), "is empty"),
        (Pairs(), "is empty"),
        (torch.tensor(1.0), "is empty"),
        (torch.ones(2, 4), "has samples (4,) torch.float32, the train data has (3,) torch.float32"),
        (torch.ones(2, 3, dtype=torch.uint8), "has samples (3,) torch.uint8, the train data"),
        (torch.ones(3), "has samples () torch.float32"),
        (torch.full((2, 3), float("nan")), "contains a NaN or an infinity"),
        ("pictures/", "is str: only numbers"),
        (Pairs((torch.ones(2), 0), (torch.ones(3), 1)), "cannot be stacked"),
        (Pairs(("cat", 0)), "cannot be stacked"),
    ],
)
def test_auxiliary_samples_that_cannot_be_used_say_what_is_wrong(data: Any, text: str) -> None:
    with pytest.raises(TaskError) as error:
        complete(Task("mine", plain, Data(torch.ones(20, 3), torch.zeros(20).long()), auxiliary=data), 0)
    assert str(error.value).startswith("task mine: the auxiliary data")
    assert text in str(error.value)
    assert "\n" not in str(error.value)


def test_a_task_without_auxiliary_samples_has_none_and_twice_completed_is_the_same() -> None:
    assert complete(Task("t", plain, blobs(50)), 0).auxiliary is None
    once = complete(Task("t", plain, blobs(50), auxiliary=blobs(5)), 0)
    again = complete(once, 0)
    assert isinstance(again.auxiliary, torch.Tensor)
    assert torch.equal(again.auxiliary, blobs(5).x)


# -- where it lies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3])
def test_images_lie_with_the_channels_last_and_stay_so_in_a_batch(channels: int) -> None:
    data = blobs(10, shape=(channels, 4, 5))
    x = stacked(data, torch.device("cpu"), images=True).x
    assert torch.equal(x, data.x)
    for batch in (x, x[torch.tensor([3, 1])], x[2:5]):
        assert batch.stride()[1:] == (1, 5 * channels, channels)


def test_other_data_is_left_where_it_is() -> None:
    data = blobs(10)
    assert stacked(data, torch.device("cpu"), images=True).x.data_ptr() == data.x.data_ptr()
