#!/usr/bin/env bash
# Make a small model smaller, with and without training, in six minutes on two CPU cores.
#
#   recipes/demo.sh [OUT_DIR, default demo-out]
#
# Runs the commands that you would type, and prints each. Needs no GPU and no download. After an interruption run it
# again: trainings resume from their last checkpoint, other steps are repeated. UPDATES=26 shortens each training.
set -euo pipefail
scripts=$(printf %q "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/scripts") out=${1-demo-out} updates=${UPDATES:-260}
[[ $# -le 1 && $out =~ ^[^-:][^:]*$ ]] || { echo "usage: recipes/demo.sh [OUT_DIR], a folder without a colon in its name" >&2; exit 2; }
type fairseq-train headgates sacremoses subword-nmt >/dev/null || { echo "demo.sh: activate the environment (README, Install)" >&2; exit 2; }
export CUDA_VISIBLE_DEVICES='' OMP_NUM_THREADS=1 # models of this size are slower on several threads
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT

# run "COMMAND": print a command and run it; its messages go to the log.
run() { echo "$ $1" && eval "$1" >>demo.log 2>&1 || { tail -n 4 demo.log >&2; echo "demo.sh: failed (log: $out/demo.log)" >&2; exit 1; }; }
train() { # NAME OPTIONS [&]: unless this training is complete
  grep -qs "done training" "$1/train.log" || run "fairseq-train data-bin --user-dir \"\$(headgates path)\" --save-dir $1 --tensorboard-logdir $1/tensorboard \\
    --no-epoch-checkpoints --log-format simple --log-interval 10 --seed 1 --task translation -s en -t ru \\
    --encoder-embed-dim 64 --decoder-embed-dim 64 --encoder-ffn-embed-dim 128 --decoder-ffn-embed-dim 128 --encoder-layers 2 --decoder-layers 1 \\
    --encoder-attention-heads 8 --decoder-attention-heads 8 --share-decoder-input-output-embed --encoder-normalize-before --decoder-normalize-before \\
    --optimizer adam --adam-betas '(0.9, 0.98)' --clip-norm 1.0 --dropout 0 --max-tokens 2500 --label-smoothing 0.1 \\
    --lr-scheduler polynomial_decay --lr 0.015 --max-update $updates --total-num-update $updates $2 >>$1/train.log${3-}"
}

mkdir -p "$out" && cd "$out" && mkdir -p text baseline baseline+ all_heads0.5 smaller && echo "$ cd $out"
if [[ ! -s data-bin/test.en-ru.ru.idx ]]; then # an artificial corpus of tokenised sentences, in BPE and binarised
  rm -rf data-bin
  [[ -s corpus/train.en.conllu ]] || run "python3 $scripts/make_corpus.py corpus --train 12000 --valid 300 --test 300 --force"
  run "sacremoses -q -l ru detokenize <corpus/test.ru >text/reference.ru"
  for side in en ru; do
    run "subword-nmt learn-bpe -s 1000 <corpus/train.$side >text/codes.$side"
    for split in train valid test; do run "subword-nmt apply-bpe -c text/codes.$side <corpus/$split.$side >text/$split.bpe.$side"; done
  done
  run "fairseq-preprocess -s en -t ru --trainpref text/train.bpe --validpref text/valid.bpe --testpref text/test.bpe --destdir data-bin"
fi
# --- a baseline; then, side by side, the control (baseline+), and gates that close half of the heads ---
train baseline "--arch transformer --criterion label_smoothed_cross_entropy --warmup-updates $((updates * 80 / 260))"
further="--finetune-from-model baseline/checkpoint_last.pt --warmup-updates $((updates * 20 / 260))"
train baseline+ "--arch transformer --criterion label_smoothed_cross_entropy $further" " &"
train all_heads0.5 "--arch transformer_head_gates --criterion label_smoothed_cross_entropy_l0 $further \\
    --gate-heads enc-self,dec-self,dec-enc --sparsity-method lagrangian --target-heads 0.5 --gate-lr-scale 5 \\
    --sparsity-warmup-updates $((updates * 50 / 260)) --fix-gates-after $((updates * 75 / 260))" " &"
for job in $(jobs -p); do run "wait $job"; done
run "headgates prune --path all_heads0.5/checkpoint_last.pt --no-optimizer --out all_heads0.5/pruned.pt --force"
# --- without training: the control without half of its heads, by two scores, and without heads and neurons ---
whole=baseline+/checkpoint_last.pt measured="data-bin --path baseline+/checkpoint_last.pt --gen-subset valid"
run "headgates score $measured --method confidence,gradient,refit --out smaller/scores.json --force"
run "headgates prune --path $whole --keep 0.5 --scores smaller/scores.json --method gradient --out smaller/gradient.pt --force"
run "headgates prune data-bin --path $whole --keep 0.5 --scores smaller/scores.json --method refit --refit --out smaller/refit.pt --force"
run "headgates compress $measured --params 0.7 --out smaller/compressed.pt --force"
run "headgates evaluate data-bin --path $whole:smaller/gradient.pt:smaller/refit.pt:smaller/compressed.pt:all_heads0.5/pruned.pt --gen-subset test \\
    --reference text/reference.ru --remove-bpe --tokenizer moses --beam 4 --required-batch-size-multiple 1 --speed --out smaller/evaluation.json --force"
run "headgates functions $measured --conllu corpus/valid.en.conllu --out smaller/functions.json --force"
run "headgates explain $measured --lines 1,2 --out smaller/explanations.json --force"
run "headgates attention $measured --heads 'dec-enc:*' --out smaller/attention.json --force"
run "headgates compress $measured --params 0.9,0.8,0.7,0.6,0.5 --plot smaller/curve.svg --force --json >smaller/curve.json"
run "headgates report all_heads0.5 baseline baseline+ smaller/{compressed.pt,{evaluation,curve,scores,functions,explanations,attention}.json} --out report.html --force"
eval "python3 $scripts/demo_table.py smaller/evaluation.json"
echo "written: $out/report.html; next: headgates compress $out/data-bin --path $out/$whole --params 0.7 --out small.pt" >&2
