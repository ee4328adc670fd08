"""Layers of attention in random programs, whole and written out, as passes look for them."""

import image_layers as images
from image_layers import F
from pass_drafts import Draft

D = 16
"""Features."""
HEADS, WIDTH = 2, 8


def _split(d: Draft, x: str, heads: int) -> str:
    width = d.value(x).shape[-1] // heads
    text = d.one(
        (
            f"{{0}}.view({{0}}.shape[0], -1, {heads}, {width}).transpose(1, 2)",
            f"{{0}}.reshape({{0}}.shape[0], -1, {heads}, {width}).transpose(1, 2)",
            f"{{0}}.unflatten(-1, ({heads}, {width})).transpose(1, 2)",
            f"{{0}}.view({{0}}.shape[0], -1, {heads}, {width}).permute(0, 2, 1, 3)",
        )
    )
    return d.step(text, x)


def _joined(d: Draft, x: str) -> str:
    text = d.one(
        (
            "{0}.transpose(1, 2).flatten(2)",
            "{0}.transpose(1, 2).reshape({0}.shape[0], {0}.shape[2], -1)",
            "{0}.transpose(1, 2).contiguous().view({0}.shape[0], {0}.shape[2], -1)",
        )
    )
    return d.step(text, x)


def _layers_of(d: Draft, x: str, kv_heads: int) -> tuple[str, str, str]:
    q, k, v = (images.linear(d, x, n * WIDTH) for n in (HEADS * 2, kv_heads, kv_heads))
    return _split(d, q, HEADS * 2), _split(d, k, kv_heads), _split(d, v, kv_heads)


def _repeated(d: Draft, x: str, times: int) -> str:
    """Repeat keys or values for groups of heads."""
    heads = d.value(x).shape[1] * times
    if d.chance(0.4):
        text = d.one(
            (
                f"{{0}}.repeat_interleave({times}, dim=1)",
                f"torch.repeat_interleave({{0}}, {times}, dim=1)",
                f"torch.repeat_interleave({{0}}, {times}, 1)",
                f"{{0}}.repeat(1, {times}, 1, 1)",
            )
        )
        return d.step(text, x)
    thin = d.one(("{0}[:, :, None]", "{0}[:, :, None, :, :]", "{0}.unsqueeze(2)"))
    wide = f"{thin}.expand(-1, -1, {times}, -1, -1)"
    if d.chance(0.4):
        return d.step(f"{wide}.reshape({{0}}.shape[0], {heads}, *{{0}}.shape[2:])", x)
    return d.step(f"{{0}}.reshape({{0}}.shape[0], {heads}, *{{0}}.shape[3:])", d.step(wide, x))


def _mask(d: Draft, queries: int, keys: int, *, windows: bool) -> tuple[str | None, str]:
    """Return a mask, and further arguments."""
    grid = f"torch.arange({queries})[:, None] + {keys - queries}", f"torch.arange({keys})"
    drawn = d.rng.randrange(12)
    if windows and drawn > 1:
        near, back = f"(({grid[0]}) - {grid[1]})", f"({grid[1]} - ({grid[0]}))"
        window = d.one(
            (
                f"({near} >= 0) & ({near} < {d.one((1, 2, 3, 20))})",
                f"{near}.abs() < {d.one((1, 2, 3))}",
                f"({near} <= 1) & ({back} <= {d.one((0, 1, 2))})",
                f"torch.ones({queries}, {keys}, dtype=torch.bool).tril({keys - queries}).triu(-1)",
            )
        )
        spelt = (
            window,
            f"({window})[None, None]",
            f"({window}).expand(2, 1, {queries}, {keys})",
            f"torch.zeros({queries}, {keys}).masked_fill(~({window}), float('-inf'))",
            f"torch.where({window}, 0.0, float('-inf'))",
        )
        return d.step(d.one(spelt)), ""
    if drawn == 0:
        return None, ", is_causal=True" if queries == keys else ""
    if drawn == 1:
        return None, ""
    if drawn == 2:
        return d.given(f"torch.randn({queries}, {keys})"), ""
    if drawn == 3:
        return d.given(f"torch.randn(n, 1, {queries}, {keys}) > -1"), ""
    texts = (
        f"({grid[0]}) >= {grid[1]}",
        f"(({grid[0]}) >= {grid[1]})[None, None]",
        f"torch.ones({queries}, {keys}, dtype=torch.bool).tril({keys - queries})",
        f"torch.zeros({queries}, {keys}).masked_fill(({grid[0]}) < {grid[1]}, float('-inf'))",
        f"torch.full(({queries}, {keys}), -3e38).triu({keys - queries + 1})",
        f"torch.ones({queries}, {keys}, dtype=torch.bool)",
        f"torch.zeros({queries}, {keys})",
        f"torch.ones(1, 1, 1, {keys}, dtype=torch.bool)",
        f"((({grid[0]}) - {grid[1]} >= 0) & (({grid[0]}) - {grid[1]} < 3))",
        f"((({grid[0]}) - {grid[1]}).abs() < 3)",
        f"((({grid[0]}) - {grid[1]}).abs() < 3)[None].expand(2, 1, {queries}, {keys})",
        f"(({grid[0]}) > {grid[1]})",
    )
    return d.step(d.one(texts)), ""


