"""A small model of every kind that fairseq registers, with a batch for it: two layers and four heads in every stack.

`CASES[name]` gives `build()`, which returns the model, and `run(model)`, which returns the output to train on.
"""

import argparse
import tempfile
from argparse import Namespace
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from fairseq.data.legacy.masked_lm_dictionary import MaskedLMDictionary
from fairseq.models import ARCH_CONFIG_REGISTRY, MODEL_REGISTRY
from fairseq.tasks.multilingual_translation import MultilingualTranslationTask
from omegaconf import MISSING as OMEGA_MISSING
from omegaconf import OmegaConf

from support.models import PAD, VOCABULARY, make_batch, make_task

# Sizes for all models. A model ignores the options that it does not have.
STACK = {"embed_dim": 16, "ffn_embed_dim": 24, "layers": 2, "transformer_layers": 2, "attention_heads": 4}
MORE = {"input_dim": 16, "output_dim": 16, "conv_dim": 16, "kernel_size_list": [3, 3], "layerdrop": 0.0}
SIZES = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in {**STACK, **MORE}.items()}
NO_DROPOUT = ("dropout", "attention_dropout", "activation_dropout", "prenet_dropout", "postnet_dropout", "layerdrop")
NO_DROPOUT += ("decoder_dropout", "decoder_attention_dropout", "decoder_activation_dropout", "final_dropout")
NO_DROPOUT += ("dropout_input", "dropout_features", "var_pred_dropout", "encoder_dropout", "pooler_dropout")
SIZES.update(dict.fromkeys(NO_DROPOUT, 0.0))
SIZES.update(dict.fromkeys(("max_source_positions", "max_target_positions", "max_positions", "tokens_per_sample"), 64))
SPEECH = {"input_feat_per_channel": 8, "input_channels": 1, "conv_channels": 16, "conv_out_channels": 4, "fp16": False}
SPEECH.update(output_frame_dim=8, n_frames_per_step=1, target_speaker_embed=False, depthwise_conv_kernel_size=3)
TTS = {"prenet_dim": 16, "postnet_conv_dim": 16, "fft_hidden_dim": 16, "var_pred_hidden_dim": 16}
TTS.update(pitch_min=-1.0, pitch_max=1.0, energy_min=-1.0, energy_max=1.0)
WAVES = {"conv_feature_layers": "[(16, 10, 5)] * 2", "conv_pos": 4, "conv_pos_groups": 4, "final_dim": 8}
WAVES.update(latent_vars=8, label_rate=50)
TWO_RATES = {"label_rate_ratios": [1, 2], "conv_adapator_kernal": 3}
UNITY = {"synthesizer_encoder_layers": 2, "translation_decoder_layers": 2}

TEXT = make_batch()
PREVIOUS = TEXT["prev_output_tokens"]


def noise(*shape):
    """The same random numbers every time."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


SPOKEN = {"src_tokens": noise(3, 40, 8), "src_lengths": torch.tensor([40, 30, 40])}  # filter banks, frames
SAMPLES = torch.tensor([400, 300, 350])
WAVE = {"source": noise(3, 400), "padding_mask": torch.arange(400)[None] >= SAMPLES[:, None]}
FRAMES = {"target_lengths": torch.tensor([6, 4, 5])}


@dataclass(frozen=True)
class Case:
    """A model and how to run it."""

    build: Callable
    run: Callable


def defaults(name):
    """The options of a model with the values that fairseq-train gives them."""
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    MODEL_REGISTRY[name].add_args(parser)
    of_class = getattr(MODEL_REGISTRY[name], "__dataclass", None)
    values = {field.name: field.default for field in fields(of_class)} if of_class else {}
    missing = (MISSING, OMEGA_MISSING)
    known = {key: value for key, value in values.items() if value not in missing and not str(value).startswith("${")}
    return {**known, **vars(parser.parse_args([]))}


def options(name, **changes):
    """The options of a small model: the sizes above, changes, and the defaults of its architecture."""
    args = Namespace(**{**defaults(name), **SIZES, **SPEECH, **TTS, **changes})
    if name in ARCH_CONFIG_REGISTRY:
        ARCH_CONFIG_REGISTRY[name](args)
    return args


def build(name, task=None, **changes):
    """A small model of the registry."""
    torch.manual_seed(0)
    return MODEL_REGISTRY[name].build_model(options(name, **changes), task or text_task())


def text_task():
    """A task with one dictionary for everything."""
    task = make_task()
    task.dictionary = task.output_dictionary = task.src_dict = task.tgt_dict = task.source_dictionary
    task.get_speaker_embeddings = lambda args: None
    return task


# --- models of waves -------------------------------------------------------------------------------------------------


def settings(name, **changes):
    """The options of a model as the configuration that fairseq's speech models read."""
    config = OmegaConf.create({**vars(options(name)), **WAVES, "extractor_mode": "default", **changes})
    OmegaConf.set_struct(config, True)  # what is missing is None otherwise, in omegaconf 2.0
    return config


