# Sequence-level distillation (Kim & Rush 2016): the training text, translated by the baseline of each seed.


# pruned.pt has all heads, and those of the plugin translate faster than fairseq's: docs/benchmarks.md has both, and how
# little int8 changes. fairseq-generate prints tokens in BPE: a line S-NUMBER<TAB>source, later H-NUMBER<TAB>score<TAB>translation.
rule translate_training_text:
    input:
        data=DATA,
        checkpoint=f"{PLACE}/baseline/pruned.pt",
    output:
        expand(f"{OUT}/text/seed{{{{seed}}}}.translated.{{language}}", language=LANGUAGES),
    log:
        f"{PLACE}/baseline/translate.log",
    params:
        int8="--model-overrides \"{'inference_dtype': 'int8'}\"" if CPU else "",
    resources:
        gpu=GPUS,
    shell:
        "fairseq-generate {input.data} --user-dir $(headgates path) --path {input.checkpoint} --gen-subset train"
        f" {PAIR} --skip-invalid-size-inputs-valid-test --required-batch-size-multiple 1"
        f" {command_line({'log-format': 'simple', 'log-interval': 50}, config['evaluation'])} {CPU}"
        " {params.int8} 2> {log} | awk -F '\\t' '/^S-/ {{ source = $2 }}"
        ' /^H-/ {{ print source > "{output[0]}"; print $3 > "{output[1]}" }}\''


# Models that are trained on translations with repetitions repeat more: docs/results.md.
rule remove_repetitions:
    input:
        expand(f"{OUT}/text/seed{{{{seed}}}}.translated.{{language}}", language=LANGUAGES),
    output:
        expand(f"{OUT}/text/seed{{{{seed}}}}.distilled.{{language}}", language=LANGUAGES),
        table=f"{OUT}/text/seed{{seed}}.distilled.txt",
    shell:
        f"python3 {SCRIPTS}/clean.py {OUT}/text/seed{{wildcards.seed}}.translated {OUT}/text/seed{{wildcards.seed}}.distilled"
        f" {' '.join(LANGUAGES)} --max-repeats 2 | tee {{output.table}}"


rule original_and_distilled:
    input:
        f"{OUT}/text/train.bpe.{{language}}",
        f"{OUT}/text/seed{{seed}}.distilled.{{language}}",
    output:
        f"{OUT}/text/seed{{seed}}.both.{{language}}",
    shell:
        "cat {input} > {output}"


rule binarize_distilled:
    input:
        expand(f"{OUT}/text/seed{{{{seed}}}}.{{{{data}}}}.{{language}}", language=LANGUAGES),
        expand(f"{OUT}/text/valid.bpe.{{language}}", language=LANGUAGES),
        dictionaries=DATA,
    output:
        directory(f"{OUT}/{{data}}/seed{{seed}}"),
    log:
        f"{OUT}/text/seed{{seed}}.{{data}}.log",
    wildcard_constraints:
        data="distilled|both",
    threads: workflow.cores
    shell:
        f"fairseq-preprocess {PAIR} --trainpref {OUT}/text/seed{{wildcards.seed}}.{{wildcards.data}}"
        f" --validpref {OUT}/text/valid.bpe --srcdict {{input.dictionaries}}/dict.{config['src']}.txt"
        f" --tgtdict {{input.dictionaries}}/dict.{config['tgt']}.txt"
        " --destdir {output} --workers {threads} > {log} 2>&1"
