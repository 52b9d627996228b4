"""Values of settings: of each type one of each kind that is refused, and settings that contradict each other."""

from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError
from support.settings import read, refusal

import fairseq_headgates
from results.translation import COLUMNS as SHOWN
from settings import classification, general, translation
from settings import types as t

WHOLE = "must be a whole number, for example 12"
HEADS = "must be a number of heads (12) or a fraction of them with a decimal point"
TWICE = "must not name"
BAD = {  # type: {value: rule}
    "Whole": (t.Whole, {"x": WHOLE, "010": WHOLE, "1_000": WHOLE, "९": WHOLE, "0": "greater than", "9" * 300: "less"}),
    "Count": (t.Count, {"-1": "greater than or equal to 0", "6000.5": WHOLE}),
    "Seed": (t.Seed, {"-1": "greater than or equal to 0", "4294967296": "less than"}),
    "Port": (t.Port, {"0": "greater than", "70000": "less than or equal to 65535"}),
    "Number": (t.Number, {"high": "a valid number", "nan": "a finite number", "0,6": "a valid number"}),
    "Above0": (t.Above0, {"0": "greater than 0", "1e999": "a finite number"}),
    "From0": (t.From0, {"-0.1": "greater than or equal to 0"}),
    "Share": (t.Share, {"1.5": "less than or equal to 1", "nan": "or equal to"}),
    "Percents": (t.Percents, {"0,101": "less than or equal to 100", "0 50": "a valid number"}),
    "Wholes": (t.Wholes, {"1,": WHOLE, "1,0": "greater than"}),
    "Rates": (t.Rates, {"0.1,0": "greater than 0"}),
    "Cutoffs": (t.Cutoffs, {"5,3": "must be rising whole numbers, separated by commas", "5,,9": WHOLE}),
    "Seeds": (t.Seeds, {"1 1": TWICE, "1,2": WHOLE, " ": "at least 1"}),
    "Epochs": (t.Epochs, {"5 3": "with the largest one last", " ": "at least 1"}),
    "Words": (t.Words, {" ": "must have at least one word"}),
    "Word": (t.Word, {"a b": "must be one word"}),
    "Language": (t.Language, dict.fromkeys(["en;ls", "../en", "en fr", "-s"], "must be a language as in the file n")),
    "Part": (t.Part, dict.fromkeys(["0/4", "5/4", "1", "a/b"], "must be I/N, the I-th of N shares, for example 1/4")),
    "Heads": (t.Heads, dict.fromkeys(["1.5", "80%", "-1", "٥"], HEADS)),
    "Folder": (t.Folder, {"/nowhere": "must be a folder that exists"}),
    "Place": (t.Place, {"/nowhere": "must be a folder that exists, or the address of a mirror"}),
    "Plugin": (t.Plugin, {"/nowhere": "must be the folder of the plugin, as `headgates path` prints it"}),
    "Program": (t.Program, {"no-such-program x": "must be a command whose program is on the P", "a 'b": "No closing"}),
    "Column": (t.Column, {"a b": "must be letters and digits", "../x": "must be letters"}),
    "Cleaning": (t.Cleaning, {"--max-lenght 1": "unrecognized arguments: --max-lenght 1", "--max-ratio 0.5": "from 1"}),
    "Kinds": (translation.Kinds, {"all all": TWICE}),
    "TypesOfRuns": (translation.TypesOfRuns, {"x": "'x' is not an attention type: choose from enc-self, dec-self"}),
    "Methods": (translation.Methods, {"random magic": "must be one of"}),
    "Weights": (translation.Weights, {"0.1 -1": "must be a finite number, 0 or more"}),
    "Curves": (
        classification.Curves,
        {"gradient size": "'gradient', 'ablation', 'confidence'", "random random": TWICE},
    ),
    "Switch": (t.Switch, {"yes": "'0' or '1'"}),
    "Runs": (
        general.Runs,
        {
            "all:-1": "lambda '-1' must be a finite number, 0 or more",
            "all:1@0": "scale '0' must be above 0",
            "=80%": f"N '80%' {HEADS}",
            "all=36@magic": "method 'magic' must be one of lagrangian, subset, gradient, ablation, ran",
            "enc-self,:0.1": "'' is not an attention type",
            "enc-self,enc-self:0.1": "'enc-self' is named twice",
            "all": "must be TYPES:LAMBDA[@SCALE], TYPES=N[@METHOD], params=N[@only] or speed=X[@only]: in 'all' a co",
            "params=1.5": "params '1.5' must be a number of parameters",
            "params:0.7": "params has a colon instead of an equals sign",
            "params=0.7@gradient": "'@gradient' must be @only, without training",
            "speed=1": "speed '1' must be above 1, for example 1.5",
            "all:1 all:1": TWICE,
        },
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_values_are_refused(name):
    kind, values = BAD[name]
    for value, rule in values.items():
        with pytest.raises(ValidationError) as error:
            TypeAdapter(kind).validate_python(value)
        assert rule in error.value.errors()[0]["msg"], value


MT, LM, LABELS = "translation.sh", "language_model.sh", "classification.sh"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("EMBED=0", "EMBED='0' should be greater than or equal to 1"),
        ("UPDATE_FREQ=1,x", f"UPDATE_FREQ='1,x' 'x' {WHOLE}"),
        ("BPE=1\n2", "BPE='1\\n2' must be one line"),
        (f"CLEAN={'x' * 9000}", "CLEAN='xxx"),
    ],
)
def test_a_refusal_names_the_setting_in_one_short_line(given, message):
    assert refusal(MT, **words(given)).startswith(message)


