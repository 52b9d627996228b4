"""Refitted output projections against least squares on explicit matrices, and the choice of heads by brute force."""

import math

import pytest
import torch
from support.all_attention import make_model as make_all_attention
from support.models import VOCABULARY
from support.sentences import EOS, TASK, make_gates, make_model, sample, sentences

from fairseq_headgates import HeadTable, prune, refit
from fairseq_headgates.analysis import refit as refitting
from fairseq_headgates.analysis.importance import Options, score
from fairseq_headgates.evaluation import Corpus, mean_loss
from fairseq_headgates.surgery import head_factors, head_sites, hooked

MASK = HeadTable(
    {"enc-self": [[1, 0, 1, 1], [0, 0, 0, 0]], "dec-self": [[1, 1, 1, 1], [0, 1, 0, 1]], "dec-enc": [[0, 0, 0, 1]] * 2}
)


def many(number=40, seed=7):
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(2, 8, (number, 2), generator=generator).tolist()
    words = lambda length: torch.randint(4, VOCABULARY, (length,), generator=generator).tolist()  # noqa: E731
    return [(words(source) + [EOS], words(target) + [EOS]) for source, target in lengths]


PAIRS = many()


def contexts_of(model, pairs=PAIRS):
    """The contexts of each layer, a row for each token: sentence by sentence, without padding."""
    rows = {}

    def see(site, _, context):
        rows.setdefault(site.name, []).append(context[0].transpose(0, 1).flatten(1))

    with torch.no_grad(), hooked(model, see):
        for pair in pairs:
            model(**sample([pair])["net_input"])
    return {name: torch.cat(each) for name, each in rows.items()}


def columns(heads, size=8):
    return [head * size + i for head in heads for i in range(size)]


def weights_of(model, site):
    """The output projection of a layer, times the gates."""
    factor = head_factors(model)[site.kind][site.layer].double()
    return site.attention.out_proj.weight * factor.repeat_interleave(8), factor


def naive(model, site, contexts, keep, ridge):
    """Minimise |X w + b - y|^2 + penalty |w - w_kept|^2, by least squares on stacked rows."""
    whole, _ = weights_of(model, site)
    target = contexts @ whole.T + site.attention.out_proj.bias
    kept = contexts[:, columns(keep)]
    penalty = math.sqrt(len(contexts) * ridge * contexts.var(0, unbiased=False).mean())
    design = torch.cat([kept - kept.mean(0), penalty * torch.eye(kept.size(1)).double()])
    start = whole[:, columns(keep)].T
    wanted = torch.cat([target - target.mean(0), penalty * start])
    weight = torch.linalg.lstsq(design, wanted).solution.T if keep else start.T
    return weight, target.mean(0) - weight @ kept.mean(0)


def all_gates():
    return make_gates(make_model(gate_heads="enc-self,dec-self,dec-enc"))


