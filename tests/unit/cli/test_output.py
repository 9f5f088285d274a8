"""How tables are printed."""

from __future__ import annotations

import pytest

from pfl_node.cli.output import in_blocks

ROWS = [["run", "accuracy", "sent", "a long title"], ["EL", "85.4 ± 5.0", "9.3", "1"]]


@pytest.mark.parametrize(
    ("width", "heads"),
    [
        (None, [["run", "accuracy", "sent", "a long title"]]),
        (35, [["run", "accuracy", "sent", "a long title"]]),
        (34, [["run", "accuracy", "sent"], ["run", "a long title"]]),
        (1, [["run", "accuracy"], ["run", "sent"], ["run", "a long title"]]),
    ],
)
def test_columns_that_do_not_fit_come_below_with_the_first_one_again(
    width: int | None, heads: list[list[str]]
) -> None:
    blocks = list(in_blocks(ROWS, width, keep=1))
    assert [block[0] for block in blocks] == heads
    assert all(row[0] == "EL" for _, row in blocks)
