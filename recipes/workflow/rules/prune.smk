# Smaller models: scores of heads, headgates prune and headgates compress.


CUTS = cuts(FAMILY, MODELS)
SCORED = f"{DATA} {DATA_OPTIONS} {CPU}"


# Heads are scored, and models compressed, on the training set: not on the data of the evaluation.
rule score_heads:
    input:
        data=DATA,
        checkpoint=f"{PLACE}/{{model}}/trained.pt",
    output:
        f"{PLACE}/{{model}}/scores.{{method}}.json",
    log:
        f"{PLACE}/{{model}}/scores.{{method}}.log",
    params:
        sentences=config["sentences"],
    resources:
        gpu=GPUS,
    shell:
        "headgates score " + SCORED + " --path {input.checkpoint} --gen-subset train --sentences {params.sentences}"
        " --method {wildcards.method} --seed {wildcards.seed} --out {output} > {log} 2>&1"


rule remove_heads:
    input:
        lambda wildcards: in_place(CUTS[wildcards.cut].source, wildcards),
        lambda wildcards: in_place(CUTS[wildcards.cut].scores, wildcards),
    output:
        f"{PLACE}/{{cut}}",
    log:
        f"{PLACE}/{{cut}}.log",
    params:
        options=lambda wildcards: CUTS[wildcards.cut].options,
        refit=lambda wildcards: (
            f"{SCORED} --refit --refit-sentences {config['sentences']}" if CUTS[wildcards.cut].refits else ""
        ),
    wildcard_constraints:
        cut=one_of(path for path, cut in CUTS.items() if cut.scores),
    resources:
        gpu=GPUS,
    shell:
        "headgates prune {params.refit} --path {input[0]} --scores {input[1]} {params.options} --out {output} > {log} 2>&1"


rule compress:
    input:
        lambda wildcards: in_place(CUTS[wildcards.cut].source, wildcards),
        data=DATA,
    output:
        f"{PLACE}/{{cut}}",
    log:
        f"{PLACE}/{{cut}}.log",
    params:
        options=lambda wildcards: CUTS[wildcards.cut].options,
        sentences=config["sentences"],
    wildcard_constraints:
        cut=one_of(path for path, cut in CUTS.items() if not cut.scores),
    resources:
        gpu=GPUS,
    shell:
        "headgates compress " + SCORED + " --path {input[0]} {params.options} --fit-subset train"
        " --fit-sentences {params.sentences} --gen-subset valid --out {output} > {log} 2>&1"


rule remove_closed_heads:
    input:
        f"{PLACE}/{{model}}/trained.pt",
    output:
        f"{PLACE}/{{model}}/pruned.pt",
    log:
        f"{PLACE}/{{model}}/prune.log",
    wildcard_constraints:
        model=one_of(
            name
            for name, model in MODELS.items()
            if name == "baseline" or (model.checkpoint == f"{name}/pruned.pt" and model.is_trained)
        ),
    shell:
        "headgates prune --path {input} --no-optimizer --out {output} > {log} 2>&1"