@pytest.mark.parametrize("make", [make_model, all_gates], ids=["no gates", "gates"])
def test_refit_is_least_squares(make, monkeypatch):
    monkeypatch.setattr(refitting, "RIDGE", 1e-3)
    model = make()
    found = refit(model, MASK, TASK, [sample(PAIRS[:15]), sample(PAIRS[15:])])
    contexts = contexts_of(model)
    for site, left in zip(head_sites(model), head_sites(found), strict=True):
        _, factor = weights_of(model, site)
        keep = [head for head in range(4) if MASK.values[site.kind][site.layer][head] and factor[head] > 0]
        weight, bias = naive(model, site, contexts[site.name], keep, 1e-3)
        torch.testing.assert_close(left.attention.out_proj.weight, weight, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(left.attention.out_proj.bias, bias, atol=1e-6, rtol=1e-6)


def test_without_a_bias_there_is_no_intercept(monkeypatch):
    """The output of a layer of the all-attention model: least squares through the origin."""
    monkeypatch.setattr(refitting, "RIDGE", 1e-9)
    model = make_all_attention(mem_len=0).double()
    rows = [
        {"src_tokens": torch.randint(4, VOCABULARY, (6, 4), generator=torch.Generator().manual_seed(i))} for i in (1, 2)
    ]
    batches = [{"net_input": row, "target": row["src_tokens"], "id": torch.arange(6)} for row in rows]
    found = refit(model, {"dec-self": [[1, 0], [0, 0]]}, TASK, batches)
    contexts, whole = [], head_sites(model)[0].attention.out_proj.weight
    with torch.no_grad(), hooked(model, lambda site, _, c: contexts.append(c) if site.layer == 0 else None):
        for batch in batches:
            model(**batch["net_input"])
    rows = torch.cat([context.transpose(1, 2).flatten(2).flatten(0, 1) for context in contexts])
    expected = torch.linalg.lstsq(rows[:, :4], rows @ whole.T).solution.T
    first, second = (site.attention.out_proj for site in head_sites(found))
    torch.testing.assert_close(first.weight, expected, atol=1e-6, rtol=1e-6)
    assert first.bias is None and second.weight.shape == (8, 0)


def test_a_mask_of_all_heads_changes_nothing():
    model, batch = make_model(), sample(sentences())
    found = refit(model, HeadTable({}), TASK, [sample(PAIRS)])
    expected, logits = (each(**batch["net_input"])[0] for each in (prune(model, HeadTable({})), found))
    assert torch.equal(logits, expected)


def test_copies_of_heads_are_repaired():
    """Heads 1 and 3 of each layer are heads 0 and 2 with other output weights: removing them loses nothing."""
    model = make_model()
    with torch.no_grad():
        for site in head_sites(model):
            for name in ("q_proj", "k_proj", "v_proj"):
                for parameter in getattr(site.attention, name).parameters():
                    parameter[columns([1, 3])] = parameter[columns([0, 2])]
    mask = HeadTable({kind: [[1, 0, 1, 0]] * 2 for kind in MASK.types})
    corpus = Corpus(TASK, [sample(many(seed=8))])
    whole, zeroed = mean_loss(model, corpus), mean_loss(prune(model, mask), corpus)
    repaired = mean_loss(refit(model, mask, TASK, [sample(PAIRS)]), corpus)
    assert abs(zeroed - whole) > 0.02 and abs(repaired - whole) < 1e-4


def test_moments_do_not_depend_on_the_batches():
    model = make_model()
    one = refitting.context_moments(model, Corpus(TASK, [sample(PAIRS)]), with_gradients=True)
    several = [sample(PAIRS[i : i + 9], left_pad=i % 2 == 0) for i in range(0, len(PAIRS), 9)]
    other = refitting.context_moments(model, Corpus(TASK, several), with_gradients=True)
    for name, moments in one.items():
        assert moments.positions == other[name].positions
        torch.testing.assert_close(moments.contexts, other[name].contexts, atol=1e-10, rtol=1e-8)
        torch.testing.assert_close(moments.gradients, other[name].gradients, atol=1e-10, rtol=1e-8)


def test_too_few_tokens_are_refused():
    rule = "enc-self layer 0 has 25 unknowns for each output, and the data have 21 tokens: refit on more sentences"
    with pytest.raises(ValueError, match=rule):
        refit(make_model(), MASK, TASK, [sample(sentences())])


@pytest.mark.parametrize(
    "use",
    [
        lambda model: refit(model, MASK, TASK, [sample(PAIRS)]),
        lambda model: score(model, TASK, [sample(PAIRS)], "refit"),
    ],
)
def test_weights_that_are_not_finite_are_refused(use):
    model = make_model()
    with torch.no_grad():
        head_sites(model)[0].attention.v_proj.weight[0, 0] = math.nan
    with pytest.raises(ValueError, match="contexts of encoder.layers.0.self_attn are not finite: check the weights"):
        use(model)


# --- choosing heads -------------------------------------------------------------------------------------------------


def gradients_of(model):
    """The derivative of the loss, in nats, with respect to the contexts of each layer, rows as in `contexts_of`."""
    rows, inserted = {}, []

    def insert(site, _, context):
        inserted.append((site.name, context + torch.zeros_like(context).requires_grad_()))
        return inserted[-1][1]

    with hooked(model, insert):
        for pair in PAIRS:
            inserted.clear()
            batch = sample([pair])
            logits = model(**batch["net_input"])[0]
            loss = torch.nn.functional.cross_entropy(logits[0], batch["target"][0], reduction="sum")
            for (name, _), each in zip(inserted, torch.autograd.grad(loss, [c for _, c in inserted]), strict=True):
                rows.setdefault(name, []).append(each[0].transpose(0, 1).flatten(1))
    return {name: torch.cat(each) for name, each in rows.items()}


def cost(contexts, gradients, removed, targets):
    """1/2 trace(E[g g^T] E[r r^T]) by a regression, in bits per target."""
    left = [head for head in range(4) if head not in removed]
    centred = contexts - contexts.mean(0)
    rest = centred[:, columns(removed)]
    if left:
        known = centred[:, columns(left)]
        rest = rest - known @ torch.linalg.lstsq(known, rest).solution
    of_gradients = gradients[:, columns(removed)].T @ gradients[:, columns(removed)]
    return (of_gradients * (rest.T @ rest / len(rest))).sum().item() / 2 / targets / math.log(2)


def test_removal_scores_are_those_of_a_search_step_by_step(monkeypatch):
    monkeypatch.setattr(refitting, "RIDGE", 1e-10)
    model = make_model()
    contexts, gradients = contexts_of(model), gradients_of(model)
    targets = sum(len(target) for _, target in PAIRS)
    removed = {site: [] for site in head_sites(model)}
    total, expected = 0.0, {kind: [[0.0] * 4, [0.0] * 4] for kind in MASK.types}
    while any(len(heads) < 4 for heads in removed.values()):
        steps = []
        for site, heads in removed.items():
            args = contexts[site.name], gradients[site.name]
            before = cost(*args, heads, targets) if heads else 0.0
            steps += [
                (cost(*args, [*heads, head], targets) - before, head, site) for head in range(4) if head not in heads
            ]
        increase, head, site = min(steps, key=lambda step: step[0])
        total += increase
        removed[site].append(head)
        expected[site.kind][site.layer][head] = total
    found = score(model, TASK, [sample(PAIRS[:11]), sample(PAIRS[11:])], "refit", Options())
    for kind, rows in expected.items():
        torch.testing.assert_close(torch.tensor(found.values[kind]), torch.tensor(rows), atol=1e-5, rtol=1e-4)


def test_a_closed_head_costs_nothing():
    model = all_gates()
    table = score(model, TASK, [sample(PAIRS)], "refit", Options())
    for site in head_sites(model):
        _, factor = weights_of(model, site)
        row = torch.tensor(table.values[site.kind][site.layer])
        assert torch.equal(row == 0, factor == 0)
