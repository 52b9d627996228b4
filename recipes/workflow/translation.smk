# From raw parallel text to a table of pruned translation models.
#
#   snakemake -s recipes/workflow/translation.smk --configfile recipes/config/small.yaml --config raw=raw out=out/mine


include: "rules/common.smk"


check(config, "translation")
OUT = config["out"]
RAW = config.get("raw", f"{OUT}/raw")
DATA, REFERENCE = f"{OUT}/data-bin", f"{OUT}/text/reference.{config['tgt']}"
PAIR = f"--source-lang {config['src']} --target-lang {config['tgt']}"
DATA_OPTIONS = f"{PAIR} --skip-invalid-size-inputs-valid-test --max-tokens {config['evaluation']['max-tokens']}"
layers, heads = (
    {side: config["model"][f"{side}-{name}"] for side in ("encoder", "decoder")}
    for name in ("layers", "attention-heads")
)
of_decoder = layers["decoder"] * heads["decoder"]
FAMILY = Family(
    "transformer",
    "transformer_head_gates",
    "label_smoothed_cross_entropy",
    {"task": "translation", "source-lang": config["src"], "target-lang": config["tgt"]},
    {"enc-self": layers["encoder"] * heads["encoder"], "dec-self": of_decoder, "dec-enc": of_decoder},
)
MODELS = models(config, FAMILY)
PRETRAININGS, CURVES = {}, []
EVALUATION_FILES, TRANSLATES = [REFERENCE], True
EVALUATION = (
    f"{PAIR} --gen-subset test --loss-subset valid"
    f" --reference {REFERENCE} --remove-bpe --tokenizer moses --required-batch-size-multiple 1"
    f" {command_line(config['evaluation'])}" + (" --scoring sacrebleu --sacrebleu-lowercase" if config["lowercase"] else "")
)
TABLE_OPTIONS = f"--json {OUT}/results.json" + (f" --paper {config['paper']}" if "paper" in config else "")


rule all:
    input:
        f"{OUT}/results.txt",
        f"{OUT}/report.html",
        expand(f"{OUT}/seed{{seed}}/over_training.txt", seed=config["seeds"] if "epochs" in config else []),


include: "rules/corpora.smk"


include: "rules/text.smk"
include: "rules/train.smk"
include: "rules/distill.smk"
include: "rules/prune.smk"
include: "rules/evaluate.smk"


if "epochs" in config:

    include: "rules/over_training.smk"
