"""Layers of tokens in random programs, as passes look for them."""

import attention_layers as attention
import image_layers as images
from attention_layers import D
from image_layers import F
from pass_drafts import Draft


def tokens(d: Draft) -> str:
    t = d.one((5, 8, 8, 1))
    return d.tokens("n", t, D)


def matrix(d: Draft) -> str:
    return d.tokens("n", D) if d.chance(0.4) else d.tokens("n", d.one((1, 3, 4)), D)


def feed_forward(d: Draft, x: str) -> str:
    c = d.value(x).shape[-1]
    skip = x
    x = images.linear(d, x, d.one((D, 32)))
    if d.chance(0.25):
        x = d.step(
            d.one(
                ("{0}.view(-1, {0}.shape[-1])", "{0}.reshape(1, *{0}.shape)", "{0}.view({0}.shape)")
            ),
            x,
        )
    spelled = (
        "0.5 * {0} * (1 + torch.tanh(0.7978845608028654 * ({0} + 0.044715 * {0} ** 3)))",
        "0.5 * {0} * (1 + torch.tanh(0.7978845608028654 * ({0} + 0.044715 * {0} * {0} * {0})))",
        f"{F}.gelu({{0}}, approximate='tanh')",
    )
    x = d.step(d.one((*images.ACTIVATIONS, *spelled)), x)
    if d.chance(0.7):
        x = images.linear(d, x, c)
    return images.plus(d, x, skip) if d.chance(0.4) else x


def rows(d: Draft, x: str) -> str:
    """What works row by row."""
    c, drawn = d.value(x).shape[-1], d.rng.randrange(7)
    if drawn == 0:
        return images.linear(d, x, D)
    if drawn == 1:
        return d.step(
            f"{F}.layer_norm({{0}}, ({c},), {{1}}, {{2}}, 1e-3)", x, d.maybe(c), d.maybe(c)
        )
    if drawn == 2:
        return d.step(f"{F}.rms_norm({{0}}, ({c},), {{1}}, 1e-3)", x, d.maybe(c))
    if drawn == 3:
        return feed_forward(d, x)
    if drawn == 4:
        return attention.attention(d, x)
    return d.step(
        d.one(
            (
                "{0}.softmax(-1)",
                f"{F}.softmax({{0}}, dim=-1)",
                f"{F}.softmax({{0}}, dim=1)",
                "{0} * {0}.mean(-1, keepdim=True)",
                "{0} - {0}.amax(dim=-1, keepdim=True)",
                "{0} + {0}.sum(dim=1, keepdim=True)",
                "torch.where({0} > 0, {0}, {0}.sin())",
                "{0}.clamp(-0.5, 0.5)",
                "torch.maximum({0}, {0}.cos())",
                "{0}.float()",
                "{0} + torch.arange({0}.shape[1])[:, None]",
                "{0} + torch.arange({0}.shape[-1])",
                f"{F}.dropout({{0}}, 0.5, False)",
                "{0}.cumsum(1)",
                "{0}.reshape(*{0}.shape[:2], 2, -1).transpose(1, 2).transpose(1, 2).flatten(2)",
                "{0}.view({0}.shape[0], {0}.shape[1], 2, -1).sin().view({0}.shape)",
            )
        ),
        x,
    )


