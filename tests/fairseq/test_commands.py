"""fairseq's other commands, hydra, the hub and TensorBoard with gated checkpoints."""

import json

import pytest
from support.checkpoints import GENERATE
from support.commands import (
    ALIVE,
    EVALUATION,
    GATED,
    USER_DIR,
    hypotheses,
    l0_configuration,
    logged,
    valid_loss,
)
from support.training import assert_one_line_error

SEARCH = ["--beam", 4, "--max-len-b", 12]


@pytest.mark.release
def test_validate_repeats_the_loss_of_training(tmp_path, train, toy, either):
    trained = train(tmp_path, *GATED)
    options = [*EVALUATION, "--task", "translation", "--max-tokens", 500, "--path", tmp_path / "checkpoint_last.pt"]
    validated = either("fairseq-validate", toy.data, *options)
    assert valid_loss(validated) == valid_loss(trained)


def test_hydra_train(tmp_path, toy, run, either):
    mask_file = tmp_path / "mask.json"
    mask_file.write_text(json.dumps({"enc-self": ALIVE["enc-self"]}))
    heads = {"gate_heads": "dec-enc", "alive_heads": str(mask_file)}
    config = l0_configuration(toy, tmp_path / "save", **heads)
    config["common"] |= {"log_format": "simple", "log_interval": 1}
    (tmp_path / "toy.yaml").write_text(json.dumps(config))  # JSON is YAML
    either("fairseq-hydra-train", "--config-dir", tmp_path, "--config-name", "toy")
    mask_file.unlink()  # the checkpoint must not need it
    path = tmp_path / "save" / "checkpoint_last.pt"
    assert len(hypotheses(run("fairseq-generate", toy.data, *GENERATE, "--path", path, *SEARCH))) == 10
    shown = json.loads(run("headgates", "show", "--path", path, "--json").out)
    assert shown["gated"] == ["dec-enc"]
    assert shown["gate"]["enc-self"] == ALIVE["enc-self"]


def test_hydra_refuses_misspelt_options(tmp_path, toy, run):
    config = l0_configuration(toy, tmp_path / "save", gate_heads="enc-self", gate_temprature=0.5)
    (tmp_path / "toy.yaml").write_text(json.dumps(config))
    done = run("fairseq-hydra-train", "--config-dir", tmp_path, "--config-name", "toy", code=2)
    assert_one_line_error(done, ["unknown option 'gate_temprature' of the model: did you mean gate_temperature?"])
    assert not list((tmp_path / "save").glob("*.pt"))


@pytest.mark.release
def test_eval_bleu(tmp_path, train, run, toy):
    bleu = ["--eval-bleu", "--eval-bleu-args", '{"beam": 2, "max_len_b": 12}', "--eval-bleu-detok", "space"]
    bleu += ["--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"]
    train(tmp_path, *GATED, *bleu, updates=2)
    assert "valid | epoch 001 | valid on 'valid' subset" in (second := train(tmp_path, *GATED, *bleu, updates=4)).text
    assert "(epoch 1 @ 2 updates)" in second.text and "best_bleu" in second.text
    best = tmp_path / "checkpoint_best.pt"
    assert len(hypotheses(run("fairseq-generate", toy.data, *GENERATE, "--path", best, *SEARCH))) == 10
    run("headgates", "show", "--path", best)


def test_without_the_plugin_a_checkpoint_does_not_load(gated_checkpoint, run, toy):
    """The symptom to document: torch >= 2.6 refuses the file, earlier ones let fairseq miss the architecture."""
    options = [option for option in GENERATE if option not in ("--user-dir", USER_DIR)]
    failed = run("fairseq-generate", toy.data, *options, "--path", gated_checkpoint, code=1)
    assert "argparse.Namespace was not an allowed global" in failed.err or "IndexError: Replacement" in failed.err


# TensorBoard


@pytest.mark.release
def test_tensorboard(tmp_path, train):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    pytest.importorskip("matplotlib")
    logs = tmp_path / "tensorboard"
    log = train(tmp_path, *GATED, "--tensorboard-logdir", logs)

    def events(folder):
        return accumulator.EventAccumulator(str(logs / folder)).Reload()

    attention_types = ("enc_self", "dec_self", "dec_enc")
    for folder in ("train_inner", "train", "valid"):
        assert {"l0", "heads_open", *(f"heads_open_{attention_type}" for attention_type in attention_types)} <= set(
            events(folder).Tags()["scalars"]
        )
    l0 = [event.value for event in events("train_inner").Scalars("l0")]
    assert l0 == pytest.approx(logged(log, "l0"))
    (tag,) = events("gates").Tags()["images"]
    (image,) = events("gates").Images(tag)
    assert tag.startswith("gates/")
    assert image.step == events("valid").Scalars("l0")[-1].step == 2
    assert image.encoded_image_string.startswith(b"\x89PNG")
