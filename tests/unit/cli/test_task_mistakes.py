"""Typical mistakes in a task: one line and exit code 2 before any training begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.cli.run_command import Shell

TASKS = Path(__file__).with_name("task_mistakes.py")
MISTAKES = {
    "hugging_face_splits": "the train data is a DatasetDict: give one of its splits, such as data['train']",
    "columns_that_the_model_does_not_name": "has the inputs age, size, but the model's forward takes input: set",
    "one_of_two_inputs": "x {image: (2, 4) float32}, y (2,) int64: TypeError: Two.forward() missing 1 required",
    "one_logit": "the model has one output and the labels are 0 and 1: give it two outputs, or a loss for one: "
    "`loss`: lambda output, y: nn.BCEWithLogitsLoss()(output.flatten(), y.float())",
    "nan_in_a_column": "the train data's x contains a NaN or an infinity: sample 17, column 'weight'",
    "nan_in_an_image": "the train data's x contains a NaN or an infinity: sample 23",
    "label_beyond_the_outputs": "the train data has a label 3, the model has 3 outputs, for labels 0 to 2",
    "labels_from_one": "the model has 3 outputs, for labels 0 to 2: labels count from 0, subtract 1",
    "float_labels": "the labels are torch.float32: cross-entropy needs integers; convert them with y.long() or, "
    "for regression, give a `loss` such as nn.MSELoss()",
    "labels_in_a_column": "labels have the shape (n, 1): use y.squeeze(1)",
    "too_many_features": "layer '0' (Linear) takes 5 features, and a sample has the shape (4,)",
    "no_flatten": "takes 64 features, and a sample has the shape (8, 8) (nn.Flatten() before it is missing)",
    "channels_at_the_end": "has the shape (8, 8, 3): put the channels first with x.permute(0, 3, 1, 2)",
    "no_channel": "has the shape (8, 8): add the channel with x.unsqueeze(1)",
    "empty": "the train data is empty",
    "collate_fails": "collate failed (task_mistakes.py, line",
    "different_shapes": "sample 0 has x (3,) and sample 21 (4,): make them equal in a transform, or give",
    "a_sample_fails": "sample 39 cannot be read (task_mistakes.py, line",
    "iterable": "is an IterableDataset, which has no order that a seed could determine: give a Dataset",
    "loader": "is a DataLoader: give its dataset; train.batch, data.workers and `collate` replace its options",
    "words_as_labels": "the train data's y is <U3: only numbers are supported; number the categories 0, 1, …",
    "words_in_a_table": "column 'sex' is",
    "bytes_as_pixels": "(Conv2d) takes float32, and x is uint8: convert it with x.float() / 255",
    "pictures": "x is a PIL image: convert it in a transform, such as torchvision.transforms.ToTensor()",
    "tokens_as_floats": "layer '0' (Embedding) takes whole numbers, and x is float32",
    "unknown_token": "layer '0' (Embedding) has 10 entries, and x contains 12",
    "scores_in_the_last_dimension": "cross-entropy takes them in dimension 1: `loss`: lambda output, y: cross_",
    "loss_class": "the loss is a class: give CrossEntropyLoss(), an instance of it",
    "loss_is_a_number": "the loss returned a float, not a tensor",
    "whole_labels_for_bce": "the labels are integers: convert them in the loss with y.float()",
    "no_labels": "there are no labels: cross-entropy needs integers; give a `loss` of (output, labels or else x)",
    "different_lengths": "has 40 samples in x but 30 labels in y",
    "misspelt_key": "returned an unknown 'trian'; did you mean 'train'?",
    "detached_outputs": "the outputs of the model have no gradient: leave out .detach(), argmax",
    "classes_instead_of_scores": "the model returns int64: return its scores, without argmax",
    "forward_without_return": "the model returns None: its forward lacks a `return`",
    "cast_in_forward": "layer 'out' (Linear) is in float32, as every trained parameter, and x is float64",
    "loss_with_swapped_arguments": "it takes (y, output): its arguments are (output, y)",
    "one_hot_labels": "labels are whole numbers with several columns: give y.argmax(1)",
    "dataset_class": "the train data is the class TensorDataset: give an instance of it",
    "metrics_without_names": "metrics is a list of functions: give a dict by name",
    "no_return": "returned nothing: return a dict or an object with model and train",
    "asynchronous": "returned a coroutine (is it an async function?): return a dict",
    "model_with_arguments": "the model cannot be built: TypeError: Wrapped.__init__() missing 1 required",
    "val_of_another_width": "on the val data, x (2, 3) float32, y (2,) int64: layer '0' (Linear) takes 4 features",
    "nothing_to_train": "the model has no parameters to train: it has none, or requires_grad is off for all",
    "text_as_an_input": "the column 'sex' is text: number the categories 0, 1, … or drop the column",
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_task_is_one_line_before_training(shell: Shell, name: str) -> None:
    line = shell.mistake("sim", "--nodes", "2", "--rounds", "1", "--policy", "el", "--task", f"{TASKS}:{name}")
    assert MISTAKES[name] in line
