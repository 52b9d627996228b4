# Data of the published recipes: rules that write {RAW}/{train,valid,test}.* of the corpus that config["corpus"] names,
# and unpack the model of fairseq that config["trained_model"] names to {OUT}/model.
#
# The including file defines OUT, the output folder, RAW, the folder of the raw text, and SCRIPTS, the folder of the
# scripts. Archives are downloaded to {OUT}/downloads; a file that is there already is used as it is.

DOWNLOADS = {
    "yandex-1m.zip": ["https://github.com/mashashma/WMT2022-data/archive/refs/heads/main.zip"],
    # Titles of Wikipedia articles; the file of WMT14 is the same.
    "wiki-titles.tgz": ["http://www.statmt.org/wmt15/wiki-titles.tgz", "http://www.statmt.org/wmt14/wiki-titles.tgz"],
    "iwslt14.de-en.tgz": ["http://dl.fbaipublicfiles.com/fairseq/data/iwslt14/de-en.tgz"],
    "wikitext-103-v1.zip": [
        "https://wikitext.smerity.com/wikitext-103-v1.zip",
        "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-103-v1.zip",
    ],
    "MNLI.zip": ["https://dl.fbaipublicfiles.com/glue/data/MNLI.zip"],
    "encoder.json": ["https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe/encoder.json"],
    "vocab.bpe": ["https://dl.fbaipublicfiles.com/fairseq/gpt2_bpe/vocab.bpe"],
}
# The names that opus_read looks for; its own download does not resume, and leaves a part of a file behind.
OPUS = "https://object.pouta.csc.fi/OPUS-OpenSubtitles/v2018"
for file in ("xml/en-ru.xml.gz", "xml/en.zip", "xml/ru.zip", "raw/en.zip", "raw/ru.zip"):
    DOWNLOADS[f"OpenSubtitles_v2018_{file.replace('/', '_')}"] = [f"{OPUS}/{file}"]

# sed: characters at which some tools end a line or a column become blanks.
ONE_LINE = r"s/\xc2\x85|\xe2\x80[\xa8\xa9]|\xef\xbb\xbf|[\x00\x0b\x0c\r\x1c-\x1e]/ /g"


rule download:
    output:
        f"{OUT}/downloads/{{file}}",
    wildcard_constraints:
        file="|".join([*map(re.escape, DOWNLOADS), r"(roberta|transformer)\.[\w.-]+"]),
    params:
        addresses=lambda wildcards: DOWNLOADS.get(wildcards.file, [wildcards.file]),
    localrule: True
    shell:
        "python3 {SCRIPTS}/download.py {output} {params.addresses}"


rule unpack:
    input:
        f"{OUT}/downloads/{{archive}}",
    output:
        temp(directory(f"{OUT}/unpacked/{{archive}}")),
    shell:
        """
        mkdir -p {output}
        case {input} in
            *.zip) python3 -m zipfile -e {input} {output} ;;
            *) tar -xf {input} -C {output} --no-same-owner ;;
        esac
        """


