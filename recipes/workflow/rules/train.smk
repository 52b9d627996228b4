# Trainings: fairseq-train in the folder of each model.


TRAININGS = trainings(config, FAMILY) | PRETRAININGS
PLACE = f"{OUT}/seed{{seed}}"  # the folder of the models of a seed
CPU = "--cpu" if config["training"].get("cpu") else ""
# A training uses all GPUs that it sees; by default (profiles/default) one job uses the GPUs at a time.
GPUS = 0 if CPU else config["training"].get("distributed-world-size", 1)


def one_of(names):
    """The constraint of a wildcard: one of these names."""
    return "|".join(map(re.escape, names)) or "(?!)"


def in_place(paths, wildcards):
    """Paths of the plan in the folder of the seed; paths that the user has given stay as they are."""
    return [os.path.join(f"{OUT}/seed{wildcards.seed}", path) for path in paths]


def folder(wildcards):
    return f"{OUT}/seed{wildcards.seed}/{wildcards.model}"


def training_command(wildcards):
    """The call of fairseq-train."""
    training = TRAININGS[wildcards.model]
    options = [training.options]
    if training.start and not training.resumes:
        options += ["--finetune-from-model", *in_place([training.start], wildcards)]
    if training.heads:
        options += ["--alive-heads", *in_place([training.heads], wildcards)]
        if training.heads != training.start:  # random weights with the heads and neurons of another model
            options += ["--ffn-dims", *in_place([training.heads], wildcards)]
    return (
        f"fairseq-train {training.data or DATA} --user-dir $(headgates path) --save-dir {folder(wildcards)} "
        f"--tensorboard-logdir {folder(wildcards)}/tensorboard --seed {wildcards.seed} {' '.join(options)}"
    )


def resume_command(wildcards):
    """For a training that continues another one: the checkpoint that fairseq-train resumes from."""
    training = TRAININGS[wildcards.model]
    start = in_place([training.start], wildcards)[0] if training.resumes else ""
    return f" && cp {start} {folder(wildcards)}/checkpoint_last.pt" if start else ""


def result_command(wildcards):
    """Make trained.pt from the checkpoints of a training."""
    result, place = config["result"], folder(wildcards)
    if result not in ("last", "best"):
        return f"python3 {SCRIPTS}/average.py {place} {place}/trained.pt --last {result} && rm {place}/checkpoint_*_*.pt"
    # Of further trainings, which are compared, always the last: the best one would be a selection by noise.
    return f"ln -f {place}/checkpoint_{result if wildcards.model == 'baseline' else 'last'}.pt {place}/trained.pt"


# When options, data or the first checkpoint of a training have changed, Snakemake runs this rule, which removes its old
# checkpoints. After an interruption it runs only the next rule, and fairseq-train resumes from checkpoint_last.pt.
rule begin_training:
    input:
        lambda wildcards: in_place(TRAININGS[wildcards.model].files, wildcards),
        data=DATA,
    output:
        touch(f"{PLACE}/{{model}}/begun"),
    params:
        folder=folder,
        command=training_command,
        resume=resume_command,
    wildcard_constraints:
        model=one_of(TRAININGS),
    localrule: True
    shell:
        "rm -rf {params.folder}/checkpoint*.pt {params.folder}/tensorboard{params.resume}"


rule train:
    input:
        f"{PLACE}/{{model}}/begun",
    output:
        f"{PLACE}/{{model}}/trained.pt",
    log:
        f"{PLACE}/{{model}}/train.log",
    params:
        command=training_command,
        result=result_command,
    wildcard_constraints:
        model=one_of(TRAININGS),
    resources:
        gpu=GPUS,
    shell:
        "{params.command} >> {log} 2>&1 && {params.result}"
