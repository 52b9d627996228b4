"""The registered architectures and their options."""

import argparse
import contextlib
import json

import pytest
import torch
from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from fairseq.models.roberta import RobertaModel
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.options import get_training_parser
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf
from support.fairseq_0_12_2 import IS_0_12_2
from support.models import logits, make_args, make_batch, make_gated, make_stock, make_task

from fairseq_headgates import attention_modules, gate_values, l0_penalty
from fairseq_headgates.gates import parse_stretch
from fairseq_headgates.plugin.models.transformer import TransformerHeadGatesModel
from fairseq_headgates.plugin.options.declared import DEFAULTS, add_head_gate_args
from fairseq_headgates.plugin.options.reading import likely_option

PRESETS = [f"transformer{name}" for name in ("", "_tiny", "_iwslt_de_en", "_wmt_en_de", "_vaswani_wmt_en_de_big")]
PRESETS += [name for name, model in ARCH_MODEL_REGISTRY.items() if model is TransformerLanguageModel]
PRESETS += [name for name, model in ARCH_MODEL_REGISTRY.items() if model is RobertaModel and name.startswith("roberta")]


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_those_of_fairseq(preset):
    """The options that fairseq's own preset sets; of a language model also the defaults of its model for all others."""
    family = next(name for name in ("transformer_lm", "transformer", "roberta") if preset.startswith(name))
    name, ours, stock = preset.replace(family, f"{family}_head_gates", 1), argparse.Namespace(), argparse.Namespace()
    ARCH_CONFIG_REGISTRY[name](ours)
    ARCH_CONFIG_REGISTRY.get(preset, lambda args: None)(stock)
    assert vars(ours).items() >= vars(stock).items() and ARCH_MODEL_REGISTRY[name].__name__.endswith("HeadGatesModel")
    assert vars(ours).keys() == vars(stock).keys() or family == "transformer_lm"


def test_the_preset_of_the_paper():
    args = argparse.Namespace()
    ARCH_CONFIG_REGISTRY["transformer_head_gates_acl19"](args)
    assert args.encoder_normalize_before and args.decoder_normalize_before
    assert (args.dropout, args.attention_dropout, args.activation_dropout) == (0.1, 0.1, 0.1)
    assert (args.encoder_layers, args.encoder_attention_heads, args.encoder_embed_dim) == (6, 8, 512)


def parse(*argv):
    parser = argparse.ArgumentParser()
    add_head_gate_args(parser)
    return parser.parse_args(argv)


def test_options_have_one_default():
    assert vars(parse()) == DEFAULTS


