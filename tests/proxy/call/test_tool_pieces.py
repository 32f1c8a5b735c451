"""Streamed tool calls of engines that number their pieces badly."""

import pytest

from budwood.proxy.call import ToolPieces


def piece(index=None, call_id=None, name=None, arguments=None) -> dict:
    function = {"name": name, "arguments": arguments}
    found = {"index": index, "id": call_id, "function": function}
    return {key: value for key, value in found.items() if value is not None}


A, B = "call_a", "call_b"
STREAMS = {
    "well numbered": [
        piece(0, A, "f", ""), piece(0, None, None, "{1"), piece(0, None, None, "}"),
        piece(1, B, "g", ""), piece(1, None, None, "{2}"),
    ],
    "interleaved": [
        piece(0, A, "f", ""), piece(1, B, "g", ""), piece(0, None, None, "{1"),
        piece(1, None, None, "{2}"), piece(0, None, None, "}"),
    ],
    "no index": [
        piece(None, A, "f", "{1"), piece(None, None, None, "}"),
        piece(None, B, "g", "{2"), piece(None, None, None, "}"),
    ],
    "always index 0": [
        piece(0, A, "f", "{1"), piece(0, "", None, "}"),
        piece(0, B, "g", "{2"), piece(0, "", None, "}"),
    ],
    "ids on every piece": [
        piece(None, A, "f", "{1"), piece(None, B, "g", "{2"), piece(None, A, None, "}"),
        piece(None, B, None, "}"),
    ],
    "no ids": [
        piece(0, None, "f", "{1"), piece(0, None, None, "}"), piece(1, None, "g", "{2}"),
    ],
    "neither": [
        piece(None, None, "f", "{1"), piece(None, None, None, "}"), piece(None, None, "g", "{2}"),
    ],
    "a name on every piece": [
        piece(0, A, "f", "{1"), piece(0, None, "f", "}"), piece(1, B, "g", "{2}"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", STREAMS)
def test_pieces_come_to_their_calls(name):
    pieces = ToolPieces()
    found = {}
    for delta in map(pieces.take, STREAMS[name]):
        call = found.setdefault(delta.index, ["", ""])
        call[0] = call[0] or delta.name or ""
        call[1] += delta.arguments
    assert found == {0: ["f", "{1}"], 1: ["g", "{2}"]}


def test_a_tail_of_an_index_that_never_began_goes_to_the_last_call():
    pieces = ToolPieces()
    found = [pieces.take(p).index for p in (piece(1, A, "f", "{1"), piece(0, None, None, "}"))]
    assert found == [0, 0]
