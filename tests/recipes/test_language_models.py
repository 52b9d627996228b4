"""The recipes for language models: settings, programs, and whole runs on a small text."""

import math
import random
import shlex
import subprocess

import pytest
import torch
from fairseq import checkpoint_utils, options
from support.mirror import save, zipped
from support.recipes import RECIPES, refused
from support.recipes import run as run_recipe

from fairseq_headgates.data.results import read_evaluations

WORDS = ["ba", "co", "dufa", "fi", "bido", "cacode", "e"]
TINY = {"EMBED": 16, "FFN": 16, "LAYERS": 2, "HEADS": 2, "WARMUP": 2, "LR": 0.01, "MAX_TOKENS": 400}
TINY |= {"TOKENS_PER_SAMPLE": 16, "UPDATES": 6, "PRUNE_UPDATES": 4, "PRUNE_WARMUP": 1, "PRUNE_LR": 0.01}
ALL = "transformer_lm_all_attention"


def made_up(lines, seed):
    rng = random.Random(seed)
    return ["".join(f" {word} " for word in rng.choices(WORDS, k=rng.randint(0, 9))) for _ in range(lines)]


TEXT = {split: made_up(lines, lines) for split, lines in (("train", 300), ("valid", 30), ("test", 21))}


@pytest.fixture
def text(tmp_path):
    """A folder of raw text."""
    (tmp_path / "raw").mkdir()
    for split, lines in TEXT.items():
        (tmp_path / "raw" / f"{split}.txt").write_text("".join(f"{line}\n" for line in lines))
    return tmp_path / "raw"


# --- dry runs -------------------------------------------------------------------------------------------------------


def trainings(result):
    """The arguments of every training that a dry run prints."""
    assert result.returncode == 0, result.stderr
    found = [shlex.split(line) for line in result.stdout.splitlines() if "/train.py " in line]
    return [words[2:] for words in found]


def test_a_dry_run_prints_every_command_and_writes_nothing(text, tmp_path):
    result = run_recipe("language_model.sh", "--dry-run", text, tmp_path / "out", RUNS=":0.1 :0.3", SEEDS="3 5")
    assert [path.name for path in tmp_path.iterdir()] == ["raw"]
    names = [f"seed{seed}/{name}" for seed in (3, 5) for name in ("baseline", "baseline+", "lambda0.1", "lambda0.3")]
    commands = trainings(result)
    assert [words[words.index("--save-dir") + 1] for words in commands] == [f"{tmp_path}/out/{name}" for name in names]
    assert [words[words.index("--arch") + 1] for words in commands[1:3]] == [
        "transformer_lm",
        "transformer_lm_head_gates",
    ]
    starts = [words[words.index("--finetune-from-model") + 1] for words in commands if "--finetune-from-model" in words]
    assert starts == [f"{tmp_path}/out/seed{seed}/baseline/checkpoint_best.pt" for seed in (3, 3, 3, 5, 5, 5)]
    assert not {"--gate-init", "--l0-warmup-updates", "--gate-hard", "--gate-output-scale"} & set(commands[2])
    for program in ("subword-nmt learn-bpe", "fairseq-preprocess --only-source", "headgates evaluate", "--speed"):
        assert program in result.stdout
    assert "subword-nmt" not in run_recipe("language_model.sh", "--dry-run", text, tmp_path / "out", BPE=0).stdout


def test_the_techniques_of_shim_are_the_default_with_all_attention(text, tmp_path):
    gated = trainings(run_recipe("language_model.sh", "--dry-run", text, tmp_path / "out", ARCH=ALL))[2]
    for words in ("--gate-init 2", "--l0-warmup-updates 600", "--gate-hard", "--mem-len 64"):
        assert words in " ".join(gated)
    assert "--gate-output-scale" not in gated


