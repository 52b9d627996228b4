"""AttnLRP as relevance that is passed on step by step, and ALTI+ as loops over tokens and heads, for one sentence."""

import torch
from torch.nn import functional as F


def through_linear(R, x, weight, bias):
    return x * ((R / F.linear(x, weight, bias)) @ weight)


def through_norm(R, x, norm):
    """The standard deviation is a constant, the mean is not."""
    slope = R / norm(x) * norm.weight / (x.var(-1, unbiased=False, keepdim=True) + norm.eps).sqrt()
    return x * (slope - slope.mean(-1, keepdim=True))


def through_sum(R, a, b):
    total = torch.where(a + b == 0, 1, a + b)
    return R * a / total, R * b / total


def through_product(R, a, b):
    """Half of the relevance of a @ b for each factor."""
    half = R / torch.where(a @ b == 0, 1, a @ b) / 2
    return a * (half @ b.t()), b * (a.t() @ half)


def through_softmax(R, scores, weights):
    return torch.where(scores.isinf(), 0, scores) * (R - weights * R.sum(-1, keepdim=True))


class Step(torch.nn.Module):
    """A transformer, read layer by layer: `backs` pass relevance from the output of a layer to its input."""

    def __init__(self, layers, x, memory=None, causal=False, factors=None, attention_types=("enc-self", "dec-enc")):
        super().__init__()
        self.backs, self.at_memory, self.x, self.memory = [], 0, x, memory
        self.causal, self.factors, self.attention_types = causal, factors or {}, attention_types
        for number, layer in enumerate(layers):
            self.residual(
                layer, layer.self_attn_layer_norm, self.attention(layer.self_attn, attention_types[0], number)
            )
            if memory is not None:
                branch = self.attention(layer.encoder_attn, attention_types[1], number, memory)
                self.residual(layer, layer.encoder_attn_layer_norm, branch)
            if hasattr(layer, "fc1"):
                self.residual(layer, layer.final_layer_norm, lambda x, layer=layer: self.feed_forward(layer, x))

    def back(self, R):
        for back in reversed(self.backs):
            R = back(R)
        return R

    def residual(self, layer, norm, branch):
        x, first = self.x, layer.normalize_before
        y, through = branch(norm(x) if first else x)

        def back(R):
            R = R if first else through_norm(R, x + y, norm)
            at_x, at_y = through_sum(R, x, y)
            if through is not None:
                at_y = through(at_y)
                at_x = at_x + (through_norm(at_y, x, norm) if first else at_y)
            return at_x

        self.backs.append(back)
        self.x = x + y if first else norm(x + y)

    def feed_forward(self, layer, x):
        hidden = layer.activation_fn(layer.fc1(x))

        def through(R):
            return through_linear(through_linear(R, hidden, layer.fc2.weight, layer.fc2.bias), x, layer.fc1.weight,
                                  layer.fc1.bias)  # fmt: skip

        return layer.fc2(hidden), through

    def attention(self, module, attention_type, number, memory=None):
        def branch(x):
            keys = x if memory is None else memory
            q, k, v = module.q_proj(x), module.k_proj(keys), module.v_proj(keys)
            heads = range(module.num_heads)
            factors = self.factors.get((attention_type, number), torch.ones(module.num_heads))
            parts = [[y.split(module.head_dim, -1)[h] for y in (q, k, v)] for h in heads]
            found = [self.head(module, h, *part) for h, part in zip(heads, parts, strict=True)]
            merged = torch.cat([factor * context for factor, (context, _) in zip(factors, found, strict=True)], -1)

            def through(R):
                R = through_linear(R, merged, module.out_proj.weight, module.out_proj.bias)
                R = torch.where(merged == 0, 0, R)  # of closed heads
                each = [back(part) for part, (_, back) in zip(R.split(module.head_dim, -1), found, strict=True)]
                at_q, at_k, at_v = (torch.cat(parts, -1) for parts in zip(*each, strict=True))
                into = [
                    through_linear(part, inputs, projection.weight, projection.bias)
                    for part, inputs, projection in (
                        (at_q, x, module.q_proj),
                        (at_k, keys, module.k_proj),
                        (at_v, keys, module.v_proj),
                    )
                ]
                if memory is None:
                    return sum(into)
                self.at_memory = self.at_memory + into[1] + into[2]
                return into[0]

            return module.out_proj(merged), through

        return branch

    def head(self, module, number, q, k, v):
        scores = q * module.scaling @ k.t()
        if self.causal and len(q) == len(k):
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        weights = scores.softmax(-1)

        def back(R):
            at_weights, at_v = through_product(R, weights, v)
            at_scores = through_softmax(at_weights, scores, weights)
            at_q, at_k = through_product(at_scores, q * module.scaling, k.t())
            return at_q, at_k.t(), at_v

        return weights @ v, back


