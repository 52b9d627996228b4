#!/usr/bin/env bash
# From labelled sentences, or pairs of them, to a table of pruned classifiers, with fairseq's own commands.
#
#   recipes/classification.sh [--dry-run] RAW_DIR OUT_DIR
#
# RAW_DIR holds {train,valid,test}.tsv, plain or .gz (valid may be called dev): in each line `text<TAB>label`, or
# `text<TAB>text2<TAB>label`, without a header. Labels are any strings without tabs. The recipe trains a small RoBERTa by masked
# language modelling on the training text, and fine-tunes it: the baseline. Then
# - for each of CURVES it removes heads of the baseline step by step without training (Michel et al. 2019),
# - for each of GATES it trains the baseline with gates and removes the closed heads; as a control it trains the baseline for
#   as many updates without gates (baseline+),
# - with FINETUNE=1 it trains the models with heads removed by CURVES for as long as those with gates.
# The last output is a table: model, heads kept, parameters, accuracy on the test set, difference from the control with
# its p-value (McNemar's exact test). The defaults are a small model for two CPU cores.
#
# PRETRAINED=FILE starts from a RoBERTa checkpoint of fairseq instead. It needs the dictionary (dict.txt) and the BPE codes
# of subword-nmt (bpecodes) in the same folder, or PRETRAINED_DICT and PRETRAINED_CODES, and the sizes EMBED, FFN, LAYERS,
# HEADS and MAX_POSITIONS of the model. With ENCODED=1 the text is BPE already, and needs no codes.
#
# A stage is skipped when its output is in OUT_DIR: run the same command again to resume. Ctrl-C, SIGTERM or SIGUSR1
# save a checkpoint and end the recipe with exit code 75. --dry-run prints the commands that are still to be run.
set -euo pipefail
recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source "$recipes/lib/common.sh"
source "$recipes/lib/models.sh"
source "$recipes/lib/classifiers.sh"
source "$recipes/lib/classifier_defaults.sh"
KEEP_EPOCHS=0

parse_arguments "RAW_DIR OUT_DIR" "$@"
raw=${arguments[0]} out=${arguments[1]}
read -ra train_flags <<<"$TRAIN_FLAGS"
read -ra seeds <<<"$SEEDS"

need fairseq-preprocess fairseq-train headgates sacremoses subword-nmt
need_plots
check_settings
check_out "$out"
no_colon "$out"
find_splits
# shellcheck disable=SC2086  (several splits)
need_text "$raw" tsv $splits
codes=$out/text/codes
if [[ -n $PRETRAINED ]]; then
  : "${PRETRAINED_DICT:=$(dirname "$PRETRAINED")/dict.txt}" "${PRETRAINED_CODES:=$(dirname "$PRETRAINED")/bpecodes}"
  codes=$PRETRAINED_CODES
  if [[ ${DRY_RUN:-0} != 1 ]]; then
    [[ -f $PRETRAINED ]] || fail "PRETRAINED='$PRETRAINED' is no file: give a RoBERTa checkpoint of fairseq"
    [[ -f $PRETRAINED_DICT ]] || fail "$PRETRAINED_DICT is missing: set PRETRAINED_DICT to the dictionary of PRETRAINED"
    [[ $ENCODED == 1 || -f $codes ]] ||
      fail "$codes is missing: set PRETRAINED_CODES to the BPE codes of PRETRAINED, or ENCODED=1 for text that is BPE already"
  fi
  [[ $ENCODED == 0 ]] || PRETRAINED_CODES=
fi
find_plugin
find_devices
((BATCH % (workers * UPDATE_FREQ) == 0)) ||
  fail "BATCH=$BATCH must be a multiple of $((workers * UPDATE_FREQ)): $workers processes, UPDATE_FREQ=$UPDATE_FREQ"
batch_tokens=$((MLM_TOKENS / workers / UPDATE_FREQ))
[[ -n $PRETRAINED ]] || ((batch_tokens >= MAX_POSITIONS)) ||
  fail "MLM_TOKENS=$MLM_TOKENS must be at least $((MAX_POSITIONS * workers * UPDATE_FREQ)), MAX_POSITIONS=$MAX_POSITIONS for each of $workers processes and UPDATE_FREQ=$UPDATE_FREQ"
