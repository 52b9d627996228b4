#!/usr/bin/env bash
# What `headgates trim` brings: NLLB-200 600M and mBART-large with random weights, and a small trained model.
#
#   benchmarks/trim.sh nllb OUT       trim to 16,000 symbols: time, memory, and the speed of one sentence before and after
#   benchmarks/trim.sh mbart OUT
#   benchmarks/trim.sh trained OUT RAW_DE RAW_RU
#
# `trained` trains a model with 16,000 pieces of SentencePiece from English to German and Russian, and translates the test
# sets before and after it is trimmed to one pair. RAW_DE holds {train,valid,test}.{en,de}, RAW_RU those of en and ru,
# plain or .gz. It needs the package sentencepiece.
set -euo pipefail
case ${1:-},$# in
  nllb,2 | mbart,2 | trained,4) kind=$1 ;;
  *) echo "trim.sh: needs nllb OUT, mbart OUT, or trained OUT RAW_DE RAW_RU" >&2; exit 2 ;;
esac
raw=("${@:3}")
for ((i = 0; i < ${#raw[@]}; i++)); do raw[i]=$(cd "${raw[i]}" && pwd); done
mkdir -p "$2"
cd "$2"

# preprocess PAIR OUT: binarise PAIR/{train,valid,test}.* with dict.txt.
preprocess() {
  fairseq-preprocess --source-lang "${1%-*}" --target-lang "${1#*-}" --srcdict dict.txt --tgtdict dict.txt \
    --trainpref "$1/train" --validpref "$1/valid" --testpref "$1/test" --destdir "$2" >preprocess.log 2>&1
}

if [[ $kind == trained ]]; then
  mkdir -p en-de en-ru
  for split in train valid test; do
    for end in de/en de/de ru/en ru/ru; do
      gzip -cdf "${raw[$([[ $end == de/* ]] && echo 0 || echo 1)]}/$split.${end#*/}"* >"en-${end%/*}/$split.raw.${end#*/}"
    done
  done
  [[ -e spm.model ]] || cat en-*/train.raw.* | python3 -c "
import sentencepiece, sys
sentencepiece.SentencePieceTrainer.train(
    sentence_iterator=iter(sys.stdin), model_prefix='spm', vocab_size=16000, character_coverage=1.0, minloglevel=2)"
  tail -n +4 spm.vocab | cut -f 1 | sed 's/$/ 1/' >dict.txt
  for text in en-*/*.raw.*; do
    python3 -c "
import sentencepiece, sys
model = sentencepiece.SentencePieceProcessor(model_file='spm.model')
sys.stdout.writelines(' '.join(model.encode(line.strip(), out_type=str)) + '\n' for line in sys.stdin)" <"$text" >"${text/.raw/}"
  done
  for pair in en-de en-ru; do
    preprocess "$pair" data-bin # of training
    preprocess "$pair" "$pair-bin"
  done
  task=(--task translation_multi_simple_epoch --langs "en,de,ru" --encoder-langtok tgt --decoder-langtok)
  [[ -e model/trained ]] || fairseq-train data-bin "${task[@]}" --lang-pairs en-de,en-ru --arch transformer --cpu \
    --encoder-embed-dim 64 --decoder-embed-dim 64 --encoder-ffn-embed-dim 256 --decoder-ffn-embed-dim 256 \
    --encoder-layers 3 --decoder-layers 3 --encoder-attention-heads 8 --decoder-attention-heads 8 \
    --encoder-normalize-before --decoder-normalize-before --share-all-embeddings --dropout 0.1 \
    --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --optimizer adam --adam-betas '(0.9, 0.98)' \
    --clip-norm 1.0 --lr 0.004 --lr-scheduler polynomial_decay --warmup-updates 250 --total-num-update 1000 \
    --max-update 1000 --max-tokens 2500 --sampling-method temperature --sampling-temperature 1 --save-dir model \
    --no-epoch-checkpoints --log-format simple --log-interval 50 >train.log 2>&1
  touch model/trained
  pairs=(en-de en-ru) search=(--beam 4 --remove-bpe sentencepiece) sentences=()
else
  [[ $kind == nllb ]] && symbols=256000 languages=202 model=(--arch transformer --share-all-embeddings) style=multilingual
  [[ $kind == mbart ]] && symbols=250001 languages=25 model=(--arch mbart_large) style=mbart
  model+=(--encoder-embed-dim "${EMBED:-1024}" --decoder-embed-dim "${EMBED:-1024}" --encoder-layers "${LAYERS:-12}"
    --decoder-layers "${LAYERS:-12}" --encoder-ffn-embed-dim "${FFN:-4096}" --decoder-ffn-embed-dim "${FFN:-4096}"
    --encoder-attention-heads 16 --decoder-attention-heads 16 --encoder-normalize-before --decoder-normalize-before)
  python3 - "${SYMBOLS:-$symbols}" <<'END'
# A dictionary, and sentences of 20 random symbols: a training set with 16,000 different ones, eight of validation and test.
import os
import random
import sys

symbols, chance = int(sys.argv[1]), random.Random(1)
with open("dict.txt", "w") as file:
    file.writelines(f"piece{number} 1\n" for number in range(symbols))
used = [f"piece{number}" for number in chance.sample(range(symbols), min(symbols, 16000))]
os.makedirs("aa-bb", exist_ok=True)
for split in ("train", "valid", "test"):
    for language in ("aa", "bb"):
        words = chance.sample(used, len(used)) if split == "train" else chance.choices(used, k=160)
        with open(f"aa-bb/{split}.{language}", "w") as file:
            file.writelines(" ".join(words[i : i + 20]) + "\n" for i in range(0, len(words), 20))
END
  preprocess aa-bb aa-bb-bin
  others=$(seq -s , 3 "$languages")
  task=(--task translation_multi_simple_epoch --langs "aa,bb,$others" --lang-tok-style "$style" --encoder-langtok src
    --decoder-langtok)
  [[ -e model/checkpoint_last.pt ]] || fairseq-train aa-bb-bin "${task[@]}" --lang-pairs aa-bb "${model[@]}" --cpu \
    --criterion label_smoothed_cross_entropy --optimizer sgd --lr 0.000001 --max-update 1 --batch-size 1 \
    --disable-validation --no-epoch-checkpoints --save-dir model >train.log 2>&1
  pairs=(aa-bb) search=(--beam 4 --batch-size 1 --min-len 20 --max-len-a 0 --max-len-b 20) sentences=(--sentences 8) measured=2
fi

for pair in "${pairs[@]}"; do
  options=("${task[@]}" --lang-pairs "$pair" -s "${pair%-*}" -t "${pair#*-}" --cpu)
  rm -rf "$pair-trimmed"
  python3 - headgates trim "$pair-bin" "${options[@]}" --path model/checkpoint_last.pt "${search[@]}" "${sentences[@]}" \
    --out "$pair-trimmed" <<'END'
import resource
import subprocess
import sys
import time

start = time.monotonic()
subprocess.run(sys.argv[1:], check=True)
peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
print(f"{time.monotonic() - start:.0f} s, {peak:.1f} GB of memory", flush=True)
END
  for model in "$pair-bin --path model/checkpoint_last.pt" "$pair-trimmed --path $pair-trimmed/model.pt"; do
    # shellcheck disable=SC2086 # two words and an option
    headgates evaluate $model "${options[@]}" --gen-subset test --required-batch-size-multiple 1 "${search[@]}" --speed 2 \
      --sentences "${measured:-100000}" --out speed.json --force
    python3 -c "import json; print(round(json.load(open('speed.json'))['speed']['per_second'], 2), 'tokens per second')"
  done
done | tee results.txt
