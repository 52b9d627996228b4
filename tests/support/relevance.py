"""Relevance by full Jacobians, one sentence and one step at a time."""

import torch
import torch.nn.functional as F
from torch.autograd.functional import jacobian

from fairseq_headgates import HeadTable
from fairseq_headgates.scores.relevance.rules import RULES, Rule
from support.models import PAD, make_stock

SMALL = {"embed_dim": 8, "ffn_embed_dim": 12, "attention_heads": 2}
SMALL = {f"{side}_{key}": value for side in ("encoder", "decoder") for key, value in SMALL.items()}
OF_DECODER = {name: size for name, size in SMALL.items() if name.startswith("decoder")}
OF_DECODER |= {"decoder_input_dim": 8, "decoder_output_dim": 8}
POST_NORM = {"encoder_normalize_before": False, "decoder_normalize_before": False}
# One layer of each type without heads, one with both.
MASK = HeadTable({"enc-self": [[1, 0], [0, 0]], "dec-self": [[0, 0], [1, 1]], "dec-enc": [[0, 1], [0, 0]]})


def shaken(model, dtype=torch.double):
    """Random numbers in all parameters, biases and norms included."""
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return model.to(dtype).requires_grad_(False)


def small(make=make_stock, dtype=torch.double, **options):
    return shaken(make(**{**SMALL, **options}), dtype)


def words(batch, row):
    """The tokens of one sentence pair, and where they are; the source of a language model has none."""
    source, target = batch["src_tokens"], batch.get("prev_output_tokens", batch["src_tokens"])
    source = source if "prev_output_tokens" in batch else source[:, :0]
    places = [side[row].ne(PAD).nonzero()[:, 0] for side in (source, target)]
    return source[row, places[0]], target[row, places[1]], *places


SETTINGS = {
    "default": RULES["story-of-heads"],
    "alpha1beta0": Rule(alpha=1.0, beta=0.0),
    "eps_rule": RULES["epsilon"],
    "attn_constant": RULES["attn-constant"],
}


def naive(function, inputs, R, rule, constant=0):
    """Relevance [N, ...] at each of `inputs`, rescaled, from R [N, ...] at function(*inputs), by the formula.

    `constant` of the inputs get no relevance if attention is to be constant.
    """
    jacobians = [j.flatten(-x.dim()).flatten(0, -2) for j, x in zip(jacobian(function, inputs), inputs, strict=True)]
    if rule.constant_attention:
        jacobians[:constant] = [0 * j for j in jacobians[:constant]]
    flat = torch.cat([x.flatten() for x in inputs])
    at_zero = function(*(torch.zeros_like(x) for x in inputs)).flatten()
    z = torch.cat(jacobians, dim=1) * flat + at_zero[:, None] / len(flat)
    if rule.alpha is None:
        total = z.sum(1, keepdim=True)
        share = z / (total + rule.eps * torch.where(total < 0, -1.0, 1.0))
    else:
        up, down = z.clamp(min=0), z.clamp(max=0)
        share = rule.alpha * up / (up.sum(1, keepdim=True) + rule.eps)
        share = share + rule.beta * down / (down.sum(1, keepdim=True) - rule.eps)
    found = rescaled(R, R.flatten(1) @ share, rule)
    parts = found.split([x.numel() for x in inputs], dim=1)
    return [part.unflatten(1, x.shape) for part, x in zip(parts, inputs, strict=True)]


def size_of(R):
    return R.abs().flatten(1).sum(1)


def rescaled(R, found, rule):
    """`found` [N, ...] with the L1 norm of R [N, ...]."""
    ratio = size_of(R) / (size_of(found) + rule.rescale_eps)
    return found * ratio.view(-1, *[1] * (found.dim() - 1))


def naive_per_token(function, x, R, rule):
    """[N, T, I] at x [T, I] from R [N, T, O]."""
    found = torch.stack([naive(function, (x[t],), R[:, t], rule)[0] for t in range(len(x))], dim=1)
    return rescaled(R, found, rule)


def naive_add(a, b, R, rule):
    pairs = [naive(lambda a, b: a + b, (a[t], b[t]), R[:, t], rule) for t in range(len(a))]
    return [torch.stack(parts, dim=1) for parts in zip(*pairs, strict=True)]


def naive_merge(*parts):
    total = sum(parts)
    return total * (sum(map(size_of, parts)) / size_of(total).clamp(min=1e-300)).view(-1, 1, 1)