def windowed(d: Draft, x: str) -> str:
    return attention(d, x, windows=True)


def attention(d: Draft, x: str, *, windows: bool = False) -> str:
    if d.value(x).dim() != 3:
        return d.step("{0} * 2", x)
    kv = d.one((HEADS * 2, HEADS, 1))
    q, k, v = _layers_of(d, x, kv)
    if d.chance(0.3):
        q, k = (d.step("torch.cat([-{0}[..., 4:], {0}[..., :4]], -1) + {0}", y) for y in (q, k))
    grouped = kv != HEADS * 2
    how = ""
    if grouped and d.chance(0.75):
        k, v = (_repeated(d, y, HEADS * 2 // kv) for y in (k, v))
    elif grouped:
        how = ", enable_gqa=True"
    t = d.value(q).shape[2]
    mask, more = _mask(d, t, d.value(k).shape[2], windows=windows)
    how += more + d.one(("", "", ", scale=0.3", ", dropout_p=0.0"))
    y = d.step(
        f"{F}.scaled_dot_product_attention({{0}}, {{1}}, {{2}}, attn_mask={{3}}{how})",
        q,
        k,
        v,
        mask,
    )
    if d.chance(0.9):
        y = _joined(d, y)
        return images.linear(d, y, D) if d.chance(0.6) else y
    return d.step("{0}.flatten(2)[:, :2]", y)


def cache(d: Draft) -> str:
    return d.tokens("n", HEADS, d.one((5, 8)), WIDTH)


def one_token(d: Draft, x: str) -> str:
    if d.value(x).dim() != 4:
        return d.step("{0} * 2", x)
    times = d.one((2, 4, 2, 1))
    keys, heads = d.value(x).shape[2], d.value(x).shape[1]
    q = d.given(f"torch.randn(n, {heads * times}, {d.one((1, 1, 1, 1, 2))}, {WIDTH})")
    if d.chance(0.2):
        q = d.given(f"torch.randn(n, 1, {heads * times}, {WIDTH}).transpose(1, 2)")
    k = x
    v = d.tokens("n", heads, keys, d.one((WIDTH, WIDTH, 16)))
    how = ""
    if d.chance(0.75):
        k, v = (_repeated(d, y, times) for y in (k, v))
    else:
        how = ", enable_gqa=True"
    mask = d.given(
        d.one(
            (
                f"torch.randn(n, 1, 1, {keys}) > -1.5",
                f"torch.randn(1, {keys}) > -1.5",
                f"torch.randn({keys}) > -1.5",
                f"torch.randn(1, 1, 1, {keys})",
                f"torch.randn(n, {heads * times}, 1, {keys})",
                f"torch.randn({d.value(q).shape[2]}, {keys})",
            )
        )
    )
    how += d.one(("", "", ", scale=0.25", ", dropout_p=0.0", ", is_causal=False"))
    called = f"{F}.scaled_dot_product_attention"
    y = d.step(f"{called}({{0}}, {{1}}, {{2}}, attn_mask={{3}}{how})", q, k, v, mask)
    return d.step(
        d.one(
            ("{0}.transpose(1, 2).flatten(2)", "{0}.sin()", "{0}.squeeze(2)", "{0}[:, :, 0]", "{0}")
        ),
        y,
    )


def written_out(d: Draft, x: str) -> str:
    """Attention that is written out."""
    if d.value(x).dim() != 3:
        return d.step("{0} * 2", x)
    q, k, v = _layers_of(d, x, HEADS * 2)
    t = d.value(q).shape[2]
    if d.chance(0.2):
        q, k, v = (d.step("{0}.flatten(0, 1)", y) for y in (q, k, v))
    rank = d.value(q).dim()
    b = "bh"[4 - rank :]
    product = d.one(
        (
            "torch.matmul({0}, {1}.transpose(-2, -1))",
            "{0} @ {1}.mT",
            "torch.matmul({0}, {1}.transpose(-1, -2))",
            f"torch.einsum('{b}id,{b}jd->{b}ij', {{0}}, {{1}})",
        )
    )
    s = d.step(product, q, k)
    for _ in range(d.one((0, 1, 1, 2))):
        s = d.step(
            d.one(("{0} * 0.35", "{0} / 2.8", "0.4 * {0}", "{0}.mul_(0.5)", "{0}.float()")), s
        )
    for _ in range(d.one((0, 1, 1, 1, 2))):
        s = _scores(d, s, t)
    s = _normalised(d, s)
    y = d.step(
        d.one(
            (
                "torch.matmul({0}, {1})",
                "{0} @ {1}",
                "{0}.matmul({1})",
                f"torch.einsum('{b}ij,{b}jd->{b}id', {{0}}, {{1}})",
                f"torch.einsum('{b}ij,{b}jd->{b[:1]}i{b[1:]}d', {{0}}, {{1}})",
            )
        ),
        s,
        v,
    )
    if d.value(y).dim() == 4 and d.value(y).shape[1] == HEADS * 2:
        return _joined(d, y)
    return d.step("{0}.flatten(2)", y)


def _normalised(d: Draft, s: str) -> str:
    s = d.step(
        d.one(
            (
                f"{F}.softmax({{0}}, dim=-1)",
                "{0}.softmax(-1)",
                f"{F}.softmax({{0}}.float(), dim=-1)",
                "torch.softmax({0}, -1)",
                f"{F}.softmax({{0}}, -1, dtype=torch.float32)",
            )
        ),
        s,
    )
    if d.chance(0.3):
        s = d.step(
            d.one(
                (
                    f"{F}.dropout({{0}}, 0.0)",
                    f"{F}.dropout({{0}}, 0.5, False)",
                    f"{F}.dropout({{0}}, 0.3)",
                    "{0}.to(torch.float32)",
                )
            ),
            s,
        )
    return s


def _scores(d: Draft, s: str, t: int) -> str:
    drawn = d.rng.randrange(7)
    if drawn == 0:
        bias = d.learnt(HEADS * 2, t, t)
        return d.step(d.one(("{0} + {1}", "{1} + {0}", "{0}.add_({1})")), s, bias)
    if drawn == 1:
        bias = d.given(f"torch.randn({t}, {t})")
        return d.step(d.one(("{0} + {1}", "torch.add({0}, {1})")), s, bias)
    if drawn == 2:
        bias = d.given(
            f"((torch.randn({d.one((t, 1))}, {t}) > -0.5) | (torch.arange({t}) == 0)).float().log()"
        )
        return d.step("{0} + {1}", s, bias)
    number = d.one(
        ("float('-inf')", "torch.finfo(torch.float32).min", "-1e9", "-1e30", "-1e4", "0.0")
    )
    hidden = f"(torch.randn({d.one((t, 1))}, {t}) {d.one(('> 0.5', '< 10', '> 10'))})"
    if "-1e" not in number and number != "0.0":
        # Of no key that is seen, eager's own gradients are NaN. Of one alone they are exactly zero,
        # where a fused kernel's are what rounding leaves.
        hidden += f" & (torch.arange({t}) > 1)"
    mask = d.given(hidden)
    if drawn == 3 and d.chance(0.5):
        mask = d.step(f"torch.ones({t}, {t}, dtype=torch.bool).triu(1)")
    return d.step(
        d.one(
            (
                f"{{0}}.masked_fill({{1}}, {number})",
                f"{{0}}.masked_fill_({{1}}, {number})",
                f"torch.where(~{{1}}, {{0}}, {number})",
                f"torch.where({{1}}, {number}, {{0}})",
            )
        ),
        s,
        mask,
    )