if config.get("corpus") == "wmt-en-ru":
    # The training data of Voita et al. 2019, section 3. mtdata 0.5.1 also lists Statmt-yandex-wmt22-eng-rus, but does
    # not read its ten files.
    PARTS = ["Statmt-commoncrawl_wmt13-1-rus-eng", "Statmt-news_commentary_wmt18-13-rus-eng"]

    rule mtdata:
        output:
            directory(f"{OUT}/mtdata/train-parts"),
        params:
            folder=f"{OUT}/mtdata",
            cache=f"{OUT}/downloads/mtdata",
        localrule: True
        shell:
            "MTDATA={params.cache} mtdata -no-pb get -l eng-rus -tr {PARTS} -o {params.folder}"

    rule wmt_en_ru:
        input:
            parts=f"{OUT}/mtdata/train-parts",
            yandex=f"{OUT}/unpacked/yandex-1m.zip",
            titles=f"{OUT}/unpacked/wiki-titles.tgz",
        output:
            en=f"{RAW}/train.en",
            ru=f"{RAW}/train.ru",
        params:
            expected=config.get("expected_pairs", 0),
        shell:
            r"""
            {{
                for part in {PARTS}; do paste {input.parts}/$part.eng {input.parts}/$part.rus; done
                cat {input.yandex}/WMT2022-data-main/en-ru/en-ru.1m_{{1,2,3,4,5,6,7,8,9,10}}.tsv
                awk -F ' [|][|][|] ' 'NF == 2 {{ print $2 "\t" $1 }}' {input.titles}/wiki/ru-en/wiki.ru-en
            }} | LC_ALL=C sed -E '{ONE_LINE}' |
            awk -F '\t' -v en={output.en} -v ru={output.ru} -v expected={params.expected} '
                NF == 2 && $1 != "" && $2 != "" {{ pairs++; print $1 > en; print $2 > ru }}
                END {{
                    print pairs " pairs before cleaning"
                    if (expected && (pairs < 0.9 * expected || pairs > 1.1 * expected)) {{
                        print "more than a tenth away from expected_pairs: " expected ": check the downloads, or set" \
                            " expected_pairs=0 to train on this text" > "/dev/stderr"
                        exit 1
                    }}
                }}'
            """

    rule sacrebleu:
        output:
            en=f"{RAW}/{{split}}.en",
            ru=f"{RAW}/{{split}}.ru",
        wildcard_constraints:
            split="valid|test",
        params:
            cache=f"{OUT}/downloads/sacrebleu",
            name=lambda wildcards: config[f"{wildcards.split}_set"],
        localrule: True
        shell:
            """
            export SACREBLEU=$(realpath -m {params.cache}) # it must be absolute
            sacrebleu -t {params.name} -l en-ru --echo src > {output.en}
            sacrebleu -t {params.name} -l en-ru --echo ref > {output.ru}
            """


if config.get("corpus") == "opensubtitles-en-ru":
    # OpenSubtitles2018 (Lison et al. 2018). Its `xml` is tokenised, `raw` is not.
    FORM = "xml" if config.get("tokenized") else "raw"

    rule opus_read:
        input:
            f"{OUT}/downloads/OpenSubtitles_v2018_xml_en-ru.xml.gz",
            f"{OUT}/downloads/OpenSubtitles_v2018_{FORM}_en.zip",
            f"{OUT}/downloads/OpenSubtitles_v2018_{FORM}_ru.zip",
        output:
            en=f"{OUT}/opus/pairs.en",
            ru=f"{OUT}/opus/pairs.ru",
            ids=f"{OUT}/opus/pairs.ids",
        log:
            f"{OUT}/opus/opus_read.log",
        params:
            downloads=f"{OUT}/downloads",
            overlap=config["overlap"],
        shell:
            """
            opus_read -d OpenSubtitles -r v2018 -s en -t ru -p {FORM} -a overlap -tr {params.overlap} -ln -wm moses \
                -w {output.en} {output.ru} -id {output.ids} -dl {params.downloads} -q > {log} 2>&1
            """

    rule opensubtitles_en_ru:
        input:
            f"{OUT}/opus/pairs.en",
            f"{OUT}/opus/pairs.ru",
            f"{OUT}/opus/pairs.ids",
        output:
            expand(f"{RAW}/{{split}}.{{language}}", split=["train", "valid", "test"], language=["en", "ru"]),
        params:
            pairs=config["training_pairs"],
            held_out=config["held_out"],
        shell:
            "python3 {SCRIPTS}/split.py {input} {RAW} --pairs {params.pairs} --held-out {params.held_out}"