@pytest.mark.rehearsal
@pytest.mark.release
def test_wikitext103_trains_the_preset(tmp_path):
    """Every option of the model equals that of transformer_lm_all_attention_wt103."""
    result = run_recipe("wikitext103.sh", "--dry-run", tmp_path / "out")
    assert list(tmp_path.iterdir()) == [] and "corpora.get fetch wikitext-103" in result.stdout
    commands = trainings(result)
    assert [words[words.index("--l0-weight") + 1] for words in commands[2:]] == ["0.01", "0.015", "0.02"]
    gated = commands[2]
    place = gated.index("--arch") + 1
    ours, preset = (
        vars(options.parse_args_and_arch(options.get_training_parser(), [*gated[:place], arch, *gated[place + 1 :]]))
        for arch in (ALL, f"{ALL}_wt103")
    )
    assert {name for name in ours if ours[name] != preset[name]} == {"arch"}
    alone = [gated[0], "--task", "language_modeling_segments", "--arch", f"{ALL}_wt103", "--tokens-per-sample", "192"]
    alone += ["--user-dir", gated[gated.index("--user-dir") + 1]]
    alone = vars(options.parse_args_and_arch(options.get_training_parser(), alone))
    starts = ("decoder_", "adaptive_", "tie_", "mem", "persistent", "share", "dropout", "attention_")
    model = [name for name in alone if name.startswith(starts)]
    assert len(model) > 10 and {name: ours[name] for name in model} == {name: alone[name] for name in model}
    assert ours["clip_norm"] == 0.5 and ours["lr"] == [0.0001] and ours["update_freq"] == [4]


@pytest.mark.parametrize(
    ("tokens", "workers", "limit", "expected"),
    [(36864, 1, 9216, "9216 4"), (36864, 8, 9216, "4608 1"), (36864, 3, 9000, "6144 2"), (100, 2, 192, "192 1")],
)
def test_an_update_has_the_same_tokens_on_any_number_of_workers(tokens, workers, limit, expected):
    given = f"workers={workers} TOKENS_PER_UPDATE={tokens} MAX_TOKENS={limit} TOKENS_PER_SAMPLE=192"
    function = f"$(sed -n '/^blocks_of_update() {{/,/^}}/p' {RECIPES}/language_model.sh)"
    script = f'eval "{function}"; {given}; blocks_of_update; echo $MAX_TOKENS $UPDATE_FREQ'
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


# --- whole recipes --------------------------------------------------------------------------------------------------


