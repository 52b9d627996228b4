# Heads removed step by step after each of config["epochs"] of the baseline's training (Michel et al. 2019, section 6).
# Include it after train.smk; the training must keep a checkpoint of every epoch.


rule over_training:
    input:
        data=DATA,
        baseline=f"{PLACE}/baseline/trained.pt",
    output:
        **{end: f"{PLACE}/over_training.{end}" for end in ("json", "tsv", "svg")},
    log:
        f"{PLACE}/over_training.log",
    params:
        steps=config["steps"],
        checkpoints=lambda wildcards: ":".join(
            f"{OUT}/seed{wildcards.seed}/baseline/checkpoint{epoch}.pt" for epoch in config["epochs"]
        ),
    resources:
        gpu=GPUS,
    shell:
        "headgates curve {input.data} --path {params.checkpoints} --by gradient --types all --score-subset valid"
        " --gen-subset test --steps {params.steps} --remove-bpe --tokenizer moses"
        f" {PAIR} {command_line(config['evaluation'])} {CPU}"
        " --out {output.json} --tsv {output.tsv} --plot {output.svg} > {log} 2>&1"


rule table_over_training:
    input:
        f"{PLACE}/over_training.tsv",
    output:
        f"{PLACE}/over_training.txt",
    params:
        paper="--paper" if config.get("corpus") == "iwslt14-de-en" else "",
    localrule: True
    shell:
        "python3 {SCRIPTS}/curves.py {input} {params.paper} | tee {output}"
