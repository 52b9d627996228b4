# From labelled sentences, or pairs of them, to a table of pruned classifiers.
#
#   snakemake -s recipes/workflow/classification.smk --configfile recipes/config/classification.yaml
#
# A small RoBERTa is trained on the text by masked language modelling, or `pretrained` names a checkpoint; fine-tuned on
# the labels it is the baseline. By each of `curves` its heads are removed step by step without training.


include: "rules/common.smk"


check(config, "classification")
OUT = config["out"]
RAW = config.get("raw", f"{OUT}/raw")


include: "rules/corpora.smk"


DATA = f"{OUT}/data-bin"
INPUTS = ["input0", "input1"] if config["pairs"] else ["input0"]
TASK = {
    "task": "sentence_prediction",
    "num-classes": config["classes"],
    "init-token": 0,  # <s> and </s> have these numbers in every dictionary of fairseq
    "separator-token": 2,
}
DATA_OPTIONS = command_line(
    TASK,
    {"max-positions": config["model"]["max-positions"], "shorten-method": "truncate"},
    config["evaluation"],
)
PRETRAINED = config.get("pretrained") or dict(zip(["checkpoint", "dict"], MODEL_FILES))
FAMILY = Family(
    "roberta",
    "roberta_head_gates",
    "sentence_prediction",
    {**TASK, "shorten-method": "truncate", "required-batch-size-multiple": 1},
    {"enc-self": config["model"]["encoder-layers"] * config["model"]["encoder-attention-heads"]},
    # A relative path would be in the folder of the seed.
    os.path.abspath(PRETRAINED["checkpoint"]) if PRETRAINED else "pretrained/trained.pt",
)
MODELS = models(config, FAMILY)
# Masked language modelling (Liu et al. 2019), a sentence at a time.
masked = LOGGED | {
    "task": "masked_lm",
    "criterion": "masked_lm",
    "arch": "roberta",
    "sample-break-mode": "eos",
    "tokens-per-sample": config["model"]["max-positions"] - 1,
    "shorten-method": "truncate",
    "skip-invalid-size-inputs-valid-test": True,
}
PRETRAININGS = (
    {}
    if PRETRAINED
    else {
        "pretrained": Training(
            command_line(masked, config["model"], config["training"], {"batch-size": None}, whole_length(config["mlm"])),
            subfolder="text",
        )
    }
)
EVALUATION_FILES, TRANSLATES = [], False
EVALUATION = f"{DATA_OPTIONS} --gen-subset test"
TABLE_OPTIONS = " ".join(f"--curve {method}" for method in config["curves"])
CURVES = expand(f"{OUT}/seed{{seed}}/curves/{{method}}.json", seed=config["seeds"], method=config["curves"])


wildcard_constraints:
    split="train|valid|test",


rule all:
    default_target: True
    input:
        f"{OUT}/results.txt",
        f"{OUT}/report.html",


# --- text: columns -> tokenised -> BPE -> binarised -------------------------------------------------------------------
# Labels become numbers. The training set is shuffled: heads are scored on its beginning.
rule columns:
    input:
        [plain_or_gz(f"{RAW}/{split}.tsv") for split in SPLITS],
    output:
        expand(f"{OUT}/text/{{split}}.raw.{{input}}", split=SPLITS, input=INPUTS),
        expand(f"{OUT}/text/{{split}}.label", split=SPLITS),
        f"{OUT}/text/label.dict",
    shell:
        f"python3 {SCRIPTS}/labelled.py {OUT}/text {{input}} --classes {config['classes']} --inputs {len(INPUTS)}"


rule tokenize:
    input:
        f"{OUT}/text/{{split}}.raw.{{input}}",
    output:
        f"{OUT}/text/{{split}}.tok.{{input}}",
    params:
        tokenize=lambda wildcards, threads: (
            "cat" if config["tokenized"] else f"sacremoses -q -l {config['language']} -j {threads} tokenize"
        ),
        lowercase=f"| python3 {SCRIPTS}/lines.py lowercase" if config["lowercase"] else "",
    threads: workflow.cores
    shell:
        "{params.tokenize} < {input} {params.lowercase} > {output}"


