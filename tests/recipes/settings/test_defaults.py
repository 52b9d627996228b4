"""Defaults of the recipes, those that depend on other settings, and the settings that a folder of results records."""

import pytest
from support.settings import exported, read

from commands import Refused
from settings import record
from settings.configure import recorded

# As in the papers and the code of their authors, and in fairseq's examples.
VOITA = "EMBED=512 FFN=2048 LAYERS=6 HEADS=8 DROPOUT=0.1 TOKENS_PER_UPDATE=16000 WARMUP=16000 PRUNE_WARMUP=16000 "
VOITA += "BEAM=4 LENPEN=0.6 BPE=32000 UNTIED=1 JOINT=0 LOWERCASE=1 SCRATCH=all AVERAGE=10 UPDATES=100000 PAPER="
SHIM = (
    "LAYERS=16 HEADS=8 EMBED=512 TOKENS_PER_SAMPLE=192 MEM_LEN=192 PERSISTENT_VECTORS=2048 SCHEDULE=cosine PAPER=shim "
)
SHIM += "TOKENS_PER_UPDATE=36864 L0_WARMUP=2800 GATE_INIT=2 GATE_HARD=1 GATE_OUTPUT_SCALE=1 GATE_LR_SCALE=10 "
MNLI = "EMBED=768 FFN=3072 LAYERS=12 UPDATES=123873 LR=1e-5 WARMUP=7432 BATCH=32 PRUNE_LR=1e-5 RUNS=all:0.0015 "
SMALL = "SEEDS=1 PORT=29500 DRY_RUN=0 GPUS= UPDATE_FREQ=1 ITERATIONS=4 SENTENCES=2000 SHARE= "
MT, LM, CLASSES, ALL = "translation.sh", "language_model.sh", "classification.sh", "ARCH=transformer_lm_all_attention"


@pytest.mark.parametrize(
    ("recipe", "given", "expected"),
    [
        (MT, "", SMALL + "UPDATES=6000 EPOCHS= DECODER_LAYERS=3 PRUNE_LR=0.004 PRUNE_WARMUP=100 SPARSITY_WARMUP=400"),
        (MT, "", "FIX_AFTER=600 PRUNE_UPDATES=2000 CLEAN= SCRATCH= PAPER= METRIC_NAME=metric BEAM=4"),
        (MT, "LAYERS=5 LR=1e-3 PRUNE_UPDATES=1010", "DECODER_LAYERS=5 PRUNE_LR=1e-3 PRUNE_WARMUP=50 FIX_AFTER=303"),
        (MT, "SCHEDULE=inverse_sqrt", "EPOCHS=16 UPDATES="),
        (MT, "SCHEDULE=inverse_sqrt EPOCHS=3", "EPOCHS=3 UPDATES="),
        (MT, "BPE= RUNS= SCRATCH= SEEDS=", "BPE=6000 RUNS= SCRATCH= SEEDS=1"),
        ("sweep.sh", "", "RUNS=all=0.5@lagrangian;all=0.25@lagrangian;all=0.125@lagrangian LAMBDAS= TYPES=all JOBS="),
        (
            "demo.sh",
            "",
            "UPDATES=260 EMBED=64 LAYERS=2 DECODER_LAYERS=1 RUNS=all=0.5 OMP_NUM_THREADS=1",
        ),
        ("wmt_en_ru.sh", "", VOITA + "wmt DEV=wmt13 TEST=wmt14 EXPECTED_PAIRS=2500000 DISK_GB=64"),
        ("wmt_en_ru.sh", "RUNS=enc-self:0.1 WARMUP=9", "SCRATCH= PRUNE_WARMUP=9"),
        ("wmt_en_ru.sh", "RUNS=:0.1 SCRATCH=", "SCRATCH= PRECISION= DATA_DIR="),
        ("wmt_en_ru.sh", "RUNS=:0.1", "SCRATCH=all"),
        ("opensubtitles_en_ru.sh", "", VOITA + "opensubtitles OVERLAP=0.9 PAIRS=6000000 HELD_OUT=10000"),
        ("iwslt14_de_en.sh", "", "EPOCHS=40 UPDATES= RUNS= KEEP_EPOCHS=1 MEASURED=1;2;3;5;10;20;30;40 GPUS=1 BEAM=5"),
        ("iwslt14_de_en.sh", "MEASURED=2;7 EPOCHS=1 RUNS=all=1", "EPOCHS=7 RUNS="),
        ("prune_pretrained.sh", "TGT=", "SRC=en TGT=fr KEEP=0.8 BEAM=5 TOKENIZE=tokenize;-a SENTENCES="),
        ("prune_pretrained.sh", "TOKENIZE=", "TOKENIZE="),
        (
            LM,
            "",
            SMALL + "RUNS=all:0.02;all:0.04 TOKENS_PER_SAMPLE=128 MEM_LEN= L0_WARMUP= GATE_HARD=0 SPEED=1",
        ),
        (LM, ALL, "RUNS=all:0.1;all:0.2 TOKENS_PER_SAMPLE=64 MEM_LEN=64 STREAM_BLOCKS=64 PERSISTENT_VECTORS=256"),
        (LM, ALL + " PRUNE_UPDATES=1000", "L0_WARMUP=400 GATE_INIT=2 GATE_HARD=1 GATE_OUTPUT_SCALE=0"),
        (LM, ALL + " TOKENS_PER_SAMPLE=32 EMBED=8", "MEM_LEN=32 PERSISTENT_VECTORS=32"),
        ("wikitext103.sh", "", SHIM + "LR=0.0003 MIN_LR=0.00003 RUNS=all:0.01;all:0.015;all:0.02"),
        (CLASSES, "", SMALL + "PRUNE_UPDATES=1000 PRUNE_LR=0.0003 PRUNE_WARMUP=60 SPARSITY_WARMUP=200 FIX_AFTER=300"),
        (
            CLASSES,
            "",
            "PRETRAINED_DICT= RUNS=all=0.8;all=0.6;all=0.4;all=0.2 TOKENIZE=-l;en;tokenize STEPS=20,40,60,80",
        ),
        (CLASSES, "UPDATES=500 CURVES=", "PRUNE_UPDATES=500 PRUNE_WARMUP=30 CURVES="),
        (CLASSES, "PRETRAINED=a/m.pt", "PRETRAINED_DICT=a/dict.txt PRETRAINED_CODES=a/bpecodes"),
        (CLASSES, "PRETRAINED=m.pt ENCODED=1", "PRETRAINED_DICT=./dict.txt PRETRAINED_CODES="),
        ("mnli.sh", "", MNLI + "CURVES=gradient GATE_LR_SCALE=10000 FIX_AFTER=0 SENTENCES=392702 MODEL=roberta.base"),
    ],
)
def test_defaults(recipe, given, expected):
    given, expected = (dict(w.replace(";", " ").split("=", 1) for w in text.split()) for text in (given, expected))
    found = exported(recipe, **given)
    assert {name: found[name] for name in expected} == expected


