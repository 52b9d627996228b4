"""Masks and tables: reading, writing, refusing."""

import json
import os
import re
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairseq_headgates.cli.main import main
from fairseq_headgates.cli.output import say
from fairseq_headgates.files import write_whole
from fairseq_headgates.heads import (
    TYPES,
    HeadId,
    HeadTable,
    as_mask,
    check_shape,
    mask_to_json,
    parse_mask,
    parse_scores,
    parse_types,
    read_scores,
    scores_to_json,
)

layers = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=4), min_size=1, max_size=3)
masks = st.dictionaries(st.sampled_from(TYPES), layers, min_size=1)


def test_score_files_and_masks_control_no_terminal(tmp_path, capsys):
    """Names may hold escape sequences, directions of writing and forged lines."""
    evil, files = "x\x1b]0;title\x07\u202e\nFORGED\r", [str(tmp_path / name) for name in ("a.json", "b.json")]
    for path, method in zip(files, (evil, f"{evil}2"), strict=True):
        scores = HeadTable({"enc-self": [[1.0, 2.0], [3.0, 5.0]]}, "gradient")
        write_whole(
            path, scores_to_json([scores]).replace('"gradient"', json.dumps(method)).replace('""', json.dumps(evil))
        )
    assert main(["correlate", *files]) == 0
    mask = parse_mask(json.dumps({"enc-self": [[1]], "signature": evil}))
    say(f"{capsys.readouterr().out}{mask.signature}\x1b[2J")
    out = capsys.readouterr().out
    assert {c for c in out if not c.isprintable()} == {"\n"} and "\nFORGED" not in out and r"x\x1b]0;title" in out


@given(masks, st.booleans())
def test_a_mask_is_the_same_after_writing_and_reading(values, one_line):
    mask = HeadTable(values, "alive", "ckpt:x.pt")
    text = mask_to_json(mask, one_line)
    assert json.loads(text)["format"] == "headgates.heads/1"
    assert parse_mask(text) == mask


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"enc-self": [[1, 0], [1, 2]]}', "enc-self.1.1 must be 1 or 0, not 2: a mask looks like"),
        ('{"encoder": [[1]]}', "key must be enc-self or dec-self or dec-enc, not 'encoder'"),
        ('{"format": "headgates.heads/9", "enc-self": [[1]]}', "format must be headgates.heads/1"),
        ('{"enc-self": [[1, 0]', "is not JSON"),
        ("no/such/file.json", "cannot read the mask 'no/such/file.json' .No such file"),
        ("heads\0.json", "cannot read the mask .*null (byte|character)"),
    ],
)
def test_bad_masks_are_refused_in_one_line(text, message):
    with pytest.raises(ValueError, match=message) as error:
        parse_mask(text)
    assert "\n" not in str(error.value)


def test_a_long_value_is_shortened_in_the_error():
    with pytest.raises(ValueError, match=r"\.\.\. \(100,0\d\d characters\)") as error:
        parse_mask('{"' + "x" * 100_000 + '": [[1]]}')
    assert len(str(error.value)) < 500


@pytest.mark.parametrize("read", [parse_mask, read_scores])
def test_pipes_devices_and_huge_files_are_not_opened(read, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 2**40)  # without taking up space
    for name, reason in (
        ("pipe", "not a regular file"),
        ("link", "not a regular file"),
        ("large", "more than 67,108,864 bytes"),
    ):
        with pytest.raises(ValueError, match=f"cannot read .*{name}' .it .*{reason}.*: give the path of a JSON file"):
            read(str(tmp_path / name))


MASK = {"enc-self": [[1, 0], [1, 1]]}