PLUGIN = str(Path(fairseq_headgates.__file__).parent)
CONTRADICTIONS = [
    (MT, "HEADS=3", "HEADS=3 must divide EMBED=128"),
    (MT, "LAUNCHER=srun python3", "WORKERS must be set to the number of processes that LAUNCHER='srun p"),
    (MT, "EPOCHS=3", "needs UPDATES, the number of updates of the baseline, not EPOCHS=3"),
    (MT, "SCHEDULE=inverse_sqrt;EPOCHS=0", "EPOCHS=0 would train without end"),
    (MT, "UPDATES=9000009;WARMUP=9000009", "WARMUP=9000009 must be below UPDATES=9000009"),
    (MT, "SCHEDULE=inverse_sqrt;WARMUP=0", "WARMUP=0 must be 1 or more with SCHEDULE=inverse_sqrt"),
    (MT, "PRUNE_SCHEDULE=cosine;PRUNE_UPDATES=9;PRUNE_WARMUP=9", "PRUNE_WARMUP=9 must be below PRUNE_UPDATES=9"),
    (MT, "AVERAGE=2", "AVERAGE=2 needs checkpoints to average: set SAVE_EVERY"),
    (MT, "DEV_TRANSLATIONS=2", "DEV_TRANSLATIONS=2 needs a checkpoint of every epoch: set KEEP_EPOCHS=1"),
    (MT, "AVERAGE=3;SAVE_EVERY=4;UPDATES=8;WARMUP=2", "AVERAGE=3 must be at most 2, the number of checkp"),
    (MT, "SCRATCH=dec-enc", "SCRATCH=dec-enc must be among the types of RUNS (all, enc-self)"),
    (MT, "RUNS=all=36 all=36@lagrangian", "RUNS must not name 'all=36@lagrangian' twice"),
    (MT, "RUNS=all=41;DECODER_LAYERS=1", "it must be at most 40 (enc-self 24, dec-self 8, dec-enc 8)"),
    (MT, "RUNS=all=1@iterative;PRUNE_UPDATES=3;PRUNE_WARMUP=1", "ITERATIONS=4 must be at most PRUNE_UPDATES=3"),
    (MT, "METRIC=python3 x;METRIC_NAME=BLEU", "METRIC_NAME=BLEU is a column of the table: choose a name beside"),
    ("iwslt14_de_en.sh", "SAVE_EVERY=100", "SAVE_EVERY=100 must not be set: MEASURED needs a checkpoint"),
    ("iwslt14_de_en.sh", "SEEDS=1 2", "SEEDS='1 2' must be one seed"),
    (LM, "RUNS=enc-self:0.1", "RUNS names 'enc-self:0.1': this model has no enc-self, only dec-self"),
    (LM, "MIN_LR=1e-2;LR=1e-3", "MIN_LR=1e-2 must be below LR=1e-3"),
    (LM, "MIN_LR=0.1;LR=1;PRUNE_LR=1e-2;PRUNE_SCHEDULE=cosine", "MIN_LR=0.1 must be below PRUNE_LR=1e-2"),
    (LM, "MEM_LEN=4", "MEM_LEN=4 has no effect on ARCH=transformer_lm: unset it"),
    (LM, "MAX_TOKENS=9", "MAX_TOKENS=9 must be at least TOKENS_PER_SAMPLE=128"),
    (LM, "VOCABULARY=9", "VOCABULARY=9 has no effect with BPE=2000: set BPE=0"),
    (LABELS, "ENCODED=1", "ENCODED=1 needs PRETRAINED"),
    (LABELS, "PRETRAINED=/", "PRETRAINED=/ is a folder: give a RoBERTa checkpoint"),
    (LABELS, "UPDATE_FREQ=1,2", "UPDATE_FREQ=1,2 must be one number"),
    (LABELS, "MAX_POSITIONS=4", "MAX_POSITIONS=4 must be 8 or more"),
]
TOGETHER = [
    (MT, "BPE=;GPUS=;RUNS=;SCRATCH=;PAPER="),
    (MT, "EPOCHS=0;UPDATES=700;UPDATE_FREQ=1,2, 4;PRUNE_LR=0.1,0.05;LR=4e-3;DROPOUT=0;LENPEN=-.5;GATE_LR_SCALE=1E2"),
    (MT, "AVERAGE=2;SAVE_EVERY=4;UPDATES=5;WARMUP=2;PRUNE_UPDATES=4"),
    (MT, "AVERAGE=50;SAVE_EVERY=4;EPOCHS=2;SCHEDULE=inverse_sqrt"),  # the number of updates is not known
    (MT, "CLEAN=--max-length 200 --max-ratio inf --unique --without a b;WORKERS=3"),
    (MT, "RUNS=enc-self:0 dec-enc,enc-self:1e-2\tall:.5 all=36@iterative enc-self=0 all:1@7.5;SCRATCH=all  enc-self"),
    (MT, "METRIC=python3 -m 'my metric';METRIC_NAME=COMET-22;PRUNE_SCHEDULE=fixed;PRUNE_UPDATES=5;PRUNE_WARMUP=9"),
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