def test_a_tokenizer_beside_a_pretrained_model_encodes_the_text(tmp_path):
    (tmp_path / "tokenizer.json").touch()
    for given, expected in (({}, str(tmp_path / "tokenizer.json")), ({"ENCODED": "1"}, "")):
        assert exported(CLASSES, PRETRAINED=str(tmp_path / "m.pt"), **given)["PRETRAINED_CODES"] == expected


@pytest.mark.parametrize(
    ("outer", "inner"),
    [(f"{name}.sh", MT) for name in ("sweep", "demo", "wmt_en_ru", "opensubtitles_en_ru", "iwslt14_de_en")]
    + [("wikitext103.sh", LM), ("mnli.sh", CLASSES)],
)
def test_a_recipe_that_another_one_starts_has_the_same_settings(outer, inner):
    """The outer one exports all of them, empty ones included."""
    for given in ({}, {"SEEDS": "3", "RUNS": "", "DRY_RUN": "1"}, {"PRUNE_UPDATES": "77000", "SEEDS": "1"}):
        outside = exported(outer, **given)
        inside = exported(inner, **outside)
        differ = {name for name, value in inside.items() if outside.get(name, value) != value}
        assert differ <= {"RAW_DIR", "SRC", "TGT"}  # its arguments


def test_records_have_what_later_runs_may_not_change():
    def of(recipe, name="settings", **given):
        return dict(word.split("=", 1) for word in recorded(read(recipe, **given), name).split())

    found = of(MT, CLEAN="--unique  --max-length 9", UPDATE_FREQ="1, 2", SEEDS="1\t2", TRAIN_FLAGS="")
    assert (found["CLEAN"], found["UPDATE_FREQ"], found["SEEDS"]) == ("--unique,--max-length,9", "1,2", "several")
    assert found["TRAIN_FLAGS"] == "" and found["MAX_TOKENS"] == "2500" and "TOKENS_PER_UPDATE" not in found
    assert not {"RUNS", "PRUNE_LR", "GPUS", "DRY_RUN", "SPEED", "UNTIED", "SELECTION", "BEAM", "OUT_DIR"} & {*found}
    assert of(MT, SEEDS="4")["SEEDS"] == "4" and of(MT, UNTIED="1")["UNTIED"] == "1"
    # The batches of a machine are not part of the experiment.
    found = of(MT, TOKENS_PER_UPDATE="9000")
    assert found["TOKENS_PER_UPDATE"] == "9000" and not {"MAX_TOKENS", "UPDATE_FREQ"} & {*found}
    assert "BATCH" in (found := of(CLASSES)) and "UPDATE_FREQ" not in found
    assert of(CLASSES, OUT_DIR="o", PRETRAINED="o/model/o/m.pt")["PRETRAINED_DICT"] == "model/o/dict.txt"
    assert of(MT, "runs").keys() >= {"PRUNE_LR", "PRUNE_UPDATES"}
    assert of(MT, "generation") == {
        "BEAM": "4",
        "LENPEN": "1",
    }
    assert of(CLASSES, "curves") == {"STEPS": "20,40,60,80"} and of(LM, "evaluation") == {"EVAL_TOKENS": "4096"}
    assert of("wmt_en_ru.sh", "data") == {"DEV": "wmt13", "TEST": "wmt14"}


def test_other_settings_than_those_recorded_are_refused(tmp_path):
    record.main([str(tmp_path), "settings", "A=1 B=2", "runs", "C=3"])
    for name, words in (("settings", "A=1 B=2"), ("settings", "B=2 A=1"), ("runs", "C=3"), ("other", "D=1")):
        record.main([str(tmp_path), name, words, "--check"])
    for words, message in (("A=1 B=3", "B=2"), ("A=1", "B=2"), ("A=1 B=2 D=4", "without D"), ("A=3 B=3", "A=1 B=2")):
        with pytest.raises(Refused, match=rf"was made with other settings \({message}\): take another folder"):
            record.main([str(tmp_path), "settings", words])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs.txt", "settings.txt"]
    assert (tmp_path / "settings.txt").read_text() == "A=1 B=2\n"