def own_loss(out, checkpoint, split, encoded, block, stream=None):
    """Bits per token, computed here: the model on one block of the text after another."""
    [model], _, task = checkpoint_utils.load_model_ensemble_and_task([str(checkpoint)])
    model.eval()
    dictionary, lines = task.source_dictionary, (out / "text" / f"{split}.{encoded}").read_text().splitlines()
    tokens = [dictionary.eos()]
    for line in lines:
        tokens += [dictionary.index(word) for word in line.split()] + [dictionary.eos()]
    bits = 0.0
    for number, start in enumerate(range(0, len(tokens) - 1, block)):
        source = torch.tensor([tokens[start : start + block]])[:, : len(tokens) - 1 - start]
        target = torch.tensor([tokens[start + 1 : start + 1 + block]])
        extra = {"blocks": torch.tensor([[number // stream, number % stream]])} if stream else {}
        with torch.no_grad():
            output = model(source, **extra)
            chances = model.get_normalized_probs(output, log_probs=True, sample={"target": None})
        bits -= chances.double().gather(2, target[:, :, None]).sum().item() / math.log(2)
    return bits / (len(tokens) - 1), len(tokens) - 1, sum(len(line.split()) + 1 for line in TEXT[split])


def assert_table_is_true(result, out, checkpoints, **reading):
    """The perplexities of every model in the table, against an evaluation of its own."""
    assert result.returncode == 0, result.stdout + result.stderr
    table = {cells[0]: cells[1:] for line in result.stdout.splitlines() if "/" in line and (cells := line.split())}
    columns = table.pop("model")
    assert [name for name in checkpoints if name not in table] == []
    for name, checkpoint in checkpoints.items():
        row = dict(zip(columns, table[name], strict=True))
        [evaluation] = read_evaluations(str(out / name / "evaluation.json"))
        for split in ("valid", "test"):
            loss, tokens, words = own_loss(out, out / name / checkpoint, split, **reading)
            assert float(row[split]) == pytest.approx(2**loss, rel=2e-4, abs=0.006)  # two decimals
            assert float(row[f"{split}/word"]) == pytest.approx(2 ** (loss * tokens / words), rel=1e-3, abs=0.006)
            assert evaluation.losses[split].tokens == tokens
        assert row["heads"] == "{}/{}".format(*evaluation.heads["total"]) and int(row["tokens/s"].replace(",", "")) > 0
    return table


def assert_repeating_does_nothing(recipe, arguments, given, printed):
    before = {path: path.stat().st_mtime_ns for path in arguments[-1].rglob("*") if path.is_file()}
    again = run_recipe(recipe, *arguments, **given)
    assert again.returncode == 0 and "training" not in again.stdout and "evaluating" not in again.stdout
    assert again.stdout.splitlines()[-10:] == printed.splitlines()[-10:]
    changed = {path.name for path, then in before.items() if not path.exists() or path.stat().st_mtime_ns != then}
    assert changed <= {"results.txt", "results.tsv", "results.svg", ".lock"}
    dry = run_recipe(recipe, "--dry-run", *arguments, **given).stdout.splitlines()
    [left] = [line for line in dry if "corpora" not in line and line[0] != "#"]
    assert "results.table" in left


@pytest.mark.rehearsal
@pytest.mark.release
@pytest.mark.parametrize("arch", ["transformer_lm", ALL])
def test_the_language_model_recipe_prints_a_correct_table(arch, text, tmp_path):
    """Gates that close within four updates, compression; perplexities as computed here; the second run does nothing."""
    out = tmp_path / "out"
    given = TINY | {"ARCH": arch, "BPE": 10, "RUNS": ":50 params=0.9@only", "GATE_LR_SCALE": 1000, "L0_WARMUP": 1}
    given |= {"STREAM_BLOCKS": 3} if arch == ALL else {}
    result = run_recipe("language_model.sh", text, out, **given)
    checkpoints = {"baseline": "checkpoint_best.pt", "baseline+": "checkpoint_last.pt", "lambda50": "pruned.pt"}
    checkpoints |= {"params0.9_only": "pruned.pt"}
    table = assert_table_is_true(result, out, checkpoints, encoded="bpe", block=16, stream=given.get("STREAM_BLOCKS"))
    assert table["baseline"][0] == "4/4" and table["lambda50"][0] == "0/4"
    assert_repeating_does_nothing("language_model.sh", (text, out), given, result.stdout)
    refused(run_recipe("language_model.sh", text, out, **given | {"BPE": 9}), "was made with other settings", "BPE=10")


@pytest.mark.rehearsal
@pytest.mark.release
def test_wikitext103_goes_from_the_archive_to_the_heads_of_the_paper(tmp_path):
    out, mirror = tmp_path / "out", tmp_path / "mirror with blanks"
    members = {f"wikitext-103/wiki.{split}.tokens": "".join(f"{x}\n" for x in lines) for split, lines in TEXT.items()}
    save(mirror, {"wikitext.smerity.com/wikitext-103-v1.zip": zipped(members)})
    given = TINY | {
        "CPU": 1,
        "DISK_GB": 0,
        "DATA_DIR": mirror,
        "ADAPTIVE": "6,9",
        "MEM_LEN": 16,
        "PERSISTENT_VECTORS": 4,
    }
    given |= {"TOKENS_PER_UPDATE": 320, "SAVE_EVERY": 3, "RUNS": ":0.015", "L0_WARMUP": 2, "MIN_LR": 0.001}
    result = run_recipe("wikitext103.sh", out, **given)
    assert "train: 300 lines" in result.stdout
    checkpoints = dict.fromkeys(("baseline", "baseline+"), "checkpoint_last.pt") | {"lambda0.015": "pruned.pt"}
    table = assert_table_is_true(result, out, checkpoints, encoded="words", block=16, stream=64)
    assert table["baseline"][:2] == ["4/4", "128/128"] and table["lambda0.015"][1] == "87/128"
    assert "--clip-norm" in (out / "settings.txt").read_text()
    assert_repeating_does_nothing("wikitext103.sh", (out,), given, result.stdout)