class AllAttentionStep(Step):
    """The same with relative positions and persistent vectors, which are constants."""

    def __init__(self, decoder, x):
        self.encodings = decoder._positions(len(x), x)
        super().__init__(decoder.layers, x, causal=True)

    def head(self, module, number, q, k, v):
        size, b, c = len(q), *(part[number] for part in (module.query_bias.content, module.query_bias.position))
        by_distance = module.position_proj(self.encodings).split(module.head_dim, -1)[number].flip(0)[1:]
        content = (q + b) @ k.t() * module.scaling
        position = torch.stack([(q[i] + c) @ by_distance[(i - torch.arange(size)).abs()].t() for i in range(size)])
        position = position * module.scaling
        vectors = (q + b) @ module.persistent.key[number].t()
        later = torch.ones_like(content, dtype=torch.bool).triu(1)
        joined = torch.cat([(content + position).masked_fill(later, -torch.inf), vectors], -1)
        weights = joined.softmax(-1)
        values = torch.cat([v, module.vectors**0.5 * module.persistent.value[number]])

        def back(R):
            at_weights, at_values = through_product(R, weights, values)
            at_scores = through_softmax(at_weights, joined, weights)
            at_content, at_position = through_sum(at_scores[:, :size].tril(), content, position)
            at_biased, at_k = through_product(at_content, (q + b) * module.scaling, k.t())
            at_biased = at_biased + through_product(at_scores[:, size:], q + b, module.persistent.key[number].t())[0]
            at_q = through_sum(at_biased, q, b.expand_as(q))[0]
            for i in range(size):
                of_row = by_distance[(i - torch.arange(size)).abs()]
                shifted = through_product(at_position[i : i + 1], (q[i : i + 1] + c) * module.scaling, of_row.t())[0]
                at_q[i] += through_sum(shifted, q[i : i + 1], c[None])[0][0]
            return at_q, at_k.t(), at_values[:size]

        return weights @ values, back


def naive_attnlrp(model, source, prefix, predicted, instead_of=None, factors=None):
    """Relevance [T, S] and [T, T] for the logits of `predicted` [T]; `source` of a language model is empty."""
    decoder, encoder, memory = model.decoder, None, None
    if len(source):
        start = model.encoder.forward_embedding(source[None])[0][0]
        encoder = Step(model.encoder.layers, start, factors=factors)
        norm = model.encoder.layer_norm
        memory = encoder.x if norm is None else norm(encoder.x)
    start = decoder.embed_scale * decoder.embed_tokens(prefix[None])[0]
    start = start if decoder.embed_positions is None else start + decoder.embed_positions(prefix[None])[0]
    all_attention = not hasattr(decoder.layers[0], "fc1")
    attention_types = ("dec-self", "dec-enc")
    rows = []
    for t, token in enumerate(predicted.tolist()):
        if all_attention:
            step = AllAttentionStep(decoder, start)
        else:
            step = Step(decoder.layers, start, memory, True, factors, attention_types)
        features = step.x if decoder.layer_norm is None else decoder.layer_norm(step.x)
        weight = decoder.output_projection.weight[token]
        weight = weight if instead_of is None else weight - decoder.output_projection.weight[instead_of[t]]
        R = torch.zeros_like(features)
        R[t] = features[t] * weight
        R = R if decoder.layer_norm is None else through_norm(R, step.x, decoder.layer_norm)
        at_target, at_source = step.back(R), torch.zeros(0)
        if encoder is not None:
            R = step.at_memory
            at_source = encoder.back(R if norm is None else through_norm(R, encoder.x, norm))
        rows.append((at_source.sum(-1), at_target.sum(-1)))
    return tuple(torch.stack(parts) for parts in zip(*rows, strict=True))


def naive_shares(attention, q, k, v, residual, norm, causal, across):
    """Shares [T, S], with the residual as a last column in cross-attention; `norm` of a post-norm block, else None."""
    shares = torch.zeros(len(q), len(k) + across)
    size = attention.head_dim
    for t in range(len(q)):
        vectors = [torch.zeros_like(residual[0]) for _ in range(len(k) + across)]
        for h in range(attention.num_heads):
            part = slice(h * size, (h + 1) * size)
            last = t + 1 if causal else len(k)
            weights = (q[t, part] @ k[:last, part].t() * size**-0.5).softmax(-1)
            for s in range(last):
                vectors[s] = vectors[s] + attention.out_proj.weight[:, part] @ (weights[s] * v[s, part])
        vectors[-1 if across else t] = vectors[-1 if across else t] + residual[t]
        total = sum(vectors) + attention.out_proj.bias
        if norm is not None:
            scale = norm.weight / (total.var(unbiased=False) + norm.eps).sqrt()
            vectors, total = [(vector - vector.mean()) * scale for vector in vectors], norm(total)
        nearer = torch.stack([(total.abs().sum() - (total - vector).abs().sum()).clamp(min=0) for vector in vectors])
        shares[t] = nearer / (nearer.sum() or 1)
    return shares


def naive_alti(layers, x, memory=None, of_memory=None, causal=False):
    """Contributions to the output: [T, T], and through `of_memory` [S, S] [T, S]; and the output."""
    of_target, of_source = torch.eye(len(x)), torch.zeros(len(x), 0 if memory is None else len(memory))
    for layer in layers:
        first = layer.normalize_before
        for name in ("self_attn", "encoder_attn")[: 1 if memory is None else 2]:
            attention, norm = getattr(layer, name), getattr(layer, f"{name}_layer_norm")
            y, across = norm(x) if first else x, name == "encoder_attn"
            keys = memory if across else y
            q, k, v = attention.q_proj(y), attention.k_proj(keys), attention.v_proj(keys)
            shares = naive_shares(attention, q, k, v, x, None if first else norm, causal and not across, across)
            if across:
                of_source = shares[:, -1:] * of_source + shares[:, :-1] @ of_memory
                of_target = shares[:, -1:] * of_target
            else:
                of_target, of_source = shares @ of_target, shares @ of_source
            mask = torch.full((len(x),) * 2, -1e9).triu(1) if causal and not across else None
            x = x + attention(*(part[:, None] for part in (y, keys, keys)), attn_mask=mask)[0][:, 0]
            x = x if first else norm(x)
        y = layer.final_layer_norm(x) if first else x
        x = x + layer.fc2(layer.activation_fn(layer.fc1(y)))
        x = x if first else layer.final_layer_norm(x)
    return of_target, of_source, x
