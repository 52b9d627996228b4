# A trained translation model, pruned without training: scores of its heads, BLEU over the number of heads, a checkpoint.
#
#   snakemake -s recipes/workflow/pretrained.smk --configfile recipes/config/prune_pretrained.yaml --config raw=newstest


include: "rules/common.smk"


check(config, "pretrained")
OUT, SRC, TGT = config["out"], config["src"], config["tgt"]
RAW = config.get("raw", f"{OUT}/raw")
SCORES = config["scores"]


rule all:
    input:
        f"{OUT}/results.txt",
        f"{OUT}/agreement.txt",
        f"{OUT}/pruned.pt",
        expand(f"{OUT}/{{method}}.svg", method=["scores", *SCORES]),


if "checkpoint" in config:
    config.pop("trained_model", None)


include: "rules/corpora.smk"


CHECKPOINT = config.get("checkpoint") or MODEL_FILES[0]
MODEL = os.path.dirname(CHECKPOINT) or "."
DATA = config.get("data", f"{OUT}/data-bin")
EVALUATION = command_line(config["evaluation"])
GPUS = 0 if config["cpu"] else 1
COMMON = f"{DATA} --path {CHECKPOINT} --source-lang {SRC} --target-lang {TGT}" + (" --cpu" if config["cpu"] else "")


# --- text: raw -> tokenised -> BPE -> binarised -------------------------------------------------------------------------
rule encode:
    input:
        lambda wildcards: plain_or_gz(f"{RAW}/{wildcards.split}.{wildcards.language}"),
        codes=f"{MODEL}/bpecodes",
    output:
        f"{OUT}/text/{{split}}.{{language}}",
    wildcard_constraints:
        split="valid|test",
    params:
        tokenize=lambda wildcards, threads: (
            "cat" if config["tokenized"] else f"sacremoses -q -l {wildcards.language} -j {threads} normalize tokenize -a"
        ),
    threads: workflow.cores
    shell:
        READ + " | {params.tokenize}"
        " | subword-nmt apply-bpe -c {input.codes} > {output}"


if "data" not in config:

    rule binarize:
        input:
            expand(f"{OUT}/text/{{split}}.{{language}}", split=["valid", "test"], language=[SRC, TGT]),
            source=f"{MODEL}/dict.{SRC}.txt",
            target=f"{MODEL}/dict.{TGT}.txt",
        output:
            directory(DATA),
        log:
            f"{OUT}/binarize.log",
        shell:
            f"fairseq-preprocess -s {SRC} -t {TGT} --validpref {OUT}/text/valid --testpref {OUT}/text/test"
            " --srcdict {input.source} --tgtdict {input.target} --destdir {output} > {log} 2>&1"


# --- scores, curves, a pruned checkpoint --------------------------------------------------------------------------------
rule score:
    input:
        DATA,
        CHECKPOINT,
    output:
        scores=f"{OUT}/scores.json",
        plot=f"{OUT}/scores.svg",
    log:
        f"{OUT}/scores.log",
    params:
        methods=",".join(SCORES),
        sentences=f"--sentences {config['sentences']}" if "sentences" in config else "",
        max_tokens=config["evaluation"]["max-tokens"],
    resources:
        gpu=GPUS,
    shell:
        f"headgates score {COMMON} --gen-subset valid"
        " --max-tokens {params.max_tokens} {params.sentences} --method {params.methods} --out {output.scores}"
        " --plot {output.plot} > {log} 2>&1"


rule agreement:
    input:
        f"{OUT}/scores.json",
    output:
        f"{OUT}/agreement.txt",
    shell:
        "headgates correlate {input} > {output}"


rule curve:
    input:
        DATA,
        CHECKPOINT,
        scores=f"{OUT}/scores.json",
    output:
        **{end: f"{OUT}/{{method}}.{end}" for end in ("json", "tsv", "svg")},
    log:
        f"{OUT}/{{method}}.log",
    params:
        steps=config["steps"],
    wildcard_constraints:
        method="|".join(SCORES),
    resources:
        gpu=GPUS,
    shell:
        f"headgates curve {COMMON} {EVALUATION} --gen-subset test --remove-bpe --tokenizer moses --types all"
        " --steps {params.steps} --scores {input.scores} --score-method {wildcards.method} --out {output.json}"
        " --tsv {output.tsv} --plot {output.svg} > {log} 2>&1"


rule prune:
    input:
        CHECKPOINT,
        scores=f"{OUT}/scores.json",
    output:
        f"{OUT}/pruned.pt",
    log:
        f"{OUT}/prune.log",
    params:
        keep=config["keep"],
    shell:
        "headgates prune --path {input[0]} --scores {input.scores} --method {SCORES[0]} --keep {params.keep} --out {output}"
        " --no-optimizer > {log} 2>&1"


rule results:
    input:
        expand(f"{OUT}/{{method}}.tsv", method=SCORES),
    output:
        f"{OUT}/results.txt",
    localrule: True
    shell:
        "python3 {SCRIPTS}/curves.py {input} | tee {output}"
