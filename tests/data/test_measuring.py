"""Measuring leaves a model as it was: modules, hooks, attributes, parameters, gradients, modes, random numbers."""

from functools import partial

import pytest
import torch
from fairseq import options
from fairseq.tasks.fairseq_task import FairseqTask
from support.functions import Task, annotated
from support.functions import sentences as words
from support.models import make_task
from support.sentences import make_gates, make_model, sample, sentences

from fairseq_headgates import HeadTable, compress, gate_values, l0_penalty, masked, observe, open_probabilities, prune
from fairseq_headgates.attention.cuts import open_mask, removal_plan
from fairseq_headgates.attention.head_attention import HeadHook
from fairseq_headgates.attention.hooks import hooked
from fairseq_headgates.data.corpus import Corpus
from fairseq_headgates.data.corpus_losses import mean_loss, sentence_losses
from fairseq_headgates.data.sentences import typed_sentences
from fairseq_headgates.data.translations import references
from fairseq_headgates.extensions.attention.maps import attention_maps
from fairseq_headgates.extensions.functions.counting import count_functions
from fairseq_headgates.files.journal import ResumeJournal
from fairseq_headgates.heads import TYPES, HeadId
from fairseq_headgates.scores.ablation import ablation_losses, ablation_masks, masked_predictions
from fairseq_headgates.scores.curves import pruning_curve
from fairseq_headgates.scores.importance import score
from fairseq_headgates.scores.options import SCORES
from fairseq_headgates.scores.relevance.explaining import head_relevance, token_contributions

FULL = HeadTable({attention_type: [[1] * 4] * 2 for attention_type in TYPES})
HALF = HeadTable({attention_type: [[1, 0, 1, 0]] * 2 for attention_type in TYPES})
TASK = make_task()
TASK.build_generator = partial(FairseqTask.build_generator, TASK)
TASK.inference_step = partial(FairseqTask.inference_step, TASK)
TASK.build_bpe = TASK.build_tokenizer = lambda options: None
PAIRS, BATCHES = sentences(), [sample(sentences()[:2]), sample(sentences()[2:])]
GENERATE = options.parse_args_and_arch(options.get_generation_parser(), ["data"])
CORPUS = Corpus(TASK, BATCHES, args=GENERATE)


class Words:
    """A metric that predicts numbers, by the model itself instead of a copy."""

    name = "words"
    prepared = staticmethod(lambda model: model)
    predict = staticmethod(lambda model: [model(**batch["net_input"])[0].sum().item() for batch in BATCHES])


def run(model):
    with torch.no_grad():
        model(**BATCHES[0]["net_input"])


def inside(context):
    """A forward pass within a context."""

    def measure(model):
        with context(model):
            run(model)

    return measure


def functions(model):
    task = Task()
    count_functions(model, Corpus(task, [sample(words())]), annotated(task, words()))


def predictions(model):
    _, losses = ablation_losses(model, CORPUS)
    masks = dict(list(ablation_masks(model, "single", losses).items())[::5])
    masked_predictions(model, Words, masks, ResumeJournal(None, ""))


def maps(model):
    attention_maps(model, TASK, sample(PAIRS[:1]), [HeadId("enc-self", 0, 1)])


def reads(model):
    """What only reads gates and weights."""
    l0_penalty(model).item()
    return gate_values(model), open_probabilities(model), open_mask(model, 0.5)


MEASURES = {
    **{method: partial(lambda method, model: score(model, TASK, BATCHES, method), method) for method in SCORES},
    "ablation, all but one": lambda model: ablation_losses(model, CORPUS, "all-but-one"),
    "ablation of predictions": predictions,
    "loss": lambda model: mean_loss(model, CORPUS),
    "losses of sentences": lambda model: sentence_losses(model, CORPUS),
    "curve": lambda model: list(pruning_curve(model, CORPUS, FULL, FULL, [0, 50])),
    "relevance of heads": lambda model: head_relevance(model, BATCHES[0]["net_input"]),
    "relevance of tokens": lambda model: token_contributions(model, BATCHES[0]["net_input"]),
    "functions": functions,
    "attention maps": maps,
    "translations for attention maps": lambda model: list(typed_sentences(GENERATE, TASK, model, ["w1 w2 w3"])),
    "references": lambda model: references(model, CORPUS),
    "compress": lambda model: compress(model, TASK, BATCHES * 10, 0.9),
    "masked": inside(partial(masked, mask=HALF)),
    "observe": inside(observe),
    "hooked": inside(partial(hooked, call=lambda module, weights, context: 2 * context)),
    "gates and masks": reads,
    "prune": lambda model: removal_plan(model, prune(model, HALF)),
}
IN_ITS_MODE = {"loss", "losses of sentences", "curve", "ablation, all but one", "ablation of predictions"}
IN_ITS_MODE |= {"masked", "observe", "hooked"}


