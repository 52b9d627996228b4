# From raw text to a table of pruned language models.
#
#   snakemake -s recipes/workflow/language_model.smk --configfile recipes/config/language_model.yaml


include: "rules/common.smk"


check(config, "language_model")
OUT = config["out"]
RAW = config.get("raw", f"{OUT}/raw")
DATA = f"{OUT}/data-bin"
DATA_OPTIONS = f"{command_line(config['task'], config['evaluation'])}"
ARCH = config["arch"]
FAMILY = Family(
    ARCH,
    "transformer_lm_head_gates" if ARCH == "transformer_lm" else ARCH,
    "adaptive_loss" if "adaptive-softmax-cutoff" in config["model"] else "cross_entropy",
    config["task"],
    {"dec-self": config["model"]["decoder-layers"] * config["model"]["decoder-attention-heads"]},
)
MODELS = models(config, FAMILY)
PRETRAININGS, CURVES = {}, []
EVALUATION_FILES, TRANSLATES = expand(f"{OUT}/text/{{split}}.words", split=SPLITS[1:]), False
EVALUATION = f"{DATA_OPTIONS} --gen-subset test --loss-subset valid,test" + "".join(
    f" --words {split}={OUT}/text/{split}.words" for split in SPLITS[1:]
)
TABLE_OPTIONS = f"--paper {config['paper']}" if "paper" in config else ""
ENCODED = "bpe" if config["bpe"] else "words"


rule all:
    input:
        f"{OUT}/results.txt",
        f"{OUT}/report.html",


include: "rules/corpora.smk"


# One blank between words: fairseq and subword-nmt do not agree on the characters that end a word or a line.
rule words:
    input:
        lambda wildcards: plain_or_gz(f"{RAW}/{wildcards.split}.txt"),
    output:
        f"{OUT}/text/{{split}}.words",
    shell:
        READ + f" | python3 {SCRIPTS}/lines.py words > {{output}}"


rule learn_bpe:
    input:
        f"{OUT}/text/train.words",
    output:
        f"{OUT}/text/codes",
    params:
        merges=config.get("bpe"),
    shell:
        "subword-nmt learn-bpe -s {params.merges} --input {input} > {output}"


rule apply_bpe:
    input:
        f"{OUT}/text/{{split}}.words",
        codes=f"{OUT}/text/codes",
    output:
        f"{OUT}/text/{{split}}.bpe",
    shell:
        "subword-nmt apply-bpe -c {input.codes} < {input[0]} > {output}"


rule binarize:
    input:
        expand(f"{OUT}/text/{{split}}.{ENCODED}", split=SPLITS),
    output:
        directory(DATA),
    log:
        f"{OUT}/text/binarize.log",
    params:
        vocabulary=f"--nwordssrc {config['vocabulary']}" if config["vocabulary"] else "",
    threads: workflow.cores
    shell:
        f"fairseq-preprocess --only-source --trainpref {OUT}/text/train.{ENCODED} --validpref {OUT}/text/valid.{ENCODED}"
        f" --testpref {OUT}/text/test.{ENCODED}"
        " {params.vocabulary} --destdir {output} --workers {threads} > {log} 2>&1"


include: "rules/train.smk"
include: "rules/prune.smk"
include: "rules/evaluate.smk"
