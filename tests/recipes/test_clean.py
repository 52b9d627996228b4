"""recipes/scripts/clean.py: which sentences repeat themselves."""

from __future__ import annotations

import random
import re

import pytest

import clean


@pytest.mark.parametrize("times", [1, 2, 3])
def test_sentences_repeat_themselves_as_a_regular_expression_finds(times):
    draw = random.Random(times)
    pattern = re.compile(rf"(^| )(\S+( \S+){{0,3}})( \2){{{times}}}( |$)")
    sentences = [" ".join(draw.choices(["a", "ab", "b"], k=draw.randrange(12))) for _ in range(500)]
    expected = [bool(pattern.search(sentence)) for sentence in sentences]
    assert [clean.repeats(sentence, times) for sentence in sentences] == expected and len(set(expected)) == 2


def test_pairs_whose_translation_repeats_itself_are_removed(tmp_path, monkeypatch, capsys):
    sources = ["no", "no no no", "so", "that is that", "five"]
    targets = ["nein nein", "nein", "so so so", "das ist das ist das ist", "v w x y z " * 3]
    for language, lines in (("en", sources), ("de", targets)):
        (tmp_path / f"from.{language}").write_text("".join(line + "\n" for line in lines))
    names = [str(tmp_path / name) for name in ("from", "to")]
    monkeypatch.setattr("sys.argv", ["clean.py", *names, "en", "de", "--max-repeats", "2"])
    clean.main()
    assert "\nrepeats       -2  -40.00%\n" in capsys.readouterr().out
    for german, reason in (("one\n", "must be aligned"), ("ja ja ja\n" * 5, "no pair is left")):
        (tmp_path / "from.de").write_text(german)  # what was written before stays
        with pytest.raises(ValueError, match=reason):
            clean.main()
    assert (tmp_path / "to.en").read_text() == "no\nno no no\nfive\n"