rule learn_bpe:
    input:
        expand(f"{OUT}/text/train.tok.{{input}}", input=INPUTS),
    output:
        f"{OUT}/text/codes",
    params:
        merges=config.get("bpe"),
    shell:
        "cat {input} | subword-nmt learn-bpe -s {params.merges} > {output}"


def encode(split, column):
    """Text and codes of a column, and the command that encodes it."""
    codes = PRETRAINED.get("codes") or ("" if PRETRAINED else f"{OUT}/text/codes")
    if not codes:  # encoded already
        return [f"{OUT}/text/{split}.raw.{column}"], "cat"
    if codes.endswith(".json"):  # a tokenizer of Hugging Face, which tokenises, too
        return [f"{OUT}/text/{split}.raw.{column}", codes], f"python3 {SCRIPTS}/wordpieces.py {codes}"
    return [f"{OUT}/text/{split}.tok.{column}", codes], f"subword-nmt apply-bpe -c {codes}"


rule encode:
    input:
        lambda wildcards: encode(wildcards.split, wildcards.input)[0],
    output:
        f"{OUT}/text/{{split}}.bpe.{{input}}",
    params:
        command=lambda wildcards: encode(wildcards.split, wildcards.input)[1],
    wildcard_constraints:
        input="input[01]",
    shell:
        "{params.command} < {input[0]} > {output}"


# A folder for each column and for the labels; `text` is all training text, for masked language modelling.
rule binarize:
    input:
        expand(f"{OUT}/text/{{split}}.bpe.{{input}}", split=SPLITS, input=INPUTS),
        expand(f"{OUT}/text/{{split}}.label", split=SPLITS),
        [] if not PRETRAINED else PRETRAINED["dict"],
        labels=f"{OUT}/text/label.dict",
    output:
        directory(DATA),
    log:
        f"{OUT}/text/binarize.log",
    params:
        text="true" if PRETRAINED else (
            " && ".join(
                f"cat {' '.join(f'{OUT}/text/{split}.bpe.{column}' for column in INPUTS)} > {OUT}/text/{split}.bpe.text"
                for split in SPLITS[:2]
            )
            + f" && fairseq-preprocess --only-source --trainpref {OUT}/text/train.bpe.text"
            f" --validpref {OUT}/text/valid.bpe.text --destdir {DATA}/text"
        ),
        columns=" && ".join(
            f"fairseq-preprocess --only-source --srcdict {PRETRAINED.get('dict', f'{DATA}/text/dict.txt')}"
            f" --trainpref {OUT}/text/train.bpe.{column} --validpref {OUT}/text/valid.bpe.{column}"
            f" --testpref {OUT}/text/test.bpe.{column} --destdir {DATA}/{column}"
            for column in INPUTS
        ),
    shell:
        "( {params.text} && {params.columns} && fairseq-preprocess --only-source --srcdict {input.labels}"
        f" --trainpref {OUT}/text/train.label --validpref {OUT}/text/valid.label --testpref {OUT}/text/test.label"
        f" --destdir {DATA}/label ) > {{log}} 2>&1"


include: "rules/train.smk"
include: "rules/prune.smk"


# --- heads removed step by step, without training (Michel et al. 2019) ------------------------------------------------
rule curve:
    input:
        data=DATA,
        checkpoint=f"{PLACE}/baseline/trained.pt",
        scores=lambda wildcards: f"{OUT}/seed{wildcards.seed}/baseline/scores.{wildcards.method.removesuffix('-refit')}.json",
    output:
        json=f"{PLACE}/curves/{{method}}.json",
        tsv=f"{PLACE}/curves/{{method}}.tsv",
    log:
        f"{PLACE}/curves/{{method}}.log",
    params:
        steps=config["steps"],
        refit=lambda wildcards: (
            f"--refit --refit-sentences {config['sentences']}" if wildcards.method.endswith("refit") else ""
        ),
    resources:
        gpu=GPUS,
    shell:
        f"headgates curve {DATA} {DATA_OPTIONS} {CPU}"
        " --path {input.checkpoint} --gen-subset test --scores {input.scores} --types enc-self --steps {params.steps}"
        " --metric accuracy {params.refit} --out {output.json} --tsv {output.tsv} > {log} 2>&1"


include: "rules/evaluate.smk"