keep_settings "$out" "TOKENIZE=${TOKENIZE// /,} LOWERCASE=$LOWERCASE ENCODED=$ENCODED BPE=$BPE PRETRAINED=${PRETRAINED#"$out/"} \
PRETRAINED_DICT=${PRETRAINED_DICT#"$out/"} PRETRAINED_CODES=${PRETRAINED_CODES#"$out/"} \
EMBED=$EMBED FFN=$FFN LAYERS=$LAYERS HEADS=$HEADS MAX_POSITIONS=$MAX_POSITIONS DROPOUT=$DROPOUT \
MLM_UPDATES=$MLM_UPDATES MLM_LR=$MLM_LR MLM_WARMUP=$MLM_WARMUP MLM_TOKENS=$MLM_TOKENS \
UPDATES=$UPDATES LR=$LR WARMUP=$WARMUP BATCH=$BATCH TRAIN_FLAGS=${TRAIN_FLAGS// /,} \
$(seeds_setting)"
# The control and the runs are comparable only with the same further training; without GATES there is none.
[[ -z ${GATES// /} ]] || keep_settings "$out" "PRUNE_UPDATES=$PRUNE_UPDATES PRUNE_LR=$PRUNE_LR PRUNE_WARMUP=$PRUNE_WARMUP \
GATE_LR_SCALE=$GATE_LR_SCALE L0_WARMUP=$L0_WARMUP SPARSITY_WARMUP=$SPARSITY_WARMUP FIX_AFTER=$FIX_AFTER" runs.txt
[[ -z ${CURVES// /} ]] || keep_settings "$out" "STEPS=$STEPS SENTENCES=$SENTENCES" curves.txt
same_text "$raw" "$out" tsv
if [[ -n $PRETRAINED && ${DRY_RUN:-0} != 1 && ! -d $out/data-bin ]]; then
  attended python3 "$recipes/lib" training.check_roberta "$PRETRAINED" "$PRETRAINED_DICT" || exit 2
fi
lock_out "$out"

# --- text: raw -> columns -> tokenised -> BPE -> binarised ------------------------------------------------------------
text=$out/text bin=$out/data-bin
[[ ${DRY_RUN:-0} == 1 ]] || mkdir -p "$text"
say "reading and encoding the text"
step_into "$text/counts.txt" python3 "$recipes/lib" corpora.labelled "$raw" "$text"
[[ ${DRY_RUN:-0} == 1 ]] || cat "$text/counts.txt"
into "$text/label.dict" "awk '{ print NR - 1, 1 }' $(quoted "$text/labels.txt")"
classes=CLASSES # in a dry run, before the text is read
[[ ! -f $text/labels.txt ]] || classes=$(wc -l <"$text/labels.txt")
read -ra inputs <<<"$(inputs)"
for split in train valid test; do
  for input in "${inputs[@]}"; do tokenise "$split" "$input"; done
done
if [[ -z $PRETRAINED ]]; then
  into "$text/train.tok.text" "$(quoted cat "${inputs[@]/#/$text/train.tok.}")"
  into "$codes" "$(quoted subword-nmt learn-bpe -s "$BPE" --input "$text/train.tok.text")"
fi
for split in train valid test; do
  for input in "${inputs[@]}"; do encode "$split" "$input"; done
  [[ -n $PRETRAINED || $split == test ]] || into "$text/$split.bpe.text" "$(quoted cat "${inputs[@]/#/$text/$split.bpe.}")"
done
make_data "${inputs[@]}"
record_text "$raw" "$out" tsv

# --- models: pre-training, a baseline, its curves, then a control, and runs that start from the baseline --------------
size=(--encoder-layers "$LAYERS" --encoder-embed-dim "$EMBED" --encoder-ffn-embed-dim "$FFN"
  --encoder-attention-heads "$HEADS" --max-positions "$MAX_POSITIONS")
common=(--dropout "$DROPOUT" --attention-dropout "$DROPOUT" --pooler-dropout "$DROPOUT" --shorten-method truncate
  --optimizer adam --adam-betas '(0.9, 0.98)' --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 1.0 "${train_flags[@]}")
# <s> and </s> have these numbers in every dictionary of fairseq.
task=(--task sentence_prediction --num-classes "$classes" --init-token 0 --separator-token 2)
reading=("$bin" --user-dir "$plugin" "${task[@]}" --max-positions "$MAX_POSITIONS" --shorten-method truncate
  --max-tokens "$EVALUATION_TOKENS" "${device[@]}")
# Several GPUs: the output layer of masked language modelling has no gradient here.
fine_tuning=("${task[@]}" "${size[@]}" "${common[@]}" --batch-size "$((BATCH / workers / UPDATE_FREQ))"
  --update-freq "$UPDATE_FREQ" --required-batch-size-multiple 1 --find-unused-parameters
  --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric)
# The last checkpoint is used: the learning rate falls to 0, and the best accuracy would be a selection by noise.
schedule polynomial_decay "$LR" "$WARMUP" "$UPDATES"
baseline_training=("${fine_tuning[@]}" "${scheduled[@]}")
schedule polynomial_decay "$PRUNE_LR" "$PRUNE_WARMUP" "$PRUNE_UPDATES"
further_training=("${fine_tuning[@]}" "${scheduled[@]}")
gates=(${GATE_LR_SCALE:+--gate-lr-scale "$GATE_LR_SCALE"} ${FIX_AFTER:+--fix-gates-after "$FIX_AFTER"})

lines_of plan python3 "$recipes/lib/classifier_runs.py"
places=()
for seed in "${seeds[@]}"; do
  place_of "$seed"
  places+=("$place")
  models_of "$place"
done
last_table "$out/results.txt" python3 "$recipes/lib/classifier_results.py" "${places[@]}" \
  --runs "${plan[*]%% *}" --curves "$CURVES" --seed "${seeds[0]}" --tsv "$out/results.tsv" \
  --plot "$out/results.svg"
