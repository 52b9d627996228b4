# Steps of translation.sh: text, and the batches of an update. Source it after common.sh.
#
# Variables of the recipe: `text`, `train` (the beginning of the names of the training text), `src`, `tgt`, `bin`,
# `train_flags`, `clean_flags`, `workers`.

tokenise() { [[ $PRETOKENIZED == 1 ]] && echo cat || echo "sacremoses -q -l $1 normalize tokenize"; }
detokenised() { [[ $PRETOKENIZED == 0 ]] || echo "| sacremoses -q -l $1 detokenize"; }
lowercased() { [[ $LOWERCASE == 0 ]] || echo " | python3 $(quoted "$recipes/lib") text.lines lowercase"; }
learn_bpe() { quoted subword-nmt learn-bpe -s "$BPE" --input "$1"; }

# clean_text: write train.clean without the pairs that CLEAN excludes, and set `train` to it.
clean_text() {
  train=$text/train.clean
  show_into "$text/cleaning.txt" python3 "$recipes/lib" text.clean "$text/train.tok" "$train" "$src" "$tgt" \
    "${clean_flags[@]}" --without "$text/valid.tok" "$text/test.tok"
  dry || [[ -s $train.$src ]] ||
    fail "CLEAN='$CLEAN' leaves no training text (see the table above): use other options and another OUT_DIR"
}

# need_short_lines SIDE LANGUAGE: fail if a line of the validation or the test set is too long for the model: generation
# would fail after the training. SIDE is source or target.
need_short_lines() {
  local option=--max-$1-positions most=1024 split found i # fairseq's default
  dry && return
  for ((i = 0; i < ${#train_flags[@]}; i++)); do
    [[ ${train_flags[i]} != "$option" ]] || most=${train_flags[i + 1]:-$most}
    [[ ${train_flags[i]} != "$option="* ]] || most=${train_flags[i]#*=}
  done
  for split in valid test; do
    # The end of the sentence counts, too.
    found=$(awk -v most="$most" -v name="$split" 'NF > longest { longest = NF; line = NR }
      END { if (longest >= most) print longest + 1, "line " line " of the " name " set has " longest " tokens" }' \
      <"$text/$split.bpe.$2")
    [[ -z $found ]] ||
      fail "${found#* } in $2, and the model takes $((most - 1)): shorten it, or add $option ${found%% *} to TRAIN_FLAGS; in both cases take another OUT_DIR"
  done
}

# plan_batches: set MAX_TOKENS and UPDATE_FREQ so that an update has TOKENS_PER_UPDATE source tokens on all `workers`.
plan_batches() {
  local plan=(python3 "$recipes/lib" text.batches "$bin" "$src" "$tgt" --tokens "$TOKENS_PER_UPDATE" --workers "$workers" --max-tokens "$MAX_TOKENS")
  if printed "${plan[@]}"; then
    echo "# gives --max-tokens and --update-freq"
    UPDATE_FREQ="UPDATE_FREQ"
  else
    answer "MAX_TOKENS UPDATE_FREQ" "${plan[@]}"
  fi
}

# keep_metric OUT_DIR: record METRIC. Fail if the folder has the scores of another METRIC under this METRIC_NAME.
keep_metric() {
  local file=$1/metric.$METRIC_NAME.txt
  [[ ! -f $file || $(<"$file") == "$METRIC" ]] ||
    fail "METRIC_NAME='$METRIC_NAME' is the name of another METRIC in $1 ($(<"$file")): choose another METRIC_NAME"
  dry || [[ -f $file ]] || printf '%s\n' "$METRIC" >"$file"
}