def norm_of_rows(d: Draft, x: str) -> str:
    """A norm, one or more layers that read it, and perhaps a residual branch."""
    c, skip = d.value(x).shape[-1], x
    w = d.learnt(c)
    wide = d.one(("{0}.float()", "{0}.to(torch.float32)", "{0}"))
    root = d.one(
        (
            "torch.rsqrt(({1}).pow(2).mean(-1, keepdim=True) + 1e-3)",
            "(torch.square({1}).mean((-1,), keepdim=True) + 1e-3).rsqrt()",
            "torch.rsqrt(1e-3 + torch.mean({1} * {1}, dim=-1, keepdim=True))",
            "torch.rsqrt(({1}).pow(2).mean(-1, keepdim=True).detach() + 1e-3)",
            "torch.rsqrt(({1}).pow(2).sum(-1, keepdim=True) + 1e-3)",
        )
    )
    if d.chance(0.5):
        norms = (
            f"{F}.layer_norm({{0}}, ({c},), {{1}}, {{2}}, 1e-3)",
            f"torch.layer_norm({{0}}, ({c},), {{1}}, {{2}})",
        )
        y = d.step(d.one(norms), x, w, d.maybe(c))
    elif d.chance(0.3):
        y = d.step(f"{F}.rms_norm({{0}}, ({c},), {{1}}, 1e-3)", x, w)
    else:
        v = d.step(wide, x)
        n = d.step(f"{{0}} * {root}", d.one((v, v, v, x)), v)
        if d.chance(0.5):
            n = d.step("{0}.type_as({1})", n, x)
        y = d.step(
            d.one(
                (
                    "{1} * {0}",
                    "{0} * {1}",
                    "{0} * (1.0 + {1})",
                    "({0} * (1 + {1}.float())).to({0}.dtype)",
                )
            ),
            n,
            w,
        )
        y = d.step("{0}.to({1}.dtype)", y, x) if d.chance(0.5) else y
    if d.chance(0.15):
        others = ("{0}.view(-1, {0}.shape[-1])", "{0}.add_(1)", "{0}.tanh()", "{0}[..., :4]")
        return d.step(d.one(others), y)
    for _ in range(d.one((0, 1, 2, 3))):
        z = images.linear(d, y, D)
        y, z = (y, z) if d.chance(0.5) else (z, y)
        if d.value(y).shape == d.value(z).shape:
            y = d.step(d.one(("{0} + {1}", "{0} * {1}")), y, z)
    return images.plus(d, y, skip) if d.chance(0.6) else y


def selected(d: Draft, x: str) -> str:
    text = d.one(
        (
            "{0}[:, -1]",
            "{0}[:, -1:]",
            "{0}[:, 0]",
            "{0}[:, :1]",
            "{0}[:, 1:3]",
            "{0}[:, ::2]",
            "{0}[..., -1, :]",
            "{0}[-1]",
            "{0}[0]",
            "{0}[:1, :2]",
            "{0}[:, 0, :4]",
            "{0}[:, -2]",
            "{0}[:, -2:-1]",
            "{0}[0, -1]",
            "{0}[:, 5:]",
            "{0}[:, None, -1]",
            "{0}[..., 0]",
        )
    )
    x = d.step(text, x)
    for _ in range(d.one((0, 0, 1))):
        x = d.step(
            d.one(("{0}.sin()", "{0} * 2", "{0}.contiguous()", "{0}.add_(1)", "{0}.unsqueeze(0)")),
            x,
        )
    return x


def layers(d: Draft, x: str) -> str:
    """Layers of one input, read by this and that."""
    if d.chance(0.6):
        return attention.attention(d, x)
    y, z = (images.linear(d, x, d.one((D, D, 8))) for _ in range(2))
    if d.chance(0.4):
        w = images.linear(d, x, D)
        y = images.plus(d, y, w)
    if d.value(y).shape != d.value(z).shape:
        z = d.step("{0}.mean(-1, keepdim=True)", z)
    return d.step(
        d.one(
            (
                f"{F}.silu({{0}}) * {{1}}",
                "{0} + {1}",
                "torch.cat([{0}, {1}], -1)",
                "{0} * {1}.sigmoid()",
            )
        ),
        y,
        z,
    )


def state(d: Draft) -> str:
    return d.given(
        d.one(
            (
                f"torch.randn(1, {D})",
                f"torch.randn(1, 1, {D})",
                f"torch.randn({D})",
                f"torch.randn(n, {D})",
                f"torch.randn(1, 2 * {D})[:, ::2]",
            )
        )
    )


def one_row(d: Draft, x: str) -> str:
    drawn = d.rng.random()
    if drawn < 0.6:
        return feed_forward(d, x)
    x = images.linear(d, x, d.one((D, 8)))
    return d.step(d.one(("{0}.sin()", "{0}.softmax(-1)", f"{F}.silu({{0}})", "{0} * 0.5")), x)