def wav2vec2(**changes):
    """A small wav2vec 2.0 model."""
    torch.manual_seed(0)
    return MODEL_REGISTRY["wav2vec2"].build_model(settings("wav2vec2", **changes), None)


def hubert():
    """A small HuBERT model."""
    torch.manual_seed(0)
    task = SimpleNamespace(cfg=SimpleNamespace(sample_rate=16000), dictionaries=[text_task().dictionary])
    return MODEL_REGISTRY["hubert"].build_model(settings("hubert"), task)


def multires_hubert():
    """A small model of two resolutions: an encoder for each, and for the higher one what is called its decoder."""
    torch.manual_seed(0)
    task = SimpleNamespace(cfg=SimpleNamespace(sample_rate=16000), dictionaries=[text_task().dictionary] * 3)
    return MODEL_REGISTRY["multires_hubert"].build_model(settings("multires_hubert", **TWO_RATES), task)


def stored(name, task, **changes):
    """The options of a pre-trained model, as its checkpoint stores them."""
    of_model = TWO_RATES if name == "multires_hubert" else {}
    model = {**OmegaConf.to_container(settings(name, **of_model)), "_name": name}
    return OmegaConf.create({"model": model, "task": {"_name": task, "data": "", "normalize": False, **changes}})


def fine_tuned(name, **changes):
    """A small model on top of a wav2vec 2.0 or HuBERT model."""
    torch.manual_seed(0)
    task = text_task()
    task.state_dict = lambda: {"target_dictionary": task.dictionary, "dictionaries": [task.dictionary]}
    if name == "multires_hubert_ctc":
        task.state_dict = lambda: {"target_dictionary": task.dictionary, "dictionaries": [task.dictionary] * 3}
        below = stored("multires_hubert", "multires_hubert_pretraining", fine_tuning=True, labels=["ltr"] * 3)
        changes |= {"multires_hubert_path": "", "multires_hubert_args": below}
    elif name.startswith("hubert"):
        below = stored("hubert", "hubert_pretraining", fine_tuning=True, labels=["ltr"])
    else:
        below = stored("wav2vec2", "audio_pretraining")
    of_task = {"w2v_args": below, "data": "", "normalize": False, "apply_mask": False, "autoregressive": False}
    return MODEL_REGISTRY[name].build_model(settings(name, **{**of_task, "pooling": "mean", **changes}), task)


def on_wave(model, **inputs):
    """Run a model on three waves."""
    return model(**WAVE, **inputs)


def features(model):
    """The features of a pre-trained model, without masks, which are random."""
    return on_wave(model, features_only=True, mask=False)["x"]


# --- models of several parts -----------------------------------------------------------------------------------------


def speech_task(code, first_pass=False):
    """A task of speech translation with a second decoder, of letters."""
    task = text_task()
    task.args = Namespace(target_is_code=code)
    decoder = Namespace(**{f"decoder_{key}": value for key, value in STACK.items()}, dropout=0.0)
    of_letters = Namespace(input_from="encoder", decoder_type="transformer", decoder_args=decoder)
    of_letters.get_loss_weight = lambda update: 1.0
    letters = SimpleNamespace(is_first_pass_decoder=first_pass, target_dictionary=task.dictionary, args=of_letters)
    task.multitask_tasks = {"letters": letters}
    return task


def speech_model(name, code, first_pass=False, **changes):
    """A small model of speech translation with a second decoder."""
    return build(name, speech_task(code, first_pass), **changes)


def on_speech(model, **inputs):
    """Run a model on the filter banks of three utterances."""
    return model(**SPOKEN, **inputs)


def xm_transformer(name, **changes):
    """A small model of a wav2vec 2.0 encoder and a text or unit decoder."""
    below = {"w2v_path": "", "w2v_args": stored("wav2vec2", "audio_pretraining"), "data": "", "freeze_regex": None}
    return build(name, speech_task(True, name.startswith("unity")), **below, **changes)


