#!/usr/bin/env bash
# From labelled sentences, or pairs of them, to a table of pruned classifiers, with fairseq's own commands.
#
#   recipes/classification.sh [--dry-run] RAW_DIR OUT_DIR
#
# RAW_DIR holds {train,valid,test}.tsv, plain or .gz (valid may be called dev): in each line `text<TAB>label`, or
# `text<TAB>text2<TAB>label`, without a header. Labels are any strings without tabs. The recipe trains a small RoBERTa by
# masked language modelling on the training text, and fine-tunes it: the baseline. Then
# - for each of CURVES it removes heads of the baseline step by step without training (Michel et al. 2019),
# - for each of RUNS it prunes the baseline, with gates or by scores; as a control it trains the baseline for as many
#   updates without pruning (baseline+).
# The last output is a table: model, heads kept, parameters, accuracy on the test set, difference from the control with
# its p-value (McNemar's exact test). The control of a model of CURVES is the baseline, that of one of RUNS baseline+. The
# defaults are a small model for two CPU cores.
#
# PRETRAINED=FILE starts from a RoBERTa checkpoint of fairseq instead, for example a BERT of Hugging Face converted by
# recipes/convert_bert.py. It needs:
# - the dictionary, dict.txt beside FILE, or PRETRAINED_DICT;
# - how the text is encoded: BPE codes of subword-nmt (bpecodes) or a tokenizer of Hugging Face (tokenizer.json) beside
#   FILE, or PRETRAINED_CODES; with ENCODED=1 the text is encoded already;
# - the sizes of the model, EMBED, FFN, LAYERS, HEADS and MAX_POSITIONS.
#
# A stage is skipped when its output is in OUT_DIR: run the same command again to resume. Ctrl-C, SIGTERM or SIGUSR1
# save a checkpoint and end the recipe with exit code 75. --dry-run prints the commands that are still to be run.
set -euo pipefail
recipes=$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")
[[ -d $recipes/lib ]] || { echo "$0: lib/ is missing beside this copy (sbatch makes one): sbatch OPTIONS recipes/slurm.sh RECIPE ARGUMENTS" >&2; exit 2; }
source "$recipes/lib/common.sh"
source "$recipes/lib/models.sh"
source "$recipes/lib/runs.sh"
source "$recipes/lib/classification.sh"

configure -- "$@"
raw=${arguments[0]} out=${arguments[1]}
read -ra train_flags <<<"$TRAIN_FLAGS"
read -ra seeds <<<"$SEEDS"
AVERAGE=0 METRIC="" TGT="" # of translation, in lib/models.sh

need fairseq-preprocess fairseq-train headgates sacremoses subword-nmt
need_plots
check_out "$out"
find_splits
codes=$out/text/codes files=()
if [[ -n $PRETRAINED ]]; then
  find_pretrained
  files=(--files "$PRETRAINED" "$PRETRAINED_DICT" ${PRETRAINED_CODES:+"$PRETRAINED_CODES"})
fi
dry || read_text "$raw" "${splits[@]/%/.tsv}" "${files[@]}"
find_plugin
find_devices
((BATCH % (workers * UPDATE_FREQ) == 0)) ||
  fail "BATCH=$BATCH must be a multiple of $((workers * UPDATE_FREQ)): $workers processes, UPDATE_FREQ=$UPDATE_FREQ"
batch_tokens=$((MLM_TOKENS / workers / UPDATE_FREQ))
[[ -n $PRETRAINED ]] || ((batch_tokens >= MAX_POSITIONS)) ||
  fail "MLM_TOKENS=$MLM_TOKENS must be at least $((MAX_POSITIONS * workers * UPDATE_FREQ)), MAX_POSITIONS=$MAX_POSITIONS for each of $workers processes and UPDATE_FREQ=$UPDATE_FREQ"
# The control and the runs are comparable only with the same further training; without RUNS there is none.
keep_settings "$out" settings ${RUNS:+runs} ${CURVES:+curves}
lock_out "$out"

# --- text: raw -> columns -> tokenised -> BPE -> binarised ------------------------------------------------------------
text=$out/text bin=$out/data-bin
begin_text
say "reading and encoding the text"
show_into "$text/counts.txt" python3 "$recipes/lib" corpora.labelled "$raw" "$text"
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
text_is_made

# --- models: pre-training, a baseline, its curves, then a control, and runs that start from the baseline --------------
arch=roberta gated_arch=roberta_head_gates criterion=sentence_prediction
size=(--encoder-layers "$LAYERS" --encoder-embed-dim "$EMBED" --encoder-ffn-embed-dim "$FFN"
  --encoder-attention-heads "$HEADS" --max-positions "$MAX_POSITIONS")
common=(--dropout "$DROPOUT" --attention-dropout "$DROPOUT" --pooler-dropout "$DROPOUT" --shorten-method truncate
  --optimizer adam --adam-betas '(0.9, 0.98)' --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 1.0 "${train_flags[@]}")
# <s> and </s> have these numbers in every dictionary of fairseq.
task=(--task sentence_prediction --num-classes "$classes" --init-token 0 --separator-token 2)
scoring=("$bin" --user-dir "$plugin" "${task[@]}" --max-positions "$MAX_POSITIONS" --shorten-method truncate
  --max-tokens "$EVALUATION_TOKENS" "${device[@]}")
evaluation=("${scoring[@]}" --gen-subset test)
# Several GPUs: the output layer of masked language modelling has no gradient here.
fine_tuning=("${task[@]}" "${size[@]}" "${common[@]}" --batch-size "$((BATCH / workers / UPDATE_FREQ))"
  --update-freq "$UPDATE_FREQ" --required-batch-size-multiple 1 --find-unused-parameters
  --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric)
# The last checkpoint is used: the learning rate falls to 0, and the best accuracy would be a selection by noise.
baseline_checkpoint=checkpoint_last.pt
schedule polynomial_decay "$LR" "$WARMUP" "$UPDATES"
fine_tuned=("${fine_tuning[@]}" "${scheduled[@]}")
schedule polynomial_decay "$PRUNE_LR" "$PRUNE_WARMUP" "$PRUNE_UPDATES"
further_training=("${fine_tuning[@]}" "${scheduled[@]}")
gates=(${GATE_LR_SCALE:+--gate-lr-scale "$GATE_LR_SCALE"} ${FIX_AFTER:+--fix-gates-after "$FIX_AFTER"})

all_models
table classification --curves "$CURVES" --plot "$out/results.svg"