def test_a_mask_file_becomes_part_of_the_options(tmp_path):
    mask = {"enc-self": [[1, 0, 1, 1], [1, 1, 1, 0]]}
    (tmp_path / "heads.json").write_text(json.dumps(mask))
    args = make_args(**vars(parse("--alive-heads", str(tmp_path / "heads.json"))))
    TransformerHeadGatesModel.build_model(args, make_task())
    (tmp_path / "heads.json").unlink()
    assert json.loads(args.alive_heads) == {"format": "headgates.heads/1", **mask}  # what a checkpoint stores
    model = make_gated(alive_heads=args.alive_heads)
    assert gate_values(model)["enc-self"].tolist() == mask["enc-self"]
    assert gate_values(model)["dec-enc"].min() == 1


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--gate-heads", "enc"], "unknown attention type 'enc': choose from enc-self, dec-self, dec-enc"),
        (["--gate-stretch", "wide"], "stretch is 'wide': it must be two numbers"),
        (["--gate-stretch=-1e300,1e300"], "stretch is -1e+300,1e+300: LOW must be from -1e+06 to -1e-06, and HIGH"),
        (["--gate-stretch=-0.1,1.0000000001"], "and HIGH from 1 + 1e-06 to 1e+06"),
        (["--gate-init", "open"], "--gate-init: could not convert string to float: 'open'"),
        (["--gate-init", "1e300"], "log_alpha is '1e300': it must be 'glorot' or a number from -1e+06"),
        (["--gate-lr-scale", "1e-40"], "scale of the gates is 1e-40: it must be above 0 and finite, from 0.0001 to"),
        (["--gate-temperature", "1e300"], "temperature is 1e+300: it must be above 0 and finite, from 1e-06 to 1e+06"),
        (["--gate-temperature", "warm"], "--gate-temperature: could not convert string to float: 'warm'"),
        (["--alive-heads", ""], "cannot read the mask ''"),
        (["--sparsity-method", "magic"], "unknown method 'magic': choose from l0, lagrangian, subset"),
        (["--fix-gates-after", "-3"], "--fix-gates-after: '-3' is below 0"),
    ],
)
def test_the_command_line_refuses_bad_values_in_one_line(argv, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        make_gated(**vars(parse(*argv)))
    error = capsys.readouterr().err
    assert exit_.value.code == 2 and message in error and error.count("\n") == 1
    assert error.startswith(f"fairseq-headgates: error: {argv[0].partition('=')[0]}: ")


@pytest.mark.parametrize("extreme", ["low", "high"])
def test_the_bounds_of_the_options_keep_gates_finite(extreme):
    """At either end of every range gates, their gradients and the penalty are numbers."""
    low = extreme == "low"
    for stretch in ("-1e-6,1.000001", "-1e6,1e6"):
        for init in ("-1e6", "1e6"):
            model = make_gated(
                gate_heads="enc-self", gate_temperature=1e-6 if low else 1e6, gate_stretch=stretch, gate_init=init,
                gate_lr_scale=1e-4 if low else 1e6, dropout=0.0,
            ).train()  # fmt: skip
            loss = model(**make_batch())[0].square().mean() + 1e9 * l0_penalty(model)
            loss.backward()
            assert loss.isfinite()
            assert all(p.grad.isfinite().all() for n, p in model.named_parameters() if "gate" in n)


# --- options from YAML -----------------------------------------------------------------------------------------------

MAPPING = {"enc-self": [[1, 0, 1, 1], [1, 1, 1, 1]]}


def from_yaml(**options):
    """The options as fairseq-hydra-train hands them over."""
    sizes = {
        name: value for name, value in vars(make_args()).items() if isinstance(value, (int, float, str, type(None)))
    }
    return OmegaConf.create({**sizes, "gate_stretch": [-0.2, 1.3], **options})


def test_lists_and_mappings_of_yaml_are_taken_and_stored_as_text():
    config = from_yaml(gate_heads=["dec-self", "dec-enc"], alive_heads=MAPPING, gate_init=1, gate_lr_scale="4")
    model = TransformerHeadGatesModel.build_model(config, make_task())
    assert gate_values(model)["enc-self"].tolist() == MAPPING["enc-self"]
    gate = attention_modules(model)[-1].attention.gate
    assert (gate.distribution.low, gate.distribution.high, gate.lr_scale) == (-0.2, 1.3, 4)
    assert (config.gate_heads, config.gate_stretch, config.gate_init) == ("dec-self,dec-enc", "-0.2,1.3", "1.0")
    assert json.loads(config.alive_heads) == {"format": "headgates.heads/1", **MAPPING}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gate_heads": ["enc-self", "enc"]}, "unknown attention type 'enc'"),
        ({"gate_heads": 3}, "unknown attention type '3'"),
        ({"gate_stretch": [-0.1, "x"]}, "the gate stretch is '-0.1,x'"),
        ({"alive_heads": {"enc-self": [[1, 2]]}}, "enc-self.0.1 must be 1 or 0, not 2"),
        ({"alive_heads": [[1, 0]]}, "--alive-heads: expected str, bytes or os.PathLike object, not list"),
        ({"gate_temperature": [1]}, "--gate-temperature: float() argument must be"),
        ({"remove_heads": "no"}, "--remove-heads: 'no' is neither true nor false"),
    ],
)
def test_other_values_of_yaml_end_with_one_line(options, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        TransformerHeadGatesModel.build_model(from_yaml(**options), make_task())
    error = capsys.readouterr().err
    assert exit_.value.code == 2 and message in error and error.count("\n") == 1


MISSPELT = {
    "gate_temprature": "gate_temperature", "gate_head": "gate_heads", "gates_heads": "gate_heads",
    "gate-heads": "gate_heads", "alive_head": "alive_heads", "Gate_Init": "gate_init", "freeze_param": "freeze_params",
    "remove_head": "remove_heads", "gate_lr_scal": "gate_lr_scale", "gate_strech": "gate_stretch",
    "freezedropout": "freeze_dropout",
}  # fmt: skip


def test_misspelt_options_are_recognised():
    assert {key: likely_option(key) for key in [*MISSPELT, *DEFAULTS]} == {**MISSPELT, **dict.fromkeys(DEFAULTS)}


def test_options_of_fairseq_are_not_taken_for_misspelt_ones():
    """All that any of fairseq's models, tasks, criterions and optimisers knows."""
    parser = get_training_parser()
    for model in MODEL_REGISTRY.values():
        with contextlib.suppress(argparse.ArgumentError):
            own = argparse.ArgumentParser(conflict_handler="resolve")
            model.add_args(own)
            parser._actions += own._actions
    known = {action.dest for action in parser._actions} | set(vars(make_args()))
    for registry in (MODEL_DATACLASS_REGISTRY, TASK_DATACLASS_REGISTRY, CRITERION_DATACLASS_REGISTRY):
        known |= {name for config in registry.values() for name in config.__dataclass_fields__}
    assert len(known) > (550 if IS_0_12_2 else 600)
    assert {name: likely_option(name) for name in known if likely_option(name)} == {}


def test_a_checkpoint_with_a_misspelt_option_loads_with_a_warning(caplog):
    """It has been trained with it; only what hydra is about to train is refused, see fairseq/test_commands.py."""
    TransformerHeadGatesModel.build_model(from_yaml(gate_temprature=0.5), make_task())
    assert "unknown option 'gate_temprature' of the model is ignored: did you mean gate_temperature?" in caplog.text


MASK = '{"enc-self": [[1,1,1,1],[1,1,1,1]]}'


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gate_heads": "enc-self", "alive_heads": MASK}, "enc-self is in --gate-heads and in --alive-heads"),
        ({"alive_heads": '{"enc-self": [[1,1,1,1]]}'}, "enc-self has 1 layers, the model has 2"),
        ({"gate_heads": "dec-enc", "no_cross_attention": True}, "no dec-enc attention to gate"),
        ({"freeze_params": "nothing_like_it"}, "'nothing_like_it' matches no parameter"),
        ({"target_heads": "3"}, "--target-heads needs a --sparsity-method other than l0"),
        ({"sparsity_method": "subset", "target_heads": "3"}, "--target-heads needs gates"),
        ({"gate_heads": "enc-self", "sparsity_method": "lagrangian"}, "lagrangian needs --target-heads"),
        (
            {"gate_heads": "enc-self", "sparsity_method": "subset", "target_heads": "99"},
            "--target-heads: the target is 99",
        ),
        (
            {"gate_heads": "enc-self", "sparsity_method": "subset", "target_heads": "3", "gate_output_scale": True},
            "--gate-output-scale with --sparsity-method subset needs --gate-hard",
        ),
        ({"remove_heads": True}, "--remove-heads without --alive-heads"),
        (
            {"gate_heads": "enc-self", "alive_heads": '{"enc-self": [[1, 1, 0, 1], [1, 1, 1, 1]]}'},
            "with --remove-heads the remaining heads can have gates",
        ),
    ],
)
def test_options_that_do_not_fit_end_with_one_line_and_code_2(options, message, capsys):
    with pytest.raises(SystemExit) as exit_:
        make_gated(**options)
    error = capsys.readouterr().err
    assert exit_.value.code == 2 and message in error and error.count("\n") == 1