def on_short_wave(model, **inputs):
    """Run a model on three waves of given lengths."""
    return model(WAVE["source"], SAMPLES, **inputs)


def multilingual_task():
    """A task of two pairs of languages."""
    task = MultilingualTranslationTask.__new__(MultilingualTranslationTask)
    task.dicts = dict.fromkeys(("en", "de", "fr"), text_task().dictionary)
    task.model_lang_pairs = task.lang_pairs = ["en-de", "en-fr"]
    task.langs, task.training = ["en", "de", "fr"], True
    return task


def multilingual(**changes):
    """A small model of two pairs of languages."""
    return build("multilingual_transformer", multilingual_task(), **changes)


def on_both_pairs(model):
    """The outputs of both models of pairs, side by side."""
    return torch.cat([part(**TEXT)[0] for part in model.models.values()], dim=-1)


def dialogue():
    """A small model of two channels."""
    task = text_task()
    task.channels = ["A", "B"]
    task.source_dictionaries = task.target_dictionaries = dict.fromkeys(task.channels, task.dictionary)
    predicts = {"main_and_cross_weights": "1.0,1.0", "duration_prediction": "False", "edge_prediction": "False"}
    return build("speech_dlm", task, decoder_cross_layers=1, delayed_duration_target="False", **predicts)


def both_speakers(model):
    """What a model of two channels predicts for its first channel."""
    return model({"A": PREVIOUS, "B": PREVIOUS + (PREVIOUS > PAD)})[0]["A"]["A"]


def units():
    """A small language model of units, durations and pitch."""
    task = text_task()
    task.cfg = SimpleNamespace(**dict.fromkeys(("discrete_duration", "discrete_f0"), False))
    task.cfg.ignore_duration_input = task.cfg.ignore_f0_input = False
    task.channel_names, task.channel_sizes = ["token", "duration", "f0"], [len(task.dictionary), 1, 1]
    return build("transformer_ulm", task)


def from_xlm():
    """A small transformer whose encoder is initialised by a small XLM model."""
    dictionary = MaskedLMDictionary()
    for i in range(VOCABULARY):
        dictionary.add_symbol(f"w{i}")
    task = SimpleNamespace(**dict.fromkeys(("dictionary", "source_dictionary", "target_dictionary"), dictionary))
    xlm = build("masked_lm", task)
    of_checkpoint = {"args": None, "optimizer_history": [{"best_loss": 0}], "extra_state": {"train_iterator": None}}
    with tempfile.TemporaryDirectory() as folder:
        file = str(Path(folder) / "xlm.pt")
        torch.save({"model": xlm.state_dict(), **of_checkpoint}, file)
        known = {"pretrained_xlm_checkpoint": file, "init_encoder_only": True, "activation_fn": "gelu"}
        return build("transformer_from_pretrained_xlm", task, **known)


# --- all models ------------------------------------------------------------------------------------------------------


def text(model, **inputs):
    """Run a model on pairs of sentences."""
    return model(**TEXT, **inputs)[0]


def source(model, **inputs):
    """Run a model on sentences."""
    return model(TEXT["src_tokens"], **inputs)[0]


def language_model(model):
    """Run a language model on sentences that are padded at the end."""
    return model(PREVIOUS)[0]


def not_autoregressive(model):
    """Run a non-autoregressive model; the same noise every time."""
    torch.manual_seed(0)
    output = model(**TEXT, tgt_tokens=PREVIOUS)
    return torch.cat([part["out"].flatten() for part in output.values() if "out" in part])


def tts(model, **inputs):
    """Run a model from text to spectrograms."""
    return model(TEXT["src_tokens"], TEXT["src_lengths"], **inputs)[0]


FROM_TEXT = {
    **dict.fromkeys(("transformer", "transformer_align", "lightconv", "bart", "roberta_enc_dec"), text),
    **dict.fromkeys(("roberta", "camembert", "gottbert", "xlmr", "masked_lm"), source),
    **dict.fromkeys(("nonautoregressive_transformer", "nacrf_transformer", "cmlm_transformer"), not_autoregressive),
    **dict.fromkeys(("iterative_nonautoregressive_transformer", "insertion_transformer"), not_autoregressive),
    "levenshtein_transformer": not_autoregressive,
    "transformer_lm": language_model,
    "tts_transformer": partial(tts, prev_output_tokens=noise(3, 6, 8), **FRAMES),
    "fastspeech2": partial(tts, durations=torch.ones(3, 7, dtype=torch.long)),
    "xmod": partial(source, lang_id=torch.zeros(3, dtype=torch.long)),
}
OF_TEXT = {"label_smoothing": 0.1, "crf_lowrank_approx": 4, "crf_beam_approx": 4, "sent_loss": False}
OF_TEXT.update(languages=["en_XX", "de_DE"])
SPECTROGRAM = {"prev_output_tokens": noise(3, 6, 8), **FRAMES}
TEXT_FIRST = {"prev_output_tokens_mt": PREVIOUS}