if config.get("corpus") == "iwslt14-de-en":
    # As in fairseq's example: every 23rd pair of the talks for validation, five small sets as the test set.

    rule iwslt14_talks:
        input:
            f"{OUT}/unpacked/iwslt14.de-en.tgz",
        output:
            temp(f"{OUT}/talks.{{language}}"),
        wildcard_constraints:
            language="de|en",
        shell:
            r"""
            grep -vE '^\s*</?(url|talkid|keywords|speaker|reviewer|translator|transcript|doc)\b' \
                {input}/de-en/train.tags.de-en.{wildcards.language} |
            LC_ALL=C sed -E '{ONE_LINE}; s/\t/ /g; s/^\s*<(title|description)>//; s/<\/(title|description)>\s*$//' |
            sed -E 's/^\s+//; s/\s+$//' > {output}
            """

    rule iwslt14_train_valid:
        input:
            f"{OUT}/talks.de",
            f"{OUT}/talks.en",
        output:
            expand(f"{RAW}/{{split}}.{{language}}", split=["train", "valid"], language=["de", "en"]),
        shell:
            r"""
            paste {input} | awk -F '\t' -v folder={RAW}/ '
                $1 != "" && $2 != "" {{
                    split_ = ++pairs % 23 ? "train" : "valid"
                    print $1 > (folder split_ ".de"); print $2 > (folder split_ ".en")
                }}'
            """

    rule iwslt14_test:
        input:
            f"{OUT}/unpacked/iwslt14.de-en.tgz",
        output:
            f"{RAW}/test.{{language}}",
        wildcard_constraints:
            language="de|en",
        shell:
            r"""
            for name in TED.dev2010 TEDX.dev2012 TED.tst2010 TED.tst2011 TED.tst2012; do
                cat {input}/de-en/IWSLT14.$name.de-en.{wildcards.language}.xml
            done | LC_ALL=C sed -nE '{ONE_LINE}; s/^\s*<seg [^>]*>\s*(.*[^ ])\s*<\/seg>\s*$/\1/p' |
            sed 's/&lt;/</g; s/&gt;/>/g; s/&quot;/"/g; s/&apos;/'"'"'/g; s/&amp;/\&/g' > {output}
            """


if config.get("corpus") == "wikitext-103":
    # Merity et al. 2016: the archive with words, where rare ones are <unk>.

    rule wikitext_103:
        input:
            f"{OUT}/unpacked/wikitext-103-v1.zip",
        output:
            f"{RAW}/{{split}}.txt",
        wildcard_constraints:
            split="train|valid|test",
        shell:
            "cp {input}/wikitext-103/wiki.{wildcards.split}.tokens {output}"


if config.get("corpus") == "mnli":

    rule mnli:
        input:
            f"{OUT}/downloads/MNLI.zip",
            f"{OUT}/downloads/encoder.json",
            f"{OUT}/downloads/vocab.bpe",
        output:
            expand(f"{RAW}/{{split}}.tsv", split=["train", "valid", "test"]),
        shell:
            "python3 {SCRIPTS}/mnli.py {input} {RAW}"


# A trained model of fairseq, by its name in torch.hub: the checkpoint, its dictionaries and BPE codes. Paths are absolute
# because those of a training are in the folder of its seed.
MODEL_FILES = []
if "trained_model" in config:
    IS_ROBERTA = config["trained_model"].startswith("roberta")
    names = ["dict.txt"] if IS_ROBERTA else [f"dict.{config['src']}.txt", f"dict.{config['tgt']}.txt", "bpecodes"]
    MODEL_FILES = [os.path.abspath(f"{OUT}/model/{name}") for name in ["model.pt", *names]]

    rule trained_model:
        input:
            f"{OUT}/unpacked/{config['trained_model']}",
        output:
            MODEL_FILES,
        params:
            folder=f"{OUT}/model",
        shell:
            """
            found=$(find {input} -name model.pt -printf '%h' -quit)
            [[ -n $found ]] || {{
                echo "{config[trained_model]} has no model.pt (an ensemble?): choose another model" >&2
                exit 1
            }}
            mv "$found"/* {params.folder}
            """