def of_parameters(d: Draft, x: str) -> str:
    """What only parameters decide, and what reads it."""
    c = d.value(x).shape[-1]
    w = d.learnt(D, c)
    spelt = (
        "({0} - {0}.mean(1, keepdim=True)) / ({0}.std(1, keepdim=True) + 0.1)",
        "{0} * 2",
        "{0}.t().contiguous().t()",
        "{0}.exp()",
        "torch.cat([{0}, {0}.sin()], 0)[::2]",
        "{0}.view(-1).view({0}.shape)",
        "{0}.clone()",
        "{0}.to(torch.bfloat16).to(torch.float32)",
        "torch.tril({0})",
        "{0} + torch.arange({0}.shape[1]) * 0.1",
        "{0}.softmax(0)",
        "{0}.detach() * 1.5",
    )
    for _ in range(d.one((1, 1, 2))):
        w = d.step(d.one(spelt), w)
    x = d.step(f"{F}.linear({{0}}, {{1}}, {{2}})", x, w, d.maybe(D))
    return d.step("{0} + {1}", x, d.step(d.one(("{0} * 3", "{0}.sin()")), d.learnt(D)))


def words(d: Draft) -> str:
    """Rows of tables, for which two may ask; a table may be what was asked for, too."""
    sizes = d.one(("n", "n, 5", "2, n, 3"))
    asked: list[str] = []
    for _ in range(d.one((1, 1, 2, 3))):
        count, width, table = _table(d, asked)
        how = d.one(
            ("", "", ", 0", ", padding_idx=-1", ", None, None, 2.0, True", ", sparse=False")
        )
        for _ in range(d.one((1, 1, 2))):
            ids = d.given(f"torch.randint({count}, ({sizes},))")
            rows = d.step(f"{F}.embedding({{0}}, {{1}}{how})", ids, table)
            if asked and d.chance(0.1):
                rows = d.step("{0}.detach()", rows)
            asked.append(rows if width == D else d.step("{0}.mean(-1, keepdim=True)", rows))
            if table.startswith("v") and d.chance(0.3):  # behind its first reader
                d.take("{0}.mul_(0.75)", table, gives=0)
    while len(asked) > 1:
        asked.append(d.step("{0} + {1}", asked.pop(), asked.pop()))
    return asked[0]


def _table(d: Draft, asked: list[str]) -> tuple[int, int, str]:
    """How many words, of what width, and the table."""
    if asked and d.chance(0.2):
        return 1, D, d.step("{0}.reshape(-1, {0}.shape[-1])[:3]", asked[0])
    count, width = d.one((3, 24)), d.one((D, D, D, 4)) if asked else D
    table = d.learnt(count, width)
    return count, width, d.step("{0} * 1.5", table) if d.chance(0.3) else table


def classes(d: Draft) -> str:
    return d.tokens("n", d.one((D, 24)))


def probabilities(d: Draft, x: str) -> str:
    """Softmax or a loss of an input or a product, mostly; what reads it, and a product after it."""
    if d.chance(0.4):
        x = images.linear(d, x, d.one((D, 24)))
    c, rows = d.value(x).shape[-1], d.value(x).dim() == 2
    for _ in range(d.one((0, 1, 1, 2))):
        x = d.step(
            d.one(
                (
                    "{0}.float()",
                    "{0}.to(torch.float32)",
                    "{0} / 0.7",
                    "2 * {0}",
                    "{0}.view(-1, {0}.shape[-1])",
                    "{0}.detach()",
                    "{0} * -1",
                    "{0}.tanh()",
                )
            ),
            x,
        )
    if d.chance(0.15):  # a copy that is written in place, and is not what it was made of
        x = d.step("({0}.mul_(0.5), {0})[1]", d.step("{0} / 0.7", x))
    if rows and d.chance(0.6):
        t = d.given(f"torch.randint({c}, (n,)).masked_fill(torch.rand(n) < 0.3, -100)")
        log = d.one((f"{F}.log_softmax({{0}}, -1)", "{0}.log_softmax(1)"))
        y = d.step(
            d.one(
                (
                    f"{F}.cross_entropy({{0}}, {{1}}, reduction='sum')",
                    f"{F}.cross_entropy({{0}}, {{1}}, reduction='none')[:, None]",
                    f"{F}.cross_entropy({{0}}, {{1}}, ignore_index=3, reduction='sum')"
                    if d.chance(0.1)
                    else f"{F}.cross_entropy({{0}}, {{1}})",
                    f"{F}.cross_entropy({{0}}, {{1}}, label_smoothing=0.1)",
                    f"{F}.nll_loss({log}, {{1}}, reduction='sum')",
                    f"{log}.gather(-1, {{1}}.clamp_min(0)[:, None])",
                )
            ),
            x,
            t,
        )
        return d.step("{0} * {1}", x, y)
    name = d.one(("softmax", "softmax", "log_softmax"))
    how = d.one(
        (
            f"{{0}}.{name}(-1)",
            f"{F}.{name}({{0}}, dim=-1)",
            f"torch.{name}({{0}}, 1)",
            f"torch.special.{name}({{0}}, -1)",
            f"{F}.{name}({{0}}, -1, dtype=torch.float32)",
            f"{{0}}.{name}(-1, dtype=torch.bfloat16)",
            f"torch.{name}({{0}}, 0)",
        )
    )
    return d.step(how, x)


