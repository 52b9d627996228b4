# Parallel text: raw -> tokenised -> cleaned -> BPE -> binarised.


LANGUAGES = [config["src"], config["tgt"]]
LONGEST = {side: config["model"].get(f"max-{side}-positions", 1024) for side in ("source", "target")}
JOINT = config["joint_bpe"]


# Lines are counted first: a large text takes long to tokenise.
rule tokenize:
    input:
        lambda wildcards: plain_or_gz(f"{RAW}/{wildcards.split}.{wildcards.language}"),
        sides=lambda wildcards: [plain_or_gz(f"{RAW}/{wildcards.split}.{language}") for language in LANGUAGES],
    output:
        f"{OUT}/text/{{split}}.tok.{{language}}",
    params:
        tokenize=lambda wildcards, threads: (
            "cat" if config["tokenized"] else f"sacremoses -q -l {wildcards.language} -j {threads} normalize tokenize"
        ),
        lowercase=f"| python3 {SCRIPTS}/lines.py lowercase" if config["lowercase"] else "",
    threads: workflow.cores
    shell:
        "lines=$(for side in {input.sides}; do gzip -cdf $side | awk 'END {{ print NR }}'; done);"
        " [ $(echo \"$lines\" | uniq | wc -l) = 1 ] ||"
        " {{ echo {input.sides} have $lines lines: the sides must be aligned >&2; exit 1; }};"
        f" {READ}" + " | {params.tokenize} {params.lowercase} > {output}"


# The reference has the case of the raw text; tokenised text is detokenised.
rule reference:
    input:
        plain_or_gz(f"{RAW}/test.{LANGUAGES[1]}"),
    output:
        REFERENCE,
    params:
        detokenize=f"| sacremoses -q -l {LANGUAGES[1]} detokenize" if config["tokenized"] else "",
    shell:
        READ + " {params.detokenize} > {output}"


rule clean:
    input:
        expand(f"{OUT}/text/{{split}}.tok.{{language}}", split=SPLITS, language=LANGUAGES),
    output:
        expand(f"{OUT}/text/train.clean.{{language}}", language=LANGUAGES),
        table=f"{OUT}/text/cleaning.txt",
    shell:
        f"python3 {SCRIPTS}/clean.py {OUT}/text/train.tok {OUT}/text/train.clean {' '.join(LANGUAGES)}"
        f" --held-out {OUT}/text/valid.tok {OUT}/text/test.tok {config['clean']} | tee {{output.table}}"


rule learn_bpe:
    input:
        lambda wildcards: expand(
            f"{OUT}/text/train.clean.{{language}}", language=LANGUAGES if JOINT else [wildcards.language]
        ),
    output:
        f"{OUT}/text/codes.{{language}}",
    params:
        merges=config.get("bpe"),
    shell:
        "cat {input} | subword-nmt learn-bpe -s {params.merges} > {output}"


rule apply_bpe:
    input:
        lambda wildcards: f"{OUT}/text/{wildcards.split}.{'clean' if wildcards.split == 'train' else 'tok'}.{wildcards.language}",
        codes=lambda wildcards: f"{OUT}/text/codes.{LANGUAGES[0] if JOINT else wildcards.language}",
    output:
        f"{OUT}/text/{{split}}.bpe.{{language}}",
    wildcard_constraints:
        split="train|valid|test",
    shell:
        "subword-nmt apply-bpe -c {input.codes} < {input[0]} > {output}"


# Generation would fail, after the trainings, on a line that is too long for the model.
rule binarize:
    input:
        expand(f"{OUT}/text/{{split}}.bpe.{{language}}", split=SPLITS, language=LANGUAGES),
    output:
        directory(DATA),
    log:
        f"{OUT}/text/binarize.log",
    threads: workflow.cores
    params:
        checks=" && ".join(
            f"awk 'NF >= {longest} {{ print FILENAME \": line \" FNR \" is too long: {longest - 1} tokens at most\"; exit 1 }}'"
            f" {OUT}/text/valid.bpe.{language} {OUT}/text/test.bpe.{language} >&2"
            for longest, language in zip(LONGEST.values(), LANGUAGES)
        ),
        dictionary="--joined-dictionary" if config["joint_dictionary"] else "",
    shell:
        "( {params.checks} && "
        f"fairseq-preprocess {PAIR} --trainpref {OUT}/text/train.bpe"
        f" --validpref {OUT}/text/valid.bpe --testpref {OUT}/text/test.bpe"
        " {params.dictionary} --destdir {output} --workers {threads} ) > {log} 2>&1"
