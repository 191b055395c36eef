"""Stop texts are found wherever tokens are cut, and no part of one is given out."""

from __future__ import annotations

import random

import pytest

import mansard
from mansard.language.stop_texts import StopTexts, checked_stop


def given(pieces, stop):
    stops, told = StopTexts(stop), ""
    for piece in pieces:
        text, complete = stops.add(piece)
        told += text
        if complete:
            return told
    return told + stops.finish()


@pytest.mark.parametrize(
    ("text", "stop", "expected"),
    [
        ("one two three", ["two"], "one "),
        ("one tw", ["two"], "one tw"),
        ("aab", ["ab"], "a"),
        ("xabc", ["abc", "ab"], "x"),
        ("xabc", ["xabcd", "bc"], "xa"),
        ("ababac", ["abac"], "ab"),
        ("nothing", [], "nothing"),
        ("\n\n", ["\n\n"], ""),
    ],
)
def test_text_ends_before_the_first_stop_text_to_be_complete(text, stop, expected):
    assert given([text], stop) == given(list(text), stop) == expected


def test_how_text_is_cut_does_not_matter():
    chance = random.Random(4)
    for _ in range(500):
        text = "".join(chance.choices("ab", k=20))
        stop = ["".join(chance.choices("ab", k=chance.randint(1, 6))) for _ in range(chance.randint(1, 3))]
        cuts = sorted(chance.sample(range(21), 5))
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, 20], strict=True)]
        assert given(pieces, stop) == given(list(text), stop), (text, stop, pieces)


def test_nothing_of_a_stop_text_is_given_out_early():
    stops = StopTexts(["STOP"])
    assert [stops.add(c)[0] for c in "aSTxSTO"] == ["a", "", "", "STx", "", "", ""]
    assert stops.finish() == "STO"


def test_wrong_stop_texts_are_refused():
    assert checked_stop("a") == ("a",)
    for wrong in ("", ["a", ""], [1], 3):
        with pytest.raises(mansard.InputError, match="stop"):
            checked_stop(wrong)
