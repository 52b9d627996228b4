"""Two examples for the help of each subcommand."""

BASELINE, GATED = "baseline/checkpoint_best.pt", "gated/checkpoint_last.pt"
VALID = f"data-bin --path {BASELINE} --gen-subset valid"
EXAMPLES = {
    "path": (
        "headgates path",
        f"fairseq-generate data-bin --user-dir $(headgates path) --path {GATED}",
    ),
    "options": (
        "headgates options",
        "headgates options | grep -A 3 -e --gate-lr-scale",
    ),
    "show": (
        f"headgates show {GATED}",
        f"headgates show {GATED} --out heads.json",
    ),
    "prune": (
        f"headgates prune {GATED} pruned.pt",
        f"headgates prune {BASELINE} half.pt --scores scores.json --keep 0.5 --refit data-bin",
    ),
    "compress": (
        f"headgates compress data-bin --path {BASELINE} --params 0.8 --out small.pt",
        f"headgates compress data-bin --path {BASELINE} --speedup 1.3 --beam 4 --cpu --plot speeds.svg",
    ),
    "convert": (
        f"headgates convert {GATED} ct2 --to ctranslate2 --data data-bin",
        f"headgates convert {GATED} ct2-int8 --to ctranslate2 --data data-bin --quantization int8",
    ),
    "evaluate": (
        f"headgates evaluate data-bin --path {BASELINE}:pruned.pt --remove-bpe --tokenizer moses",
        "headgates evaluate data-bin --path pruned.pt --cpu --inference-dtype int8 --speed --out int8.json",
    ),
    "score": (
        f"headgates score {VALID} --method gradient --out scores.json",
        f"headgates score {VALID} --method confidence,ablation --out two.json --plot two.svg",
    ),
    "ablate": (
        f"headgates ablate {VALID} --out ablation.json",
        f"headgates ablate data-bin --path {BASELINE} --metric bleu --remove-bpe --mode all-but-one",
    ),
    "curve": (
        f"headgates curve {VALID} --by gradient --metric nll --plot curve.svg",
        f"headgates curve {VALID} --scores scores.json --refit --steps 0,50,75 --tsv curve.tsv",
    ),
    "correlate": (
        "headgates correlate two.json",
        "headgates correlate valid.json test.json --each-type --top 4",
    ),
    "compare": (
        f"headgates compare {GATED} half.pt",
        "headgates compare seed1.json seed2.json seed3.json",
    ),
    "explain": (
        f"headgates explain {VALID} --lines 1,2",
        f"headgates explain {VALID} --lines 3 --method alti --plot contributions.html",
    ),
    "attention": (
        f"headgates attention {VALID} --lines 1 --heads 'dec-enc:0.*' --plot maps.svg",
        f"headgates attention {VALID} --lines 1 --interactive --plot heads.html",
    ),
    "functions": (
        f"headgates functions {VALID} --statistics --out functions.json",
        f"headgates functions {VALID} --write-alignments model.align --align-by dec-enc:0.1",
    ),
    "report": (
        f"headgates report report.html gated {BASELINE}",
        "headgates report scores.html gated scores.json functions.json",
    ),
}
