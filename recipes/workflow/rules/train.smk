# Trainings: fairseq-train in the folder of each model.


TRAININGS = trainings(config, FAMILY, MODELS) | PRETRAININGS
PLACE = f"{OUT}/seed{{seed}}"  # the folder of the models of a seed
CPU = "--cpu" if config["training"].get("cpu") else ""
# A training uses all GPUs that it sees; by default (profiles/default) one job uses the GPUs at a time.
GPUS = 0 if CPU else config["training"].get("distributed-world-size", 1)


def one_of(names):
    """The constraint of a wildcard: one of these names."""
    return "|".join(map(re.escape, names)) or "(?!)"


def in_place(path, wildcards):
    """A path of the plan in the folder of the seed; a path that the user has given stays as it is."""
    return os.path.join(PLACE.format(seed=wildcards.seed), path)


def data_of(wildcards):
    """The folder of the data of a training; distilled data differ between seeds."""
    data = TRAININGS[wildcards.model].data
    return DATA if data == "original" else f"{OUT}/{data}/seed{wildcards.seed}"


def training_command(wildcards):
    """The call of fairseq-train."""
    training, folder = TRAININGS[wildcards.model], in_place(wildcards.model, wildcards)
    data = "/".join(filter(None, [data_of(wildcards), training.subfolder]))
    options = [training.options]
    if training.start and not training.resumes:
        options += ["--finetune-from-model", in_place(training.start, wildcards)]
    if training.heads:
        options += ["--alive-heads", in_place(training.heads, wildcards)]
        if training.heads != training.start:  # random weights with the heads and neurons of another model
            options += ["--ffn-dims", in_place(training.heads, wildcards)]
    return (
        f"fairseq-train {data} --user-dir $(headgates path) --save-dir {folder} "
        f"--tensorboard-logdir {folder}/tensorboard --seed {wildcards.seed} {' '.join(options)}"
    )


def resume_command(wildcards):
    """For a training that continues another one: the checkpoint that fairseq-train resumes from."""
    training = TRAININGS[wildcards.model]
    if not training.resumes:
        return ""
    return f" && cp {in_place(training.start, wildcards)} {in_place(wildcards.model, wildcards)}/checkpoint_last.pt"


def result_command(wildcards):
    """Make trained.pt from the checkpoints of a training."""
    result, folder = TRAININGS[wildcards.model].result, in_place(wildcards.model, wildcards)
    if result in ("last", "best"):
        return f"ln -f {folder}/checkpoint_{result}.pt {folder}/trained.pt"
    return f"python3 {SCRIPTS}/average.py {folder} {folder}/trained.pt --last {result} && rm -f {folder}/checkpoint_*_*.pt"


# When options, data or the first checkpoint of a training have changed, Snakemake runs this rule, which moves its old
# checkpoints to the folder `previous`: fairseq-train may refuse the new options. After an interruption Snakemake runs
# only the next rule, and fairseq-train resumes from checkpoint_last.pt.
rule begin_training:
    input:
        lambda wildcards: [in_place(path, wildcards) for path in TRAININGS[wildcards.model].files],
        data=data_of,
    output:
        touch(f"{PLACE}/{{model}}/begun"),
    params:
        folder=lambda wildcards: in_place(wildcards.model, wildcards),
        command=training_command,
        resume=resume_command,
    wildcard_constraints:
        model=one_of(TRAININGS),
    localrule: True
    shell:
        "if [ -e {params.folder}/checkpoint_last.pt ]; then"
        " rm -rf {params.folder}/previous && mkdir {params.folder}/previous"
        " && find {params.folder} -maxdepth 1 '(' -name 'checkpoint*.pt' -o -name tensorboard ')'"
        " -exec mv -t {params.folder}/previous {{}} +; fi{params.resume}"


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