def test_gates_and_fixed_heads_on_different_types():
    model = make_gated(gate_heads="dec-enc", alive_heads=MASK.replace("[1,1,1,1]]", "[0,1,1,1]]"), gate_init="-9")
    values = gate_values(model)
    assert values["enc-self"].tolist() == [[1, 1, 1, 1], [0, 1, 1, 1]]
    assert values["dec-enc"].max() == 0 and values["dec-self"].min() == 1


def test_gate_options_reach_the_gates():
    model = make_gated(
        gate_heads="dec-self", gate_temperature=0.5, gate_stretch="-0.2,1.3", gate_init="1", gate_lr_scale=4.0
    )
    (gate,) = {
        module.attention.gate
        for module in attention_modules(model)
        if module.attention_type == "dec-self" and module.layer == 0
    }
    assert (gate.distribution.temperature, gate.distribution.low, gate.distribution.high) == (0.5, -0.2, 1.3)
    assert gate.lr_scale == 4 and gate.log_alpha().tolist() == [1, 1, 1, 1]
    assert parse_stretch("-0.2,1.3") == (-0.2, 1.3)


def test_a_stock_checkpoint_loads_strictly_and_so_do_old_ones():
    stock, ours = make_stock(seed=5), make_gated(seed=6, gate_heads="enc-self,dec-self,dec-enc")
    old = stock.state_dict()
    for name in [name.removesuffix("q_proj.weight") for name in old if name.endswith("q_proj.weight")]:
        for part in ("weight", "bias"):  # as fairseq wrote them before 0.9
            old[f"{name}in_proj_{part}"] = torch.cat([old.pop(f"{name}{p}_proj.{part}") for p in "qkv"])
    ours.load_state_dict(old, strict=True)
    torch.testing.assert_close(logits(ours, make_batch()), logits(stock, make_batch()))
    with pytest.raises(RuntimeError, match="Unexpected key.*gate.log_alpha"):
        make_stock().load_state_dict(ours.state_dict())


