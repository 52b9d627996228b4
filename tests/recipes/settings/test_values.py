"""Values of settings: for each type those that are refused and accepted, and settings that contradict each other."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Literal, get_args, get_origin, get_type_hints

import pytest
from pydantic import TypeAdapter
from support.settings import read, refusal

import fairseq_headgates
from commands import shown
from results.translation import COLUMNS as SHOWN
from settings import classification, declared, general, translation
from settings import types as t

DIGITS = dict.fromkeys(["x", "1e3", "6000.5", "010", "+5", " 5", "1_000", "९"], "must be a whole number, for")
HUGE = {"9" * 300: "must be below 1000000000000000000", "9" * 5000: "has too many digits"}
WHOLE = DIGITS | HUGE | dict.fromkeys(["0", "-5"], "must be 1 or more")
COUNT = DIGITS | HUGE | {"-1": "must be 0 or more"}
SEED = DIGITS | {"-1": "must be 0 or more", "4294967296": "must be 4294967295 or less"}
DECIMAL = dict.fromkeys(["high", "nan", "inf", "0,6", " 1", "1_0", "٠"], "must be a number, for example 0.1")
ABOVE_0 = DECIMAL | {"0": "must be above 0", "-0.1": "must be above 0", "1e999": "must be a finite number"}
SHARE = DECIMAL | {"1.5": "must be 1 or less", "-0.1": "must be 0 or more"}
PERCENT = DECIMAL | {"101": "must be 100 or less", "-1": "must be 0 or more"}
HEADS = dict.fromkeys(["1.5", "80%", "-1", "", "٥"], "must be a number of heads (12) or a fraction of them with a deci")
WEIGHT = dict.fromkeys(["-1", "nan", "inf", "x", "", "1e999", "٠"], "must be a finite number, 0 or more")
SCALE = WEIGHT | {"0": "must be above 0"}
METHOD = dict.fromkeys(
    ["l0", "magic", ""], "must be one of lagrangian, subset, subset-li2021, gradient, ablation, random, it"
)
TYPES = {
    "x": "'x' is not an attention type: choose from enc-self, dec-self, dec-enc, or all",
    "enc-self,": "'' is not an attention type",
    "all,enc-self": "'all' is not an attention type",
    "enc-self,enc-self": "'enc-self' is named twice",
}


def each(bad, form="{}"):
    """Bad values of a list, from those of its elements; the message has the element, too."""
    return {form.format(value): f"{shown(value)} {rule}" for value, rule in bad.items() if not {" ", ","} & {*value}}


TWICE = "must not name '{}' twice"
BAD = [
    (t.Whole, WHOLE),
    (t.Count, COUNT),
    (t.Seed, SEED),
    (t.Port, DIGITS | {"0": "must be 1 or more", "70000": "must be 65535 or less"}),
    (t.Number, DECIMAL | {"1e999": "must be a finite number"}),
    (t.Above0, ABOVE_0),
    (t.From0, DECIMAL | {"-0.1": "must be 0 or more"}),
    (t.Share, SHARE),
    (t.Percent, PERCENT),
    (t.Wholes, each(WHOLE, "1,{}") | {"1,": "'' must be a whole number"}),
    (t.Rates, each(ABOVE_0, "0.1,{}")),
    (t.Percents, each(PERCENT, "0,{}") | {"0 50": "'0 50' must be a number"}),
    (t.Cutoffs, {"5,3": "must be rising whole numbers, separated by commas: 20000,60000", "5,,9": "must be a whole"}),
    (t.Seeds, each(SEED, "1 {}") | {"1 1": TWICE.format(1), "1,2": "'1,2' must be a whole", " ": "must not be empty"}),
    (t.Epochs, each(WHOLE, "{} 9") | {"5 3": "with the largest one last", "1,2": "whole", " ": "must not be empty"}),
    (t.Words, {" ": "must have at least one word"}),
    (t.Word, {"a b": "must be one word", " ": "must be one word"}),
    (t.Language, dict.fromkeys(["en;ls", "../en", "en fr", "-s"], "must be a language as in the file names")),
    (t.Part, dict.fromkeys(["0/4", "5/4", "1", "1/0", "a/b"], "must be I/N, the I-th of N shares, for example 1/4")),
    (t.Heads, {value: rule for value, rule in HEADS.items() if value}),
    (t.Folder, {"/nowhere": "must be a folder that exists"}),
    (t.Place, {"/nowhere": "must be a folder that exists, or the address of a mirror"}),
    (t.Plugin, {"/nowhere": "must be the folder of the plugin, as `headgates path` prints it"}),
    (t.Optimizer, {"sgd": "must be adam or lamb", "lamb": "needs NVIDIA's apex, which is not installed"}),
    (t.Program, {"no-such-program x": "must be a command whose program is on the P", "python3 'a": "No closing quot"}),
    (t.EnglishRussianSet, {"wmt99": "must be a test set of sacreBLEU: ", "iwslt17": "wmt14"}),
    (t.Column, {"a b": "must be letters and digits", "../x": "must be letters"}),
    (t.Cleaning, {"yes": "must be options of text.clean; unrecognized arguments: yes", "x" * 9000: "unrecognized"}),
    (t.Cleaning, {"--max-lenght 1": "unrecognized arguments: --max-lenght 1", "--max-length": "expected one argument"}),
    (t.Cleaning, {"--max-length x": "--max-length: 'x' must be a whole number", "--max-ratio 0.5": "a number from 1"}),
    (t.Cleaning, {"--max-ratio nan": "argument --max-ratio: 'nan' must be a number from 1"}),
    (translation.Kinds, {"all all": TWICE.format("all")}),
    (translation.TypesOfRuns, TYPES | {"all all": TWICE.format("all")}),
    (translation.Methods, {"random magic": "'magic' must be one of", "random random": TWICE.format("random")}),
    (translation.Weights, each({k: v for k, v in WEIGHT.items() if k}, "0.1 {}") | {"1 1": TWICE.format(1)}),
    (classification.Curves, {"gradient size": "'size' must be gradient, ablation or random", "random random": "twice"}),
    (
        general.Runs,
        each({f"all:{value}": f"lambda {value!r} {rule}" for value, rule in WEIGHT.items()}, "all:1 {}")
        | each({f"all:1@{value}": f"scale {value!r} {rule}" for value, rule in SCALE.items()})
        | each({f"={value}": f"N {value!r} {rule}" for value, rule in HEADS.items()})
        | each({f"all=36@{value}": f"method {value!r} {rule}" for value, rule in METHOD.items()})
        | {f"{value}:0.1": rule for value, rule in TYPES.items()}
        | {"all": "must be TYPES:LAMBDA[@SCALE], TYPES=N[@METHOD], params=N[@only] or speed=X[@only]: in 'all' a co"}
        | {f"params={value}": f"params {value!r} must be a number of parameters" for value in ("1.5", "80%", "-1", "")}
        | {"params:0.7": "params has a colon instead of an equals sign", "params": "in 'params' a colon or an equals"}
        | {"params=0.7@gradient": "'@gradient' must be @only, without training", "params,all=1": "'params' is not an"}
        | {"speed=1": "speed '1' must be above 1, for example 1.5", "speed=x": "speed 'x' must be a finite number"}
        | {"all:1:2": "lambda '1:2' must be", "x" * 9000: "is missing", "all:1 all:1": TWICE.format("all:1")},
    ),
]


def types_of(recipe):
    """{name: type} of the settings of a recipe."""
    hints = get_type_hints(declared.RECIPES[recipe], include_extras=True)
    return {name: hints[name] for name in declared.RECIPES[recipe].model_fields}


SETTINGS = [(name, recipe, kind) for recipe in declared.RECIPES for name, kind in types_of(recipe).items()]
ONCE = {(name, id(kind)): (name, recipe, kind) for name, recipe, kind in reversed(SETTINGS)}


@pytest.mark.parametrize(("name", "recipe", "kind"), ONCE.values(), ids=[name for name, _ in ONCE])
def test_bad_values_of_its_type_are_refused(name, recipe, kind):
    if get_origin(kind) is Literal:
        words = get_args(kind)
        bad = {"x": f"must be {' or '.join([', '.join(words[:-1]), words[-1]])}", f"{words[0]} ": "must be"}
    elif get_origin(kind) is Annotated and kind == Annotated[list[t.Heads], t.BLANKS, t.ONCE]:
        bad = each({value: rule for value, rule in HEADS.items() if value}, "1 {}")
    else:
        bad = {value: rule for known, values in BAD if known is kind for value, rule in values.items()}
        assert kind is str or bad, f"the type of {name} has no bad values here"
    for value, rule in {**bad, "1\n2": "must be one line", "1\n": "must be one line"}.items():
        message = refusal(recipe, **{name: value})
        assert message.startswith(f"{name}={shown(value)} ") and rule in message, message


MT, LM, LABELS = "translation.sh", "language_model.sh", "classification.sh"


@pytest.mark.parametrize(
    ("recipe", "valid", "names"),
    [
        (MT, False, "BPE EMBED FFN LAYERS DECODER_LAYERS HEADS UPDATES SAVE_EVERY PRUNE_UPDATES ITERATIONS"),
        (MT, False, "MAX_TOKENS UPDATE_FREQ TOKENS_PER_UPDATE GENERATION_TOKENS SENTENCES BEAM WORKERS LR"),
        (MT, True, "EPOCHS AVERAGE WARMUP PRUNE_WARMUP SPARSITY_WARMUP FIX_AFTER L0_WARMUP GPUS"),
        (LM, True, "BPE VOCABULARY MEM_LEN MIN_LR DROPOUT SEED"),
        (LABELS, False, "BPE BATCH MLM_UPDATES MLM_TOKENS MLM_LR EVALUATION_TOKENS"),
        ("opensubtitles_en_ru.sh", False, "PAIRS HELD_OUT"),
        ("opensubtitles_en_ru.sh", True, "DISK_GB OVERLAP"),
    ],
)
def test_zero_is_a_value_of_some_settings(recipe, valid, names):
    for name in names.split():
        with nullcontext() if valid else pytest.raises(ValueError, match="greater"):
            TypeAdapter(types_of(recipe)[name]).validate_python("0")


PLUGIN = str(Path(fairseq_headgates.__file__).parent)
CONTRADICTIONS = [
    (MT, "HEADS=3", "HEADS=3 must divide EMBED=128"),
    (MT, "SEED=3;SEEDS=1 2", "SEED=3 and SEEDS='1 2': set only SEEDS"),
    (MT, "LAUNCHER=srun python3", "WORKERS must be set to the number of processes that LAUNCHER='srun p"),
    (MT, "SCHEDULE=polynomial_decay;EPOCHS=3", "SCHEDULE=polynomial_decay needs UPDATES"),
    (MT, "EPOCHS=3", "needs UPDATES, the number of updates of the baseline, not EPOCHS=3"),
    (MT, "SCHEDULE=inverse_sqrt;EPOCHS=0", "EPOCHS=0 would train without end"),
    (MT, "UPDATES=9000009;WARMUP=9000009", "WARMUP=9000009 must be below UPDATES=9000009"),
    (MT, "SCHEDULE=inverse_sqrt;WARMUP=0", "WARMUP=0 must be 1 or more with SCHEDULE=inverse_sqrt"),
    (MT, "PRUNE_SCHEDULE=cosine;PRUNE_UPDATES=9;PRUNE_WARMUP=9", "PRUNE_WARMUP=9 must be below PRUNE_UPDATES=9"),
    (MT, "PRUNE_SCHEDULE=inverse_sqrt;PRUNE_WARMUP=0", "PRUNE_WARMUP=0 must be 1 or more"),
    (MT, "AVERAGE=2", "AVERAGE=2 needs checkpoints to average: set SAVE_EVERY"),
    (MT, "DEV_TRANSLATIONS=2", "DEV_TRANSLATIONS=2 needs a checkpoint of every epoch: set KEEP_EPOCHS=1"),
    (MT, "AVERAGE=3;SAVE_EVERY=4;UPDATES=8;WARMUP=2", "AVERAGE=3 must be at most 2, the number of checkp"),
    (MT, "SCRATCH=dec-enc", "SCRATCH=dec-enc must be among the types of RUNS (all, enc-self)"),
    (MT, "RUNS=;SCRATCH=all", "SCRATCH=all must be among the types of RUNS (RUNS is empty)"),
    (MT, "RUNS=all=36 all=36@lagrangian", "RUNS must not name 'all=36@lagrangian' twice"),
    (MT, "RUNS=all=1 all=1@subset;SPARSITY_METHOD=subset", "RUNS must not name 'all=1@subset' twice"),
    (MT, "RUNS=:1 all:1", "must not name 'all:1' twice"),
    (MT, "RUNS=all=73", "more heads than there are: it must be at most 72 (enc-self 24, dec-self 24, dec-"),
    (MT, "RUNS=all=41;DECODER_LAYERS=1", "it must be at most 40 (enc-self 24, dec-self 8, dec-enc 8)"),
    (MT, "RUNS=enc-self=25@random", "at most 24 (enc-self 24)"),
    (MT, "RUNS=all=1@iterative;PRUNE_UPDATES=3;PRUNE_WARMUP=1", "ITERATIONS=4 must be at most PRUNE_UPDATES=3"),
    (
        MT,
        "METRIC=python3 x;METRIC_NAME=BLEU",
        "METRIC_NAME=BLEU is a column of the table: choose a name beside model, ",
    ),
    (MT, "ARCH=transformer_wmt_en_de_big_t2t;PRE_NORM=0", "and --encoder-normalize-before"),
    (MT, "ARCH=transfromer", "ARCH=transfromer must be an architecture of fairseq, for example"),
    (MT, "ARCH=lstm", "must be an architecture of fairseq's encoder-decoder transformer"),
    (MT, "ARCH=transformer_align", "must be an architecture of fairseq's encoder-decoder transformer"),
    (MT, "ARCH=transformer_wmt_en_de_big", "set ARCH=transformer, and --attention-dropout 0.1 in TRAIN_FLAGS"),
    ("iwslt14_de_en.sh", "SAVE_EVERY=100", "SAVE_EVERY=100 must not be set: MEASURED needs a checkpoint"),
    ("iwslt14_de_en.sh", "SEEDS=1 2", "SEEDS='1 2' must be one seed"),
    (LM, "RUNS=enc-self:0.1", "RUNS names 'enc-self:0.1': this model has no enc-self, only dec-self"),
    (LM, "RUNS=all:0.1 dec-self:0.1", "RUNS must not name 'dec-self:0.1' twice"),
    (LM, "MIN_LR=1e-2;LR=1e-3", "MIN_LR=1e-2 must be below LR=1e-3"),
    (LM, "MIN_LR=0.1;LR=1;PRUNE_LR=1e-2;PRUNE_SCHEDULE=cosine", "MIN_LR=0.1 must be below PRUNE_LR=1e-2"),
    (LM, "SCHEDULE=cosine;UPDATES=9;WARMUP=9", "WARMUP=9 must be below UPDATES=9"),
    (LM, "MEM_LEN=4", "MEM_LEN=4 has no effect on ARCH=transformer_lm: unset it"),
    (LM, "MAX_TOKENS=9", "MAX_TOKENS=9 must be at least TOKENS_PER_SAMPLE=128"),
    (LM, "EVAL_TOKENS=9", "EVAL_TOKENS=9 must be at least TOKENS_PER_SAMPLE=128"),
    (LM, "VOCABULARY=9", "VOCABULARY=9 has no effect with BPE=2000: set BPE=0"),
    (LABELS, "RUNS=all=33", "more heads than there are: it must be at most 32 (enc-self 32)"),
    (LABELS, "ENCODED=1", "ENCODED=1 needs PRETRAINED"),
    (LABELS, "PRETRAINED=/", "PRETRAINED=/ is a folder: give a RoBERTa checkpoint"),
    (LABELS, "MLM_WARMUP=9;MLM_UPDATES=9", "MLM_WARMUP=9 must be below MLM_UPDATES=9"),
    (LABELS, "UPDATE_FREQ=1,2", "UPDATE_FREQ=1,2 must be one number"),
    (LABELS, "MAX_POSITIONS=4", "MAX_POSITIONS=4 must be 8 or more"),
]
TOGETHER = [
    (MT, "BPE=;GPUS=;RUNS=;SCRATCH=;PAPER="),
    (MT, "LR=4e-3;DROPOUT=0;LENPEN=-.5;GATE_LR_SCALE=1E2;SEED=0"),
    (MT, "EPOCHS=0;UPDATES=700;UPDATE_FREQ=1,2, 4;PRUNE_LR=0.1,0.05"),
    (MT, "AVERAGE=2;SAVE_EVERY=4;UPDATES=5;WARMUP=2;PRUNE_UPDATES=4"),
    (MT, "AVERAGE=50;SAVE_EVERY=4;EPOCHS=2;SCHEDULE=inverse_sqrt"),  # the number of updates is not known
    (MT, "CLEAN=--max-length 200 --max-ratio inf --unique --without a b;WORKERS=3"),
    (MT, "RUNS=enc-self:0 dec-enc,enc-self:1e-2\tall:.5;SCRATCH=all  enc-self"),
    (MT, "RUNS=all=36 all=36@subset all=36@iterative all=0.5@random enc-self=0 all:1@7.5"),
    (MT, "SEED=3;SEEDS=3;METRIC=python3 -m 'my metric';METRIC_NAME=COMET-22"),
    (MT, "ARCH=transformer_vaswani_wmt_en_de_big;PRE_NORM=0"),
    (MT, "ARCH=transformer_head_gates;PRUNE_SCHEDULE=fixed;PRUNE_UPDATES=5;PRUNE_WARMUP=9"),
    (MT, "LAUNCHER=srun python3;WORKERS=16;HOSTS=a b;SRC=zh_CN;TGT=pt-br;RAW_DIR=it's here"),
    (LM, "ARCH=transformer_lm_all_attention;MEM_LEN=0;PERSISTENT_VECTORS=4;RUNS=:0 all:.1;GATE_INIT=-2"),
    (LM, "BPE=0;VOCABULARY=9;ADAPTIVE=4;SCHEDULE=cosine;MIN_LR=0;LR=1e-3;RUNS=all=0.5@iterative"),
    ("wmt_en_ru.sh", f"DATA_DIR=https://example.com/mirror;SHARE=4/4;RAW_DIR=/;HEADGATES={PLUGIN}"),
    ("sweep.sh", "LAMBDAS=1e-5 0.12345678;TARGETS=;METHODS="),
]


def words(text):
    return dict(word.split("=", 1) for word in text.split(";"))


@pytest.mark.parametrize(("recipe", "given", "message"), CONTRADICTIONS)
def test_contradictions_are_refused(recipe, given, message):
    assert message in refusal(recipe, **words(given))


def test_a_metric_cannot_have_the_name_of_a_column():
    assert ("model", *(column.title for column in SHOWN)) == translation.COLUMNS


@pytest.mark.parametrize(("recipe", "given"), TOGETHER)
def test_valid_settings_are_accepted(recipe, given):
    read(recipe, **words(given))
