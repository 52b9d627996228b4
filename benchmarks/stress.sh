#!/usr/bin/env bash
# What somebody else's encoder-decoder can lose without training: a published model of Russian word stress.
#
#   benchmarks/stress.sh OUT
#
# Downloads two packages from PyPI, ruaccent-predictor 1.2.0 (MIT), the model, and tsnorm 1.1.2 (MIT), a dictionary of
# stresses that the model does not know, and Debian's package fortunes-ru (GPL; needs apt-get and dpkg-deb), the text.
# The model is converted (recipes/import_torch.py), and made smaller on 300 sentences with its own output as target: to
# 85, 70, 60, 50, 40 and 30% of its 7.49M parameters, and without half of its 96 heads. One table of 200 other
# sentences. More than an hour on one core. What OUT has already is not made again: remove OUT/speed.json to measure
# the speeds alone.
set -euo pipefail
(($# == 1)) || { echo "stress.sh: got $# arguments, needs OUT" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
cd "$1"
export OMP_NUM_THREADS=1
SENTENCES=${SENTENCES:-200,60,300} # for the test, to measure the loss, and to fit

if [[ ! -e model.pt ]]; then
  python3 -m pip download --quiet --no-deps --dest . ruaccent-predictor==1.2.0 tsnorm==1.1.2
  for wheel in *.whl; do python3 -m zipfile -e "$wheel" .; done
  apt-get download --quiet fortunes-ru
  dpkg-deb --extract fortunes-ru_*.deb .
  python3 "$here/stress.py" text "$SENTENCES"
  python3 "$here/../recipes/import_torch.py" ruaccent/model/acc_model.pt ruaccent/model/vocab.json . --heads 8 \
    --embedding embed.char_embed --positions embed.pos_encoding --output output_proj --text test valid train
fi

# The package translates greedily.
options=(--source-lang src --target-lang tgt --cpu --beam 1 --max-len-b 255)
for split in test valid train; do
  [[ -e $split.tgt ]] && continue
  fairseq-interactive . --user-dir "$(headgates path)" --path model.pt "${options[@]}" --buffer-size 60 --batch-size 30 \
    --input $split.src 2>interactive.log | grep ^H | cut -f3 >$split.part
  mv $split.part $split.tgt
done
[[ -e bin/dict.src.txt ]] || fairseq-preprocess --source-lang src --target-lang tgt --srcdict dict.src.txt \
  --tgtdict dict.tgt.txt --trainpref train --validpref valid --testpref test --destdir bin >/dev/null 2>&1

models=(model)
for params in 6365426 5242115 4493242 3744368 2995494 2246620; do # 85, 70, 60, 50, 40, 30% of 7,488,736
  [[ -e $params.pt ]] || headgates compress bin --path model.pt --params $params --cpu --out $params.pt
  models+=("$params")
done
# fairseq's post-norm layers have no norm after them: the converted model has one more in each stack, of no use else.
[[ -e heads.pt ]] || headgates prune --path model.pt --alive "$(python3 "$here/stress.py" heads)" --out heads.pt >/dev/null
for method in gradient ablation confidence refit; do
  [[ -e $method.json ]] ||
    headgates score bin --path heads.pt --gen-subset train --sentences 100 --method $method --cpu --out $method.json
  for name in $method $method-refit; do
    [[ $name == refit ]] && continue # this score is for refitted models
    repair=()
    [[ $name == *-refit ]] && repair=(bin --refit --cpu)
    [[ -e $name.pt ]] ||
      headgates prune "${repair[@]}" --path heads.pt --scores $method.json --keep 48 --out "$name.pt" >/dev/null
    models+=("$name")
  done
done
for name in "${models[@]}"; do
  [[ -e $name.test.json ]] || headgates evaluate bin --path "$name.pt" "${options[@]}" --out "$name.test.json" >/dev/null
done
paths=$(IFS=: && echo "${models[*]/%/.pt}")
[[ -e speed.json ]] ||
  headgates evaluate bin --path "$paths" "${options[@]}" --batch-size 1 --sentences 20 --speed --out speed.json >/dev/null
python3 "$here/stress.py" table | tee table.txt
