from __future__ import annotations

import numpy as np
import pytest

from pfl_node import predictions
from pfl_node.errors import LayoutMismatch
from pfl_node.model import Entry, Layout, Model

LAYOUT = predictions.layout_for(3, 2, "abc")
OUTPUTS = np.array([[0.25, 0.75], [0.5, 0.5], [1, 0]])


def test_what_is_said_comes_out_as_it_went_in() -> None:
    said = predictions.pack(LAYOUT, OUTPUTS, np.array([1.0, 2, 3]), np.array([4, 5]))
    assert said.layout.part == "predictions"
    assert predictions.outputs(said).tolist() == OUTPUTS.tolist()
    assert predictions.novelty(said).tolist() == [1, 2, 3]
    assert predictions.counts(said).tolist() == [4, 5]


def test_what_was_not_asked_for_is_zero() -> None:
    said = predictions.pack(LAYOUT, OUTPUTS)
    assert predictions.novelty(said).tolist() == [0, 0, 0]
    assert predictions.counts(said).tolist() == [0, 0]
    assert said.vector.dtype == np.float32


def test_predictions_about_other_samples_do_not_fit() -> None:
    assert predictions.layout_for(3, 2, "abc") == LAYOUT
    for other in ((3, 2, "abd"), (4, 2, "abc"), (3, 3, "abc")):
        assert predictions.layout_for(*other) != LAYOUT


def test_predictions_are_no_model_and_a_model_is_no_predictions() -> None:
    model = Model(Layout((Entry("w", (2,)),), ()), np.zeros(2, np.float32))
    with pytest.raises(LayoutMismatch, match="does not hold predictions"):
        predictions.outputs(model)
    with pytest.raises(LayoutMismatch, match="a predictions has no model"):
        predictions.pack(LAYOUT, OUTPUTS).of("model")


def test_an_array_of_another_shape_is_refused() -> None:
    with pytest.raises(LayoutMismatch, match=r"outputs/abc must have the shape \(3, 2\), not \(2, 3\)"):
        predictions.pack(LAYOUT, OUTPUTS.T)
    with pytest.raises(LayoutMismatch, match="counts must have the shape"):
        predictions.pack(LAYOUT, OUTPUTS, counts=np.zeros(3))
