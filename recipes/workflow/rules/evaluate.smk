# Evaluation of all models, the table and the report.


# The speed is measured with all cores, so that no other job runs meanwhile.
rule evaluate:
    input:
        EVALUATION_FILES,
        data=DATA,
        checkpoint=lambda wildcards: in_place(MODELS[wildcards.model].checkpoint, wildcards),
    output:
        f"{PLACE}/{{model}}/evaluation.json",
        [f"{PLACE}/{{model}}/test.hyp"] if TRANSLATES else [],
    log:
        f"{PLACE}/{{model}}/evaluation.log",
    wildcard_constraints:
        model=one_of(MODELS),
    threads: workflow.cores if config["speed"] else 1
    resources:
        gpu=GPUS,
    shell:
        "headgates evaluate {input.data} --path {input.checkpoint} " + f"{EVALUATION} {CPU}{' --speed' if config['speed'] else ''}"
        " --out {output[0]}" + (" --hypotheses {output[1]}" if TRANSLATES else "") + " > {log} 2>&1"


def results_of_models(name):
    """The file NAME of every model and seed."""
    return expand(f"{PLACE}/{{model}}/{name}", seed=config["seeds"], model=MODELS)


rule results:
    input:
        CURVES,
        results_of_models("evaluation.json"),
        [results_of_models(f"{metric}.txt") for metric in config["metrics"]],
    output:
        text=f"{OUT}/results.txt",
        tsv=f"{OUT}/results.tsv",
        plot=f"{OUT}/results.svg",
        **({"json": f"{OUT}/results.json"} if TRANSLATES else {}),
    params:
        models=" ".join(
            f"--model {name}" + (f"={model.control}" if model.control else "") for name, model in MODELS.items()
        ),
        metrics=" ".join(f"--metric {metric}" for metric in config["metrics"]),
    localrule: True
    shell:
        f"python3 {SCRIPTS}/table.py {OUT} --seeds {' '.join(map(str, config['seeds']))}"
        " {params.models} {params.metrics} --tsv {output.tsv} --plot {output.plot} " + TABLE_OPTIONS + " > {output.text}"


rule report:
    input:
        results_of_models("evaluation.json"),
    output:
        f"{OUT}/report.html",
    localrule: True
    shell:
        "headgates report {input} --out {output}"


onsuccess:
    if os.path.exists(f"{OUT}/results.txt"):
        print(open(f"{OUT}/results.txt").read())