def first(run, **inputs):
    """`run` with these inputs, and of its outputs the first."""
    return lambda model: run(model, **inputs)[0]


TRANSLATE, SPEAK = first(on_speech, prev_output_tokens=PREVIOUS), first(on_speech, **SPECTROGRAM)

CASES = {
    **{name: Case(partial(build, name, **OF_TEXT), run) for name, run in FROM_TEXT.items()},
    **{name: Case(partial(build, name), TRANSLATE) for name in ("s2t_transformer", "s2t_conformer", "convtransformer")},
    **{name: Case(partial(speech_model, name, True), TRANSLATE) for name in ("s2ut_transformer", "s2ut_conformer")},
    **{name: Case(partial(speech_model, name, False), SPEAK) for name in ("s2spect_transformer", "s2spect_conformer")},
    "unity_conformer": Case(
        partial(speech_model, "unity_conformer", True, True, **UNITY),
        first(on_speech, prev_output_tokens=PREVIOUS, **TEXT_FIRST),
    ),
    "s2spect2_conformer": Case(
        partial(speech_model, "s2spect2_conformer", False, True, **UNITY),
        first(on_speech, **SPECTROGRAM, **TEXT_FIRST),
    ),
    "xm_transformer": Case(
        partial(xm_transformer, "xm_transformer"), first(on_short_wave, prev_output_tokens=PREVIOUS)
    ),
    "unity_xm_transformer": Case(
        partial(xm_transformer, "unity_xm_transformer", **UNITY),
        first(on_short_wave, prev_output_tokens=PREVIOUS, **TEXT_FIRST),
    ),
    "wav2vec2": Case(wav2vec2, features),
    "hubert": Case(hubert, features),
    "multires_hubert": Case(multires_hubert, lambda model: on_wave(model, features_only=True, mask=False)["x"][-1]),
    "multires_hubert_ctc": Case(
        partial(fine_tuned, "multires_hubert_ctc"), lambda model: on_wave(model)["encoder_out"]
    ),
    "wav2vec_ctc": Case(partial(fine_tuned, "wav2vec_ctc"), lambda model: on_wave(model)["encoder_out"]),
    "hubert_ctc": Case(partial(fine_tuned, "hubert_ctc"), lambda model: on_wave(model)["encoder_out"]),
    "wav2vec2_laser": Case(partial(fine_tuned, "wav2vec2_laser"), on_wave),
    "wav2vec_classification": Case(partial(fine_tuned, "wav2vec_classification"), on_wave),
    "wav2vec_seq2seq": Case(
        partial(fine_tuned, "wav2vec_seq2seq", autoregressive=True), first(on_wave, prev_output_tokens=PREVIOUS)
    ),
    "hubert_seq2seq": Case(
        partial(fine_tuned, "hubert_seq2seq", autoregressive=True, seq2seq_path=""),
        first(on_wave, prev_output_tokens=PREVIOUS),
    ),
    "multilingual_transformer": Case(multilingual, on_both_pairs),
    "transformer_ulm": Case(units, lambda model: model(PREVIOUS, dur_src=noise(3, 5), f0_src=noise(3, 5))["token"]),
    "speech_dlm": Case(dialogue, both_speakers),
    "transformer_from_pretrained_xlm": Case(from_xlm, text),
}

# What a decoder writes from, for the models that fairseq's SequenceGenerator searches.
SENTENCES = {name: TEXT[name] for name in ("src_tokens", "src_lengths")}
SEARCHED = {
    **dict.fromkeys(("transformer", "transformer_align", "bart", "lightconv", "roberta_enc_dec"), SENTENCES),
    **dict.fromkeys(("s2t_transformer", "s2t_conformer", "convtransformer", "s2ut_transformer"), SPOKEN),
    **dict.fromkeys(("wav2vec_seq2seq", "hubert_seq2seq"), WAVE),
    "xm_transformer": {"src_tokens": WAVE["source"], "src_lengths": SAMPLES},
}
