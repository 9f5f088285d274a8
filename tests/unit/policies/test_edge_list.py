from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pfl_node.errors import ConfigError
from pfl_node.policies.edge_list import parse_edges, read_edges
from pfl_node.types import PeerId

A, B, C = (PeerId(name) for name in "abc")


def test_an_edge_a_line_with_comments_and_empty_lines() -> None:
    text = "# three in a row\n\na b\n  b\tc  # and its end\n"
    assert parse_edges(text, "f").graph([A, B, C]) == {A: (B,), B: (A, C), C: (B,)}


def test_an_edge_counts_once_whichever_way_round() -> None:
    assert parse_edges("a b\nb a\na b\n", "f").graph([]) == {A: (B,), B: (A,)}


def test_whole_numbers_are_places_in_the_sorted_list_of_ids() -> None:
    edges = parse_edges("0 1\n1 02\n", "f")
    assert edges.graph([C, A, B]) == {A: (B,), B: (A, C), C: (B,)}


def test_a_place_that_nobody_has_is_left_out() -> None:
    assert parse_edges("0 1\n1 7\n", "f").graph([A, B]) == {A: (B,), B: (A,)}


def test_an_id_made_of_digits_only_is_still_an_id() -> None:
    x, y = PeerId("1234567890123456"), PeerId("00000000000000ff")
    assert parse_edges(f"{x} {y}", "f").graph([]) == {x: (y,), y: (x,)}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0 1\n2\n", "graph file 'g.txt', line 2: '2' is not an edge; write two nodes, such as 0 1"),
        ("0 1 2", "graph file 'g.txt', line 1: '0 1 2' is not an edge; write two nodes, such as 0 1"),
        ("a,b", "graph file 'g.txt', line 1: 'a,b' is not an edge; write two nodes, such as 0 1"),
        ("# x\n3 03", "graph file 'g.txt', line 2: an edge from 3 to itself"),
        ("a b\na a", "graph file 'g.txt', line 2: an edge from a to itself"),
        (
            "0 1\n\nn000 n001\n",
            "graph file 'g.txt', line 3: line 1 has a position, line 3 an id; use one kind for all nodes",
        ),
        ("0 b", "graph file 'g.txt', line 1: line 1 has a position, line 1 an id; use one kind for all nodes"),
        ("# nothing\n\n", "graph file 'g.txt' has no edges; write one per line, such as 0 1"),
        ("", "graph file 'g.txt' has no edges; write one per line, such as 0 1"),
    ],
)
def test_a_mistake_is_one_line_with_the_file_and_the_line(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_edges(text, "g.txt")
    assert str(error.value) == complaint


def test_a_file_is_read_with_or_without_the_mark_that_some_editors_put_first(tmp_path: Path) -> None:
    for name, data in (("plain", b"0 1\r\n"), ("marked", b"\xef\xbb\xbf0 1\n")):
        (tmp_path / name).write_bytes(data)
        assert read_edges(str(tmp_path / name)).graph([A, B]) == {A: (B,), B: (A,)}


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    for path, why in ((tmp_path, "Is a directory"), (tmp_path / "bytes", "it is not text")):
        with pytest.raises(ConfigError) as error:
            read_edges(str(path))
        assert str(error.value) == f"graph file {str(path)!r} cannot be read: {why}"


pairs = st.tuples(st.integers(0, 30), st.integers(0, 30)).filter(lambda e: e[0] != e[1])


@given(st.lists(pairs, min_size=1))
def test_whatever_is_written_comes_back_and_is_symmetric(edges: list[tuple[int, int]]) -> None:
    ids = [PeerId(f"n{i:02}") for i in range(31)]
    graph = parse_edges("\n".join(f"{a} {b}" for a, b in edges), "f").graph(ids)
    assert {frozenset((a, b)) for a in graph for b in graph[a]} == {frozenset((ids[a], ids[b])) for a, b in edges}
    assert all(a in graph[b] for a in graph for b in graph[a])
