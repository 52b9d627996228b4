# Text, models and curves of classification.sh. Source it after common.sh and models.sh.
#
# Every function skips what is complete. Variables of the recipe: `raw`, `out`, `text`, `bin`, `seed` and `codes`;
# `reading`, options with which the commands read the labelled data; `baseline_training` and `further_training`,
# options of fairseq-train for the baseline and for every training that starts from it; `gates`, options of gated runs;
# `batch_tokens`, tokens of a batch of masked language modelling; `plan`, the lines of classifier_runs.py.

# --- text -----------------------------------------------------------------------------------------------------------

# find_splits: set `splits`, the names of the files in RAW_DIR. Fail if one is missing.
find_splits() {
  local split
  splits=
  for split in train valid test; do
    [[ $split != valid || -f $raw/valid.tsv || -f $raw/valid.tsv.gz || (! -f $raw/dev.tsv && ! -f $raw/dev.tsv.gz) ]] || split=dev
    [[ ${DRY_RUN:-0} == 1 || -f $raw/$split.tsv || -f $raw/$split.tsv.gz ]] ||
      fail "$raw/$split.tsv[.gz] is missing: RAW_DIR needs train, valid (or dev) and test"
    splits+=" $split"
  done
}

# inputs: the columns of text, input0 alone or input0 and input1 (pairs of sentences). Before the text is made, the first
# line of the training set shows it, or, in a dry run without data, INPUTS (1 or 2).
inputs() {
  local number=${INPUTS:-1}
  if [[ -f $text/labels.txt ]]; then
    number=$([[ -f $text/train.raw.input1 ]] && echo 2 || echo 1)
  elif [[ -f $raw/train.tsv || -f $raw/train.tsv.gz ]]; then
    number=$(eval "$(reading "$raw/train.tsv")" 2>/dev/null | awk -F '\t' 'NR == 1 { print (NF > 2 ? 2 : 1) }')
  fi
  [[ $number == 2 ]] && echo input0 input1 || echo input0
}

# tokenise SPLIT INPUT: the raw text of a split in tokens, $text/SPLIT.tok.INPUT.
tokenise() {
  local lowercase=''
  [[ $ENCODED == 0 ]] || return 0
  [[ $LOWERCASE == 0 ]] || lowercase=" | python3 $(quoted "$recipes/lib") text.lines lowercase"
  by_lines "$text/$1.raw.$2" "$text/$1.tok.$2" "${TOKENIZE:+sacremoses -q }${TOKENIZE:-cat}$lowercase"
}

# encode SPLIT INPUT: the tokens of a split in BPE, $text/SPLIT.bpe.INPUT.
encode() {
  local tokens=$text/$1.tok.$2 command=(subword-nmt apply-bpe -c "$codes")
  [[ $ENCODED == 0 ]] || tokens=$text/$1.raw.$2 command=(cat)
  by_lines "$tokens" "$text/$1.bpe.$2" "$(quoted "${command[@]}")"
}

# binarise NAME DICT SPLIT...: $bin.part/NAME from $text/SPLIT.bpe.NAME; with DICT empty its dictionary is new. Labels,
# which have no BPE, are $text/SPLIT.label.
binarise() {
  local name=$1 options=() split file
  [[ -z $2 ]] || options=(--srcdict "$2")
  shift 2
  for split in "$@"; do
    file=$text/$split.bpe.$name
    [[ $name != label ]] || file=$text/$split.label
    options+=("--${split}pref" "$file")
  done
  run "$out/preprocess.log" fairseq-preprocess --only-source "${options[@]}" --destdir "$bin.part/$name" --workers "$(nproc)"
}

# make_data INPUT...: the folder of fairseq-preprocess: a folder for each column of text, and for the labels. Without
# PRETRAINED also `text`, all training text for masked language modelling, whose dictionary the others have.
make_data() {
  local dictionary=$PRETRAINED_DICT input
  [[ -d $bin ]] && return
  [[ ${DRY_RUN:-0} == 1 ]] || rm -rf "$bin.part"
  if [[ -z $PRETRAINED ]]; then
    binarise text '' train valid
    dictionary=$bin.part/text/dict.txt
  fi
  for input in "$@"; do binarise "$input" "$dictionary" train valid test; done
  binarise label "$text/label.dict" train valid test
  run "$out/preprocess.log" mv "$bin.part" "$bin"
}

# --- models ---------------------------------------------------------------------------------------------------------