def test_a_mask_is_accepted_in_every_form(tmp_path):
    file = tmp_path / "heads.json"
    file.write_text(json.dumps({"format": "headgates.heads/1", **MASK}))
    table = HeadTable(MASK, "alive")
    forms = [MASK, {"enc-self": ([1, 0], (1, 1))}, {"enc-self": torch.tensor(MASK["enc-self"])}, file, str(file)]
    forms += [json.dumps(MASK), table, {"enc-self": [torch.tensor([1.0, 0.0]), [1, 1]]}]
    assert [as_mask(form) for form in forms] == [table] * len(forms)


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (5, TypeError, "os.PathLike object, not int"),
        ({"enc-self": torch.tensor([1, 0])}, ValueError, "enc-self.0 must be a list, not 1"),
        ({3: [[1]]}, ValueError, "key must be .*, not 3"),
    ],
)
def test_other_forms_of_a_mask_are_refused(mask, error, message):
    with pytest.raises(error, match=message):
        as_mask(mask)


def test_two_score_tables_of_one_method_are_refused(tmp_path):
    """Of two tables of one method the last one was taken in silence."""
    table = {"format": "headgates.scores/1", "method": "gradient", "scores": {"enc-self": [[1]]}}
    (tmp_path / "s.json").write_text(json.dumps([table, table]))
    with pytest.raises(ValueError, match="s.json has two tables of the method 'gradient': --method cannot choose"):
        read_scores(str(tmp_path / "s.json"))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"enc-self": [[1, NaN]]}', "scores.enc-self.0.1 must be a finite number, not nan"),
        (None, "format must be headgates.scores/1, not 'headgates.heads/1'"),
    ],
)
def test_bad_score_files_are_refused(content, message, tmp_path):
    file = f'{{"format": "headgates.scores/1", "method": "gradient", "signature": "x", "scores": {content}}}'
    (tmp_path / "scores.json").write_text('{"format": "headgates.heads/1"}' if content is None else file)
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        parse_scores(str(tmp_path / "scores.json"))
    assert "\n" not in str(error.value)


def test_shape_errors_come_all_at_once():
    mask = HeadTable({"enc-self": [[1, 1], [1]], "dec-enc": [[1]]})
    check_shape(HeadTable({"enc-self": [[1, 1], [0, 1]]}), {"enc-self": (2, 2)})
    with pytest.raises(ValueError, match=r"layer 1 has 1 heads, the model has 2; the model has no dec-enc attention"):
        check_shape(mask, {"enc-self": (2, 2)})
    with pytest.raises(ValueError, match="enc-self has 2 layers, the model has 6"):
        check_shape(mask, {"enc-self": (6, 2), "dec-enc": (1, 1)})


def test_types():
    assert parse_types("dec-enc, enc-self") == ("enc-self", "dec-enc")
    assert parse_types("") == parse_types(None) == ()
    with pytest.raises(ValueError, match="unknown attention type 'encself': choose from enc-self"):
        parse_types("encself")


def test_a_table_is_a_mapping_from_heads_to_numbers():
    """As a dict with the same pairs; what is no head of it is no key, negative numbers included."""
    table = HeadTable({"dec-enc": [[0.5, 0.0]], "enc-self": [[1.0], [0.25, 3]]})
    same = {("enc-self", 0, 0): 1.0, ("enc-self", 1, 0): 0.25, ("enc-self", 1, 1): 3} | {
        ("dec-enc", 0, 0): 0.5,
        ("dec-enc", 0, 1): 0.0,
    }
    assert isinstance(table, Mapping) and dict(table) == same and len(table) == len(same)
    for view in ("keys", "values", "items"):
        assert list(getattr(table, view)()) == list(getattr(same, view)())
    assert max(table, key=table.get) == HeadId("enc-self", 1, 1) in table
    for other in (
        ("enc-self", 0, 1),
        ("enc-self", 0, -1),
        ("enc-self", -1, 0),
        ("dec-self", 0, 0),
        "enc-self",
        3,
        None,
    ):
        assert other not in table and table.get(other, 7) == 7
        with pytest.raises(KeyError):
            table[other]
    assert not HeadTable({"enc-self": [[]]})


def test_a_table_counts_its_open_heads():
    table = HeadTable({"dec-enc": [[0.5, 0.0]], "enc-self": [[1.0], [0.25]]}, "gate")
    assert table.types == ("enc-self", "dec-enc")
    assert (table.count("enc-self"), table.count("dec-enc")) == ((2, 2), (1, 2))
    assert table.map(lambda v: 1 - v).heads("dec-enc") == [0.5, 1.0]
