"""JSON that is read into dataclasses."""

import math
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from fairseq_headgates.files import parse_json, read_record, read_records, to_json


@dataclass(frozen=True)
class Inner:
    score: float
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Outer:
    format: Literal["x/1"]
    name: str
    number: int
    rows: dict[Literal["a", "b"], list[list[Literal[1, 0]]]]
    inner: dict[str, Inner]
    rest: list[Any]


GOOD = {
    "format": "x/1",
    "name": "of\nit",
    "number": 1,
    "rows": {"a": [[1, 0], []]},
    "inner": {"BLEU\n": {"score": 3, "interval": [1, 2.5], "unknown": "x"}, "y": {"score": 4e300}},
    "rest": ["as\nit is"],
}


def read(**changes):
    return read_record(Outer, GOOD | changes, "x.json", "write it again")


def test_objects_become_dataclasses():
    found = read()
    assert found == read_records(Outer, [GOOD], "x.json", "")[0] == read_records(Outer, GOOD, "x.json", "")[0]
    assert found.name == "of\\nit" and found.rest == ["as\nit is"] and found.rows == {"a": [[1, 0], []]}
    assert found.inner == {"BLEU\\n": Inner(3.0, (1.0, 2.5)), "y": Inner(4e300, None)}
    assert isinstance(found.inner["BLEU\\n"].score, float)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": "x/2"}, "format must be x/1, not 'x/2'"),
        ({"name": 3}, "name must be text, not 3"),
        ({"number": -1}, "number must be a whole number from 0 to 2^63 - 1, not -1"),
        ({"number": 2**63}, "number must be a whole number from 0 to 2^63 - 1, not 9223372036854775808"),
        ({"number": True}, "number must be a whole number from 0 to 2^63 - 1, not True"),
        ({"rows": {"c": []}}, "rows.key must be a or b, not 'c'"),
        ({"rows": {"a": [[1], [1, 2]]}}, "rows.a.1.1 must be 1 or 0, not 2"),
        ({"rows": {"a": [[True]]}}, "rows.a.0.0 must be 1 or 0, not True"),
        ({"rows": {"a": [1]}}, "rows.a.0 must be a list, not 1"),
        ({"inner": []}, "inner must be an object, not []"),
        ({"inner": {"y": {}}}, "inner.y has no score"),
        ({"inner": {"y": {"score": True}}}, "inner.y.score must be a finite number, not True"),
        ({"inner": {"y": {"score": math.inf}}}, "inner.y.score must be a finite number, not inf"),
        ({"inner": {"y": {"score": 10**400}}}, "inner.y.score must be a finite number, not 1000000"),
        ({"inner": {"y": {"score": math.nan}}}, "inner.y.score must be a finite number, not nan"),
        ({"inner": {"y": {"score": 1, "interval": [1]}}}, "inner.y.interval must be a list of 2, not [1]"),
    ],
)
def test_other_content_is_refused_with_its_place_and_rule(changes, words):
    with pytest.raises(ValueError) as error:
        read(**changes)
    said = str(error.value)
    assert said.startswith(f"x.json: {words}") and said.endswith(": write it again") and len(said) < 400


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (7, "x.json: it must be an object, not 7: hint"),
        ([GOOD, "x"], "x.json: it must be an object, not 'x': hint"),
    ],
)
def test_a_file_has_an_object_or_a_list_of_objects(content, words):
    with pytest.raises(ValueError) as error:
        read_records(Outer, content, "x.json", "hint")
    assert str(error.value) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "Expecting value"),
        ("[" * 100_000, "recursion"),
        ('{"a": 1' + "0" * 5000 + "}", "Exceeds the limit"),
        ('{"a": [{"b": 1, "c": 2, "b": 1}]}', "it has the key 'b' twice in one object"),
    ],
)
def test_other_text_is_refused(text, words):
    with pytest.raises(ValueError, match=r"x\.json is not JSON \(.*\): hint$") as error:
        parse_json(text, "x.json", "hint")
    assert words in str(error.value) and len(str(error.value)) < 300


def test_json_has_null_for_numbers_that_are_not_finite():
    value = {"a": [math.inf, (1, -math.inf), {"b": math.nan, "c": 1e308}], "d": "NaN", "e": None, "f": True}
    expected = {"a": [None, [1, None], {"b": None, "c": 1e308}], "d": "NaN", "e": None, "f": True}
    assert parse_json(to_json(value), "", "") == parse_json(to_json(value, indent=1), "", "") == expected
    assert "\n" in to_json(value, indent=1)