# pretrain RUN_DIR: train a RoBERTa by masked language modelling (Liu et al. 2019), a sentence at a time, and set
# `pretrained` to its checkpoint; with PRETRAINED to that file.
pretrain() {
  pretrained=$PRETRAINED
  [[ -z $PRETRAINED ]] || return 0
  pretrained=$1/checkpoint_last.pt
  local bin=$bin/text
  schedule polynomial_decay "$MLM_LR" "$MLM_WARMUP" "$MLM_UPDATES"
  train "$1" --task masked_lm --criterion masked_lm --arch roberta "${size[@]}" "${common[@]}" \
    --sample-break-mode eos --tokens-per-sample "$((MAX_POSITIONS - 1))" --skip-invalid-size-inputs-valid-test \
    --max-tokens "$batch_tokens" --update-freq "$UPDATE_FREQ" "${scheduled[@]}"
}

# classify RUN_DIR CHECKPOINT: write the predictions on the test set and the number of heads and parameters.
classify() {
  into "$1/predictions.json" "$(quoted python3 "$recipes/lib/classify.py" "${reading[@]}" --path "$1/$2" --gen-subset test)"
  into "$1/heads.json" "$(quoted headgates show "$1/$2" --json)"
}

# baseline_of PLACE: fine-tune the pre-trained model. The last checkpoint is the baseline.
baseline_of() {
  pretrain "$1/pretrained"
  train "$1/baseline" --arch roberta --criterion sentence_prediction "${baseline_training[@]}" --finetune-from-model "$pretrained"
  baseline=$1/baseline/checkpoint_last.pt
  classify "$1/baseline" checkpoint_last.pt
}

# control_of PLACE: train the baseline for as long as a run, with the same schedule and order of the data, without gates.
control_of() {
  train "$1/baseline+" --arch roberta --criterion sentence_prediction "${further_training[@]}" --finetune-from-model "$baseline"
  classify "$1/baseline+" checkpoint_last.pt
}

# gated_classifier RUN_DIR METHOD VALUE: train the baseline with gates, with lambda (method l0) or the number of heads to
# keep as VALUE, and remove the closed heads.
gated_classifier() {
  local sparsity=(--sparsity-method "$2" --target-heads "$3" ${SPARSITY_WARMUP:+--sparsity-warmup-updates "$SPARSITY_WARMUP"})
  [[ $2 != l0 ]] || sparsity=(--l0-weight "$3" ${L0_WARMUP:+--l0-warmup-updates "$L0_WARMUP"})
  train "$1" --arch roberta_head_gates --gate-heads enc-self --criterion sentence_prediction_l0 "${sparsity[@]}" \
    "${gates[@]}" "${further_training[@]}" --finetune-from-model "$baseline"
  remove_closed "$1" checkpoint_last.pt
  classify "$1" pruned.pt
}

# scored_classifier RUN_DIR SCORES KEEP: remove the heads of the baseline with the lowest scores, then train for as long as
# a gated run.
scored_classifier() {
  [[ ${DRY_RUN:-0} == 1 ]] || mkdir -p "$1"
  [[ -f $1/start.pt ]] ||
    run "$1/prune.log" headgates prune "$baseline" "$1/start.pt" --scores "$2" --types enc-self --keep "$3" --no-optimizer
  train "$1" --arch roberta_head_gates --alive-heads "$1/start.pt" --remove-heads --criterion sentence_prediction \
    "${further_training[@]}" --finetune-from-model "$1/start.pt"
  remove_closed "$1" checkpoint_last.pt
  classify "$1" pruned.pt
}

# curve_of PLACE METHOD: score the heads of the baseline on the training set, remove them step by step without training,
# and measure accuracy on the test set (Michel et al. 2019).
curve_of() {
  local folder=$1/curves method=$2
  [[ ${DRY_RUN:-0} == 1 ]] || mkdir -p "$folder"
  [[ -f $folder/$method.scores.json ]] ||
    run "$folder/$method.log" headgates score "${reading[@]}" --path "$baseline" --gen-subset train \
      --sentences "$SENTENCES" --method "$method" --seed "$seed" --out "$folder/$method.scores.json" --force
  [[ -f $folder/$method.json ]] ||
    run "$folder/$method.log" headgates curve "${reading[@]}" --path "$baseline" --gen-subset test \
      --scores "$folder/$method.scores.json" --types enc-self --steps "$STEPS" --metric accuracy \
      --out "$folder/$method.json" --tsv "$folder/$method.tsv" --force
}

# models_of PLACE: all models and curves of one seed.
models_of() {
  local place=$1 line name method value
  baseline_of "$place"
  for method in $CURVES; do
    say "removing heads of $(label "$place/baseline") step by step, by $method"
    curve_of "$place" "$method"
  done
  [[ -z ${plan[*]} ]] || control_of "$place"
  for line in "${plan[@]}"; do
    read -r name method value <<<"$line"
    case $method in
      l0 | lagrangian | subset) gated_classifier "$place/$name" "$method" "$value" ;;
      *) scored_classifier "$place/$name" "$place/curves/$method.scores.json" "$value" ;;
    esac
  done
}
