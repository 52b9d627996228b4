# Text, models and curves of classification.sh. Source it after common.sh and runs.sh.
#
# Every function skips what is complete. Variables of the recipe: `raw`, `out`, `text`, `bin` and `codes`; `scoring`,
# options with which the commands read the labelled data; `fine_tuned`, options of fairseq-train for the baseline;
# `batch_tokens`, tokens of a batch of masked language modelling.

# --- text -----------------------------------------------------------------------------------------------------------

# find_splits: set `splits`, the names of the files in RAW_DIR.
find_splits() {
  splits=(train valid test)
  [[ -f $raw/valid.tsv || -f $raw/valid.tsv.gz || (! -f $raw/dev.tsv && ! -f $raw/dev.tsv.gz) ]] || splits[1]=dev
}

# find_pretrained: set `codes` to the BPE codes of PRETRAINED. Fail if a file is missing, or is of another model.
find_pretrained() {
  codes=$PRETRAINED_CODES
  dry && return
  [[ -f $PRETRAINED ]] || fail "PRETRAINED='$PRETRAINED' is not a file: give a RoBERTa checkpoint of fairseq"
  [[ -f $PRETRAINED_DICT ]] || fail "$PRETRAINED_DICT is missing: set PRETRAINED_DICT to the dictionary of PRETRAINED"
  [[ $ENCODED == 1 || -f $codes ]] ||
    fail "$codes is missing: set PRETRAINED_CODES to the BPE codes or tokenizer.json of PRETRAINED, or ENCODED=1 for text that is BPE already"
  [[ -d $out/data-bin ]] ||
    attended python3 "$recipes/lib" training.check_roberta "$PRETRAINED" "$PRETRAINED_DICT" || exit 2
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

# tokenise SPLIT INPUT: the raw text of a split in tokens, $text/SPLIT.tok.INPUT, for subword-nmt.
tokenise() {
  local lowercase=''
  [[ $ENCODED == 0 && $codes != *.json ]] || return 0
  [[ $LOWERCASE == 0 ]] || lowercase=" | python3 $(quoted "$recipes/lib") text.lines lowercase"
  by_lines "$text/$1.raw.$2" "$text/$1.tok.$2" "${TOKENIZE:+sacremoses -q }${TOKENIZE:-cat}$lowercase"
}

# encode SPLIT INPUT: the tokens of a split in BPE or WordPieces, $text/SPLIT.bpe.INPUT.
encode() {
  local tokens=$text/$1.tok.$2 command=(subword-nmt apply-bpe -c "$codes")
  [[ $codes != *.json ]] || tokens=$text/$1.raw.$2 command=(python3 "$recipes/lib" text.wordpieces "$codes")
  [[ $ENCODED == 0 ]] || tokens=$text/$1.raw.$2 command=(cat)
  by_lines "$tokens" "$text/$1.bpe.$2" "$(quoted "${command[@]}")"
}

# binarise_column NAME DICT SPLIT...: $bin.part/NAME from $text/SPLIT.bpe.NAME; with DICT empty its dictionary is new. Labels,
# which have no BPE, are $text/SPLIT.label.
binarise_column() {
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
  record_text
  if [[ ! -d $bin ]]; then
    dry || rm -rf "$bin.part"
    if [[ -z $PRETRAINED ]]; then
      binarise_column text '' train valid
      dictionary=$bin.part/text/dict.txt
    fi
    for input in "$@"; do binarise_column "$input" "$dictionary" train valid test; done
    binarise_column label "$text/label.dict" train valid test
    run "$out/preprocess.log" mv "$bin.part" "$bin"
  fi
}

# --- models ---------------------------------------------------------------------------------------------------------

# before_baseline PLACE: train a RoBERTa by masked language modelling (Liu et al. 2019), a sentence at a time, unless
# there is PRETRAINED. The baseline starts from it.
before_baseline() {
  local bin=$bin pretrained=$PRETRAINED
  if [[ -z $pretrained ]]; then
    pretrained=$1/pretrained/checkpoint_last.pt bin=$bin/text
    schedule polynomial_decay "$MLM_LR" "$MLM_WARMUP" "$MLM_UPDATES"
    train "$1/pretrained" --task masked_lm --criterion masked_lm --arch roberta "${size[@]}" "${common[@]}" \
      --sample-break-mode eos --tokens-per-sample "$((MAX_POSITIONS - 1))" --skip-invalid-size-inputs-valid-test \
      --max-tokens "$batch_tokens" --update-freq "$UPDATE_FREQ" "${scheduled[@]}"
  fi
  baseline_training=("${fine_tuned[@]}" --finetune-from-model "$pretrained")
}

# after_baseline PLACE: by each of CURVES, score the heads of the baseline on the training set, remove them step by step
# without training, or with a refit, and measure accuracy on the test set (Michel et al. 2019).
after_baseline() {
  local folder=$1/curves method scores refit
  for method in $CURVES; do
    say "removing heads of $(label "$1/baseline") step by step, by $method"
    scores=${method%-refit} refit=()
    [[ $method != *refit ]] || refit=(--refit --refit-sentences "$SENTENCES")
    stage "$folder/$scores.scores.json" "$folder/$method.log" headgates score "${scoring[@]}" --path "$baseline" \
      --gen-subset train --sentences "$SENTENCES" --method "$scores" --seed "$seed" \
      --out "$folder/$scores.scores.json" --force
    stage "$folder/$method.json" "$folder/$method.log" headgates curve "${scoring[@]}" --path "$baseline" \
      --gen-subset test --scores "$folder/$scores.scores.json" --types enc-self --steps "$STEPS" --metric accuracy \
      "${refit[@]}" --out "$folder/$method.json" --tsv "$folder/$method.tsv" --force
  done
}