def make(mode):
    """A model with everything that could be lost: checkpointed layers, hooks, gates, masks, modules of other modes."""
    model = make_gates(make_model(gate_heads=",".join(TYPES), checkpoint_activations=True))
    model.encoder.forward = partial(model.encoder.forward)  # a wrapper, as others put around modules
    model.decoder.layers[0].self_attn.hook = HeadHook(lambda weights, context: None)
    model.decoder.layers[1].self_attn.head_mask = torch.tensor([1.0, 0.0, 1.0, 1.0]).double()
    for module in (model.encoder, model.decoder.layers[0], model.encoder.layers[1].self_attn.q_proj):
        module.register_forward_hook(lambda *_: None)
    model.decoder.layers[1].fc2.weight.requires_grad_(False)
    model(**sample(words())["net_input"])  # fairseq's caches of masks and positions
    model.train(mode)
    model.decoder.layers[1].fc1.train(not mode)
    for i, parameter in enumerate(model.parameters()):
        parameter.grad = torch.full_like(parameter, 0.1) if i % 3 else None
    return model


def kept(value):
    """A value that can be compared later: containers by their content, tensors by identity and content."""
    if isinstance(value, torch.Tensor):
        return id(value), value.requires_grad, value.detach().clone(), kept(value.grad) if value.is_leaf else None
    if isinstance(value, dict):
        return [(key, kept(each)) for key, each in value.items()]
    if isinstance(value, (list, tuple, set)):
        return [kept(each) for each in value]
    return value


def same(a, b):
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b


def state_of(model):
    return {name: dict(kept(vars(module))) for name, module in model.named_modules()}


def assert_unchanged(model, before):
    after = state_of(model)
    assert after.keys() == before.keys()
    for name, attributes in after.items():
        assert attributes.keys() == before[name].keys(), name
        changed = {key for key, value in attributes.items() if not same(value, before[name][key])}
        assert not changed, name


@pytest.mark.cases(12)
@pytest.mark.parametrize("name", MEASURES)
def test_measuring_leaves_the_model_and_random_state_unchanged(name):
    model = make(name not in IN_ITS_MODE)
    before, numbers = state_of(model), torch.get_rng_state()
    MEASURES[name](model)
    assert_unchanged(model, before)
    assert torch.equal(torch.get_rng_state(), numbers)


# The numbers of the forward passes that an error ends; what is not named makes none.
ENDED = {
    **dict.fromkeys(("confidence", "gradient", "loss", "losses of sentences", "curve"), (1, 2)),
    **dict.fromkeys(("ablation", "ablation, all but one", "ablation of predictions"), (1, 9)),
    **dict.fromkeys(("relevance of heads", "translations for attention maps"), (2,)),
    **dict.fromkeys(("relevance of tokens", "functions", "attention maps", "masked", "observe", "hooked"), (1,)),
    "relevance": (1, 6),
}


@pytest.mark.cases(9)
@pytest.mark.parametrize(("name", "passes"), [(name, number) for name, numbers in ENDED.items() for number in numbers])
def test_an_interrupted_measurement_leaves_the_model_unchanged(name, passes):
    model, left = make(name not in IN_ITS_MODE), [passes]

    def stop(*_):
        left[0] -= 1
        if not left[0]:
            raise KeyboardInterrupt

    model.decoder.layers[1].final_layer_norm.register_forward_hook(stop)
    before = state_of(model)
    with pytest.raises(KeyboardInterrupt):
        MEASURES[name](model)
    assert_unchanged(model, before)


def test_padding_in_a_typed_sentence_is_refused():
    """The model would not see it."""
    with pytest.raises(ValueError, match="the text has the symbol of padding, <pad>: leave it out"):
        list(typed_sentences(GENERATE, TASK, make_model(), ["w1 <pad> w3"]))