class Naive:
    """Explains one sentence pair without padding: `heads` {type: [T, L, H]}, `source` [T, S], `target` [T, T].

    `factors` {(type, layer): [H]} is what heads are multiplied by.
    """

    def __init__(self, model, source, prefix, factors, rule):
        self.model, self.factors, self.rule = model, factors, rule
        self.heads, self.at_memory = {}, []
        decoder, encoder_backs, decoder_backs, memory = model.decoder, [], [], None
        y = decoder.embed_scale * decoder.embed_tokens(prefix[None])[0] + decoder.embed_positions(prefix[None])[0]
        if len(source):  # a language model has none
            encoder = model.encoder
            x = encoder.forward_embedding(source[None])[0][0]
            for i, layer in enumerate(encoder.layers):
                x, back = self.layer(x, layer, i, "enc-self", None)
                encoder_backs.append(back)
            memory = x if encoder.layer_norm is None else encoder.layer_norm(x)
        for i, layer in enumerate(decoder.layers):
            y, back = self.layer(y, layer, i, "dec-self", memory)
            decoder_backs.append(back)
        features = y if decoder.layer_norm is None else decoder.layer_norm(y)
        self.logits = decoder.output_projection(features)
        R = torch.diag_embed(F.one_hot(self.logits.argmax(-1), self.logits.size(-1)).double().t()).permute(1, 2, 0)
        R = naive_per_token(decoder.output_projection, features, R, rule)
        R = R if decoder.layer_norm is None else naive_per_token(decoder.layer_norm, y, R, rule)
        for back in reversed(decoder_backs):
            R = back(R)
        self.target = R.sum(-1)
        self.conserved = size_of(R)
        self.source = torch.zeros(len(prefix), len(source))
        if self.at_memory:
            R = naive_merge(*self.at_memory)
            R = R if encoder.layer_norm is None else naive_per_token(encoder.layer_norm, x, R, rule)
            for back in reversed(encoder_backs):
                R = back(R)
            self.source = R.sum(-1)
            self.conserved = self.conserved + size_of(R)

    def layer(self, x, layer, number, attention_type, memory):
        backs = []
        x, back = self.residual(
            x, layer, layer.self_attn_layer_norm, self.attention(layer.self_attn, attention_type, number)
        )
        backs.append(back)
        if memory is not None:
            branch = self.attention(layer.encoder_attn, "dec-enc", number, memory)
            x, back = self.residual(x, layer, layer.encoder_attn_layer_norm, branch)
            backs.append(back)
        x, back = self.residual(x, layer, layer.final_layer_norm, lambda x: self.feed_forward(layer, x))
        backs.append(back)

        def all_back(R):
            for back in reversed(backs):
                R = back(R)
            return R

        return x, all_back

    def residual(self, x, layer, norm, branch):
        before = layer.normalize_before
        y, through_branch = branch(norm(x) if before else x)

        def back(R):
            R = R if before else naive_per_token(norm, x + y, R, self.rule)
            if through_branch is None:
                return R
            memories = len(self.at_memory)
            at_x, at_y = naive_add(x, y, R, self.rule)
            at_y = through_branch(at_y)
            at_x = naive_merge(at_x, naive_per_token(norm, x, at_y, self.rule) if before else at_y)
            if len(self.at_memory) > memories:
                ratio = (size_of(R) / (size_of(at_x) + size_of(self.at_memory[-1]))).view(-1, 1, 1)
                at_x, self.at_memory[-1] = at_x * ratio, self.at_memory[-1] * ratio
            return at_x

        return x + y if before else norm(x + y), back

    def feed_forward(self, layer, x):
        hidden = layer.fc1(x).relu()

        def back(R):
            return naive_per_token(layer.fc1, x, naive_per_token(layer.fc2, hidden, R, self.rule), self.rule)

        return layer.fc2(hidden), back

    def attention(self, module, attention_type, number, memory=None):
        size = module.head_dim
        factors = self.factors.get((attention_type, number), torch.ones(module.num_heads))
        alive = [h for h in range(module.num_heads) if factors[h] != 0]
        columns = [h * size + d for h in alive for d in range(size)]

        def out(x):
            return F.linear(x, module.out_proj.weight[:, columns], module.out_proj.bias)

        def project(projection):
            return lambda x: F.linear(x, projection.weight[columns], projection.bias[columns])

        def head(q, k, v):
            scores = q @ k.t() * size**-0.5
            if attention_type == "dec-self":
                scores = scores + torch.full_like(scores, -1e9).triu(1)
            return scores.softmax(-1) @ v

        def branch(x):
            if not alive:
                return module.out_proj.bias.expand_as(x), None
            keys = x if memory is None else memory
            q, k, v = project(module.q_proj)(x), project(module.k_proj)(keys), project(module.v_proj)(keys)
            split = [[y[:, i * size :][:, :size] for y in (q, k, v)] for i in range(len(alive))]
            merged = torch.cat([factors[h] * head(*parts) for h, parts in zip(alive, split, strict=True)], dim=1)

            def back(R):
                R = naive_per_token(out, merged, R, self.rule)
                values = self.heads.setdefault(attention_type, {}).setdefault(
                    number, R.new_zeros(len(R), module.num_heads)
                )
                found = []
                for i, h in enumerate(alive):
                    of_head = R[..., i * size :][..., :size]
                    values[:, h] = size_of(of_head)
                    found.append(naive(head, tuple(split[i]), of_head, self.rule, constant=2))
                at_q, at_k, at_v = (torch.cat(parts, dim=-1) for parts in zip(*found, strict=True))
                at_q, at_k, at_v = rescaled_together(R, self.rule, at_q, at_k, at_v)
                into_kv = lambda x: torch.cat([project(module.k_proj)(x), project(module.v_proj)(x)], dim=-1)  # noqa: E731
                if memory is None:
                    into = lambda x: torch.cat([project(module.q_proj)(x), into_kv(x)], dim=-1)  # noqa: E731
                    return naive_per_token(into, x, torch.cat([at_q, at_k, at_v], dim=-1), self.rule)
                self.at_memory.append(naive_per_token(into_kv, memory, torch.cat([at_k, at_v], dim=-1), self.rule))
                return naive_per_token(project(module.q_proj), x, at_q, self.rule)

            return out(merged), back

        return branch


def rescaled_together(R, rule, *parts):
    ratio = (size_of(R) / (sum(map(size_of, parts)) + rule.rescale_eps)).view(-1, 1, 1)
    return [part * ratio for part in parts]