def loss(d: Draft, x: str) -> str:
    """A loss of a linear layer, mostly, by which the input is multiplied."""
    c = d.one((7, 24))
    y = images.linear(d, x, c)
    if d.chance(0.15):  # what the layer read is written before the loss is computed
        y = d.step("({0}.mul_(0.5), {1})[1]", d.step("{0} * 1", x), y)
    for _ in range(d.one((0, 1, 1, 2))):
        y = d.step(
            d.one(
                (
                    *("{0}.float()", "{0}.to(torch.float32)", "{0} / 0.7", "2 * {0}"),
                    *("{0}.view(-1, {0}.shape[-1])", "{0}.reshape({0}.shape)", "{0}.contiguous()"),
                    *("{0}.view(1, -1, {0}.shape[-1]).flatten(0, 1)", "{0}.detach()"),
                    *("{0} * -1", "torch.tanh({0} / 5) * 5", "{0}.mul_(0.5)", "{0}.flip(0)"),
                )
            ),
            y,
        )
    t = d.given(f"torch.randint({c}, (n,)).masked_fill(torch.rand(n) < 0.3, -100)")
    how = d.one(
        (
            "",
            ", reduction='sum'",
            ", reduction='none').sum(",
            ", ignore_index=3, reduction='sum'",
            ", label_smoothing=0.1",
        )
    )
    total = d.step(f"{F}.cross_entropy({{0}}, {{1}}{how})", y, t)
    if d.chance(0.15):
        total = d.step("{0} + {1}.amax()", total, y)
    return d.step("{0} * {1}", x, total)


def turned(d: Draft, x: str) -> str:
    """Heads that are normalised and turned by their positions, once or twice, joined again."""
    width, times = d.one((8, 16)), d.one((1, 2))
    heads = [_normalised_heads(d, x, width)]
    angles = f"torch.arange({{0}}.shape[2])[:, None] * torch.linspace(0.1, 1, {width})"
    cos, sin = (d.step(f"({angles}).{y}().to({{0}}.dtype)", heads[0]) for y in ("cos", "sin"))
    if d.chance(0.5):
        cos, sin = (d.step("{0}[None, None]", y) for y in (cos, sin))
    if times > 1 and d.chance(0.5):
        heads.append(_normalised_heads(d, x, width))
    found = [_turned_once(d, y, cos, sin, width) for y in heads]
    if times > len(heads):
        y = _normalised_heads(d, x, width)
        found.append(_turned_once(d, y, *d.one(((cos, sin), (cos, sin), (sin, cos))), width))
    joined = [d.step("{0}.transpose(1, 2).flatten(2)", z) for z in found]
    return joined[0] if times == 1 else d.step("{0} + {1}", *joined)


def _normalised_heads(d: Draft, x: str, width: int) -> str:
    y = d.step(f"{{0}}.view(*{{0}}.shape[:2], -1, {width})", images.linear(d, x, 4 * width))
    is_first = d.chance(0.3)
    if is_first:
        y = d.step("{0}.transpose(1, 2)", y)
    w = d.learnt(width)
    if d.chance(0.4):
        y = d.step(f"{F}.rms_norm({{0}}, ({width},), {{1}}, 1e-3)", y, w)
    else:
        v = d.step("{0}.float()", y)
        n = d.step("{0} * torch.rsqrt({0}.pow(2).mean(-1, keepdim=True) + 1e-3)", v)
        y = d.step(d.one(("{1} * {0}.to({2}.dtype)", "({0} * (1.0 + {1})).to({2}.dtype)")), n, w, y)
    if is_first:
        return y
    return d.step(d.one(("{0}.transpose(1, 2)", "{0}.permute(0, 2, 1, 3)")), y)