def test_loading_gates_into_a_model_without_them_is_refused(capsys):
    gated = make_gated(gate_heads="enc-self,dec-enc")
    with pytest.raises(SystemExit) as exit_:
        make_gated(gate_heads="enc-self", alive_heads=MASK.replace("enc-self", "dec-enc")).load_state_dict(
            gated.state_dict()
        )
    assert exit_.value.code == 2
    assert "has gates on dec-enc, the model has none: add dec-enc to --gate-heads" in capsys.readouterr().err


FIRST, LAST = ('{"dec-enc": [[1,1,1,1],[1,0,1,0]]}', '{"dec-enc": [[1,1,1,1],[0,1,0,1]]}')


def kept_heads_in(state):
    return {name: own["kept"] for name, own in state._metadata.items() if "kept" in own}


def test_a_state_dict_stores_the_numbers_of_kept_heads(capsys):
    """Two masks with equal numbers of heads make weights of equal shapes: nothing else tells them apart."""
    pruned = make_gated(alive_heads=FIRST, remove_heads=True)
    state = pruned.state_dict()
    assert kept_heads_in(state) == {"decoder.layers.1.encoder_attn": [0, 2]}
    with pytest.raises(SystemExit) as exit_:
        make_gated(alive_heads=LAST, remove_heads=True).load_state_dict(state)
    error = capsys.readouterr().err
    assert exit_.value.code == 2 and error.count("\n") == 1
    assert "dec-enc layer 1 has the heads 0, 2 in the checkpoint and 1, 3 in the model" in error
    assert "--alive-heads CKPT --remove-heads" in error
    again = make_gated(alive_heads=FIRST, remove_heads=True, seed=1)
    again.load_state_dict(state, strict=True)
    assert torch.equal(logits(again, make_batch()), logits(pruned, make_batch()))
    make_gated(alive_heads=FIRST, remove_heads=True, gate_heads="dec-enc").load_state_dict(state, strict=True)


@pytest.mark.parametrize("metadata", [None, {}, {"": {"kept": [1]}}])
def test_a_state_dict_without_numbers_of_kept_heads_is_loaded(metadata):
    """As version 0.1 wrote them."""
    state = make_gated(alive_heads=FIRST, remove_heads=True).state_dict()
    state._metadata = metadata
    other = make_gated(alive_heads=LAST, remove_heads=True)
    other.upgrade_state_dict(state)
    other.load_state_dict(dict(state), strict=True)
    assert not kept_heads_in(make_gated(gate_heads="enc-self", alive_heads=FIRST).state_dict())
