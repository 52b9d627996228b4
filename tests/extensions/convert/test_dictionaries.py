"""The dictionaries of a checkpoint."""

import pytest
import torch

from fairseq_headgates.checkpoints import load_checkpoint
from fairseq_headgates.extensions.convert.dictionaries import load_dictionaries


def test_dictionaries(gated, toy, tmp_path):
    state = load_checkpoint(str(gated))
    state["cfg"]["task"] |= {"source_lang": "src", "target_lang": "tgt"}  # as -s and -t would have it
    source, target = load_dictionaries(state, toy.data)
    assert source.symbols == target.symbols and len(source) == len(state["model"]["encoder.embed_tokens.weight"])
    for language in ("src", "tgt"):
        (tmp_path / f"dict.{language}.txt").write_text((toy.data / f"dict.{language}.txt").read_text())
    assert load_dictionaries(state, str(tmp_path))[0].symbols == source.symbols
    for language in ("tgt", "src"):
        with (tmp_path / f"dict.{language}.txt").open("a") as file:
            file.write("new 1\n")
        sizes = f"dict.{language}.txt has {len(source) + 1} symbols, the checkpoint {len(source)}"
        with pytest.raises(ValueError, match=sizes):
            load_dictionaries(state, str(tmp_path))
    (tmp_path / "dict.src.txt").write_text((toy.data / "dict.src.txt").read_text())
    (tmp_path / "dict.tgt.txt").unlink()
    with pytest.raises(
        ValueError, match=f"no dictionary .*dict.tgt.txt.*DATA.* .the checkpoint was trained on '.*{toy.data.name}"
    ):
        load_dictionaries(state, str(tmp_path))
    state["cfg"]["task"] |= {"source_lang": "../src"}
    with pytest.raises(ValueError, match="cannot infer the languages"):
        load_dictionaries(state, str(tmp_path))


MULTILINGUAL = {"task": "translation_multi_simple_epoch", "lang_pairs": ["src-tgt", "src-fr"]}
MULTILINGUAL["lang_tok_style"] = "multilingual"


@pytest.mark.parametrize(
    ("task", "added"),
    [
        ({**MULTILINGUAL, "langs": ["src", "fr"]}, ["__src__", "__fr__"]),
        ({**MULTILINGUAL, "langs": "src,fr", "lang_tok_style": "mbart"}, ["[src]", "[fr]", "<mask>"]),
        ({**MULTILINGUAL, "lang_dict": "/elsewhere/langs.txt"}, ["__fr__", "__zh_CN__", "__src__"]),  # mBART-50
        ({**MULTILINGUAL, "lang_dict": "none.txt"}, "the languages .--lang-dict.*copy the file of the training to"),
        (
            {**MULTILINGUAL, "langs": ["src", "fr"], "add_data_source_prefix_tags": True},  # NLLB
            ["__src__", "__fr__", "<MINED_DATA>", "<MMT_BT_DATA>", "<SMT_BT_DATA>"],
        ),
        ({"_name": "denoising"}, ["<mask>"]),
        ({**MULTILINGUAL, "langs": 3}, ["__fr__", "__src__", "__tgt__"]),
        ({"task": "translation_from_pretrained_bart"}, "fine-tune mBART with --task translation_multi_simple_epoch"),
    ],
)
def test_dictionaries_have_the_symbols_that_the_task_adds(task, added, gated, toy, tmp_path):
    state = load_checkpoint(str(gated))
    state["cfg"]["task"] = task
    (tmp_path / "dict.txt").write_text((toy.data / "dict.src.txt").read_text())
    (tmp_path / "langs.txt").write_text("fr\nzh_CN\nsrc\n")
    for side in ("encoder", "decoder"):
        weight = state["model"][f"{side}.embed_tokens.weight"]
        more = 1 if isinstance(added, str) else len(added)
        state["model"][f"{side}.embed_tokens.weight"] = torch.cat([weight, weight[:more]])
    if isinstance(added, str):
        with pytest.raises(ValueError, match=added):
            load_dictionaries(state, tmp_path)
        return
    source, target = load_dictionaries(state, tmp_path)
    assert source.symbols == target.symbols and source.symbols[-len(added) :] == added
    source.save(str(tmp_path / "dict.txt"))  # as for --fixed-dictionary
    (tmp_path / "langs.txt").unlink()
    assert load_dictionaries(state, tmp_path)[0].symbols == source.symbols


def test_dictionaries_of_unknown_languages_are_refused_with_a_reason(gated, toy, tmp_path):
    """A folder with dictionaries alone, and a run that inferred its languages: the message must say what is missing."""
    for language in ("src", "tgt"):
        (tmp_path / f"dict.{language}.txt").write_text((toy.data / f"dict.{language}.txt").read_text())
    with pytest.raises(ValueError) as error:
        load_dictionaries(load_checkpoint(str(gated)), str(tmp_path))
    assert "None" not in str(error.value)


def test_a_dictionary_in_another_encoding(gated, tmp_path):
    state = load_checkpoint(str(gated))
    state["cfg"]["task"] |= {"source_lang": "src", "target_lang": "tgt"}
    (tmp_path / "dict.src.txt").write_bytes(b"\xff\xfe 1\n")
    with pytest.raises(ValueError, match="dict.src.txt"):
        load_dictionaries(state, str(tmp_path))


def test_byte_order_marks_of_both_dictionaries_of_a_checkpoint_are_ignored(tmp_path, gated, toy):
    state = load_checkpoint(str(gated))
    state["cfg"]["task"] |= {"source_lang": "src", "target_lang": "tgt"}
    expected = [dictionary.symbols for dictionary in load_dictionaries(state, toy.data)]
    for language in ("src", "tgt"):
        path = tmp_path / f"dict.{language}.txt"
        path.write_bytes(b"\xef\xbb\xbf" + (toy.data / path.name).read_bytes())
    assert [dictionary.symbols for dictionary in load_dictionaries(state, str(tmp_path))] == expected