def _turned_once(d: Draft, y: str, cos: str, sin: str, width: int) -> str:
    h = width // 2
    first, second = d.one(
        ((f"[..., :{h}]", f"[..., {h}:]"), (".chunk(2, -1)[0]", ".chunk(2, -1)[1]"))
    )
    half = d.one((f"-{{0}}{second}, {{0}}{first}",) * 4 + (f"{{0}}{second}, -{{0}}{first}",))
    z = d.step(f"{{0}} * {{1}} + torch.cat(({half}), dim=-1) * {{2}}", y, cos, sin)
    return d.step("{0} + {1}.amax()", z, y) if d.chance(0.15) else z


def float8(d: Draft, x: str) -> str:
    """Rows that are rounded to float8 with a scale for each, and what they are made of."""
    c, before = d.value(x).shape[-1], x
    drawn = d.rng.randrange(4)
    if drawn == 0:
        x = images.linear(d, x, c)
    elif drawn == 1:
        gates = (f"{F}.silu({{0}}) * {{1}}", f"{{1}} * {F}.silu({{0}})", "{0}.sigmoid() * {1}")
        x = d.step(d.one(gates), images.linear(d, x, c), images.linear(d, x, c))
    else:
        if d.chance(0.5):
            before = x = d.step("{0} + {1}", images.linear(d, x, c), x)
        w = d.learnt(c)
        if d.chance(0.4):
            x = d.step(f"{F}.rms_norm({{0}}, ({c},), {{1}}, 1e-3)", x, w)
        else:
            v = d.step(d.one(("{0}.float()", "{0}")), x)
            n = d.step("{0} * torch.rsqrt({0}.pow(2).mean(-1, keepdim=True) + 1e-3)", v)
            x = d.step(d.one(("{1} * {0}", "({0} * (1.0 + {1})).to({2}.dtype)")), n, w, x)
    y = d.step(d.one(("{0}.float()", "{0}")), x) if d.chance(0.3) else x
    largest = d.one(
        (
            "{0}.abs().amax(-1, keepdim=True).float()",
            "torch.amax(torch.abs({0}), dim=-1, keepdim=True).to(torch.float32)",
            "{0}.float().abs().max(-1, keepdim=True)[0]",
            "{0}.abs().amax(-1).float().unsqueeze(-1)",
            "{0}.abs().amax(0, keepdim=True).float()",
            "{0}.amax(-1, keepdim=True).float()",
        )
    )
    of = d.one((x, y, y, before if d.chance(0.1) else y))
    scale, divided = d.one(
        (
            ("{0}.clamp(min=1e-6) / 448", "{0}.float() / {1}"),
            ("({0} / 448.0).clamp(min=1e-6)", "{0} / {1}"),
            ("{0}.clamp_min(1e-3) * (1 / 448)", "{0}.float() * {1}.reciprocal()"),
            ("448 / {0}.clamp(min=1e-6)", "{0}.float() * {1}"),
            ("{0}.clamp(min=1e-6, max=3) / 448", "{0}.float() / {1}"),
            ("{0}.clamp(min=1e-6) / 200", "{0} / {1}"),
        )
    )
    cast = d.one(("{0}.to(torch.float8_e4m3fn)", "{0}.type(torch.float8_e4m3fn)"))
    clamped = d.chance(0.8)

    def rounded() -> str:
        s = d.step(scale, d.step(largest, of))
        z = d.step(divided, y, s)
        z = d.step("{0}.float()", d.step(cast, d.step("{0}.clamp(-448, 448)", z) if clamped else z))
        return d.step("{0} * {1}" if d.chance(0.8) else "{0} / 448", z, s)

    z = rounded()
    if d.chance(0.3):
        z = d.step("{0} + {1}", z, rounded())
    return d.step("{0}.to({1}.dtype)", images.plus(d, z, before) if d.chance(0.3) else z, before)
