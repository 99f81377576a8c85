import json
from dataclasses import replace

import pytest
import torch

import perfgate
from perfgate import discover
from perfgate.determinism.metrics import verify
from perfgate.determinism.torch_flags import deterministic_algorithms

sizes = discover.module("recipes.sizes")
table = discover.module("recipes.table")
RECIPES = sizes.RECIPES
OP_OF = {"embedding": "embedding/backward", "combine": "moe/combine", "permute": "moe/permute"} | {
    op: f"moe/{op}" for op in ("router_topk", "routing_map", "tokens_per_expert")
}


def tiny(recipe):
    return sizes.size_of(recipe, "tiny")


def least(recipe):
    """Small enough for Triton's interpreter."""
    return replace(
        tiny(recipe), mixers=tiny(recipe).mixers[:1], batch=1, length=8, chunk=4, vocab=32, hidden=16, inner=16, heads=1
    )


def trained(size, arm, device, steps=3, seed=0, folder=None):
    with deterministic_algorithms(arm != "default"):
        return discover.module("recipes.train").train(size, table.kernels_of(size, arm), device, steps, seed, folder)


class RecordedRange:
    """Stands in for perfgate.range and checks that ranges close in reverse order."""

    names = open = ()

    def __init__(self, name):
        self.name = name

    def __enter__(self):
        self.names.append(self.name)
        self.open.append(self.name)

    def __exit__(self, *_):
        assert self.open.pop() == self.name


@pytest.fixture
def recorded(monkeypatch):
    monkeypatch.setattr(RecordedRange, "names", [])
    monkeypatch.setattr(RecordedRange, "open", [])
    monkeypatch.setattr(perfgate, "range", RecordedRange, raising=False)
    return RecordedRange


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("arm", table.ARMS)
@pytest.mark.parametrize("size", sizes.SIZES)
def test_every_op_has_one_kernel_by_name_and_it_exists(recipe, arm, size):
    kernels = discover.module("recipes.kernels").kernels()

    chosen = table.kernels_of(sizes.size_of(recipe, size), arm)

    assert set() == {op for op, kernel in chosen.items() if kernel not in kernels[op]}


@pytest.mark.parametrize("op", OP_OF)
def test_the_arms_use_what_the_gate_measures_under_these_roles(op):
    declared = discover.load().op(OP_OF[op])
    default, stock, champion = (declared.with_role(role).name for role in ("default", "stock_deterministic", "champion"))
    if op in ("permute", "embedding"):  # one call in both modes; the mode's flags make the difference
        stock = default

    assert (default, stock, champion) == table.TABLE[op]


@pytest.mark.parametrize("recipe", RECIPES)
def test_ops_that_a_recipe_lacks_are_not_in_its_table(recipe):
    chosen = table.kernels_of(tiny(recipe), "champion")

    assert (recipe != "dense", recipe == "hybrid", recipe == "dense") == (
        "combine" in chosen,
        "scan" in chosen,
        "mlp" in chosen,
    )


@pytest.mark.parametrize(
    ("arm", "chosen", "text"),
    [
        ("fast", {}, "no arm 'fast'"),
        ("default", {"combine": "triton.gather"}, "no kernel 'triton.gather'"),
        ("champion", {"scan": "torch.chunked_scan"}, "no op 'scan'"),
    ],
)
def test_a_kernel_that_the_arm_may_not_use_is_refused(arm, chosen, text):
    with pytest.raises(ValueError, match=text):
        table.kernels_of(tiny("moe"), arm, chosen)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_count_of_parameters_is_the_models(recipe):
    used = dict.fromkeys(table.TABLE)

    model = discover.module("recipes.model").build(tiny(recipe), used, "cpu", 0)

    assert sum(weight.numel() for weight in model.parameters()) == tiny(recipe).parameters()


@pytest.mark.parametrize("recipe", RECIPES)
def test_two_runs_of_one_seed_are_equal_and_another_seed_is_not(recipe, device):
    first, second, other = (trained(tiny(recipe), "deterministic", device, seed=seed) for seed in (3, 3, 4))

    assert (first, True) == (second, first != other)


@pytest.mark.parametrize("recipe", RECIPES)
def test_the_arms_agree_but_for_rounding(recipe, device):
    rows = {arm: trained(least(recipe), arm, device, steps=1) for arm in table.ARMS}

    for arm in ("deterministic", "champion"):
        torch.testing.assert_close(rows["default"][0], rows[arm][0], rtol=2e-2, atol=2e-3)


def test_the_champions_run_twice_gives_the_same_bits(device):
    first, second = (trained(least("moe"), "champion", device, steps=2) for _ in range(2))

    assert first == second


def test_the_loss_falls(device):
    rows = trained(replace(tiny("dense"), hidden=64), "default", device, steps=150)

    assert rows[-1]["loss"] < rows[0]["loss"] - 0.1


@pytest.mark.parametrize("recipe", RECIPES)
def test_layers_phases_and_ops_have_ranges_that_nest(recipe, device, recorded):
    expected = {"grad_norm", "optimizer"}
    ops = {
        "model",
        "embedding",
        "norm",
        "head",
        "cross_entropy",
        "layer0",
        "layer1",
        "attention.qkv",
        "attention",
        "attention.out",
    }
    moe = {"router", "router_topk", "routing_map", "balance", "permute", "experts", "combine"}
    ops |= {"mlp.up", "mlp.act", "mlp.down"} if recipe == "dense" else moe
    ops |= {"state_space.in", "conv", "scan", "state_space.norm", "state_space.out"} if recipe == "hybrid" else set()
    expected |= {f"{op}.{phase}" for op in ops for phase in ("fwd", "bwd")}
    expected |= set() if recipe == "dense" else {"tokens_per_expert.fwd"}

    trained(tiny(recipe), "default", device, steps=1)

    assert (expected, []) == (set(recorded.names), recorded.open)


def test_the_backward_of_an_op_lies_in_its_range_and_nothing_else_does(recorded):
    spans = discover.module("recipes.spans")
    seen = []

    def noted(name):
        def hook(gradient):
            seen.append((name, list(recorded.open)))

        return hook

    def op(name, factor):
        def body(x):
            y = x * factor
            y.register_hook(noted(name))
            return y.sin()

        return body

    x = torch.ones(3, requires_grad=True)
    y = spans.within("outer", lambda x: x + spans.within("inner", op("a", 2), x) + spans.within("other", op("b", 3), x), x)
    z = y.square()
    z.register_hook(noted("outside"))
    z.sum().backward()

    assert [("outside", []), ("b", ["outer.bwd", "other.bwd"]), ("a", ["outer.bwd", "inner.bwd"])] == seen


def test_ranges_change_no_gradient():
    spans = discover.module("recipes.spans")
    x, y = (torch.randn(4, generator=torch.Generator().manual_seed(seed), requires_grad=True) for seed in (1, 2))
    expected = torch.autograd.grad((x * y.exp()).sum(), (x, y))

    first, second = spans.within("op", lambda x, y: (x * y.exp(), y.detach()), x, y)

    assert [True, True] == [torch.equal(*pair) for pair in zip(expected, torch.autograd.grad(first.sum(), (x, y)), strict=True)]
    assert not second.requires_grad


def test_a_range_that_nothing_would_close_is_refused():
    weight = torch.ones(3, requires_grad=True)

    with pytest.raises(ValueError, match="never close"):
        discover.module("recipes.spans").within("op", lambda: weight * 2)


def test_the_chunked_scan_is_the_recurrence(generator, device):
    batch, length, heads, width, state = 2, 12, 3, 4, 5
    drawn = {"dtype": torch.float64, "device": device, "generator": generator}
    x = torch.randn(batch, length, heads, width, **drawn)
    decay = -torch.rand(batch, length, heads, **drawn)
    into, out_of = (torch.randn(batch, length, state, **drawn) for _ in range(2))
    held, expected = torch.zeros(batch, heads, width, state, dtype=torch.float64, device=device), []
    for t in range(length):
        held = held * decay[:, t].exp()[..., None, None] + x[:, t][..., None] * into[:, t, None, None, :]
        expected.append((held * out_of[:, t, None, None, :]).sum(-1))

    actual = discover.module("recipes.scan").chunked_scan(x, decay, into, out_of, chunk=4)

    torch.testing.assert_close(torch.stack(expected, dim=1), actual)


@pytest.mark.gpu
def test_the_exact_attention_is_the_stock_one_but_for_rounding(device, generator):
    drawn = [torch.randn(2, 4, 256, 128, device=device, generator=generator).to(torch.bfloat16) for _ in range(4)]
    kernels, made = discover.module("recipes.kernels").kernels()["attention"], {}
    for name in ("torch.sdpa", "triton_exact"):
        q, k, v = (one.clone().requires_grad_() for one in drawn[:3])
        out = kernels[name](q, k, v)
        made[name] = (out, *torch.autograd.grad(out, (q, k, v), drawn[3]))

    for expected, actual in zip(*made.values(), strict=True):
        torch.testing.assert_close(expected, actual, rtol=3e-2, atol=3e-2)


@pytest.mark.parametrize("name", ["triton_exact", "fa4_exact"])
def test_an_exact_attention_that_can_not_run_falls_back_to_nothing(name):
    kernels = discover.module("recipes.kernels").kernels()["attention"]
    q = torch.zeros(1, 1, 16, 24, dtype=torch.bfloat16)

    with pytest.raises(NotImplementedError, match=f"attention by {name}: "):
        kernels[name](q, q, q)


def test_the_gradient_norm_is_in_float32_and_clips():
    weights = [torch.nn.Parameter(torch.zeros(5, dtype=torch.bfloat16)) for _ in range(2)]
    for weight in weights:
        weight.grad = torch.full_like(weight, 3.0)

    norm = discover.module("recipes.kernels").clip_in_float32(weights, 1.0)

    assert (torch.float32, pytest.approx(90**0.5)) == (norm.dtype, norm.item())
    assert torch.stack([weight.grad.float() for weight in weights]).norm().item() == pytest.approx(1.0, rel=1e-2)


def test_the_optimizer_is_torchs_fused_one_bit_for_bit(generator, device):
    given = [torch.randn(7, 5, device=device, generator=generator).to(torch.bfloat16) for _ in range(4)]
    options = {"lr": 3e-2, "betas": (0.9, 0.95), "weight_decay": 0.1}
    mine, theirs = ([torch.nn.Parameter(one.clone()) for one in given[:2]] for _ in range(2))
    ours, stock = discover.module("recipes.optimizer").AdamW(mine, **options), torch.optim.AdamW(theirs, fused=True, **options)
    for scale in (1.0, 0.3, -2.0):
        for weights in (mine, theirs):
            for weight, gradient in zip(weights, given[2:], strict=True):
                weight.grad = gradient * scale
        ours.step()
        stock.step()

    assert [True, True] == [torch.equal(*pair) for pair in zip(mine, theirs, strict=True)]
    assert [None, None] == [weight.grad for weight in mine]


def test_tokens_are_the_next_ones_and_a_few_come_often():
    ((ids, targets),) = discover.module("recipes.data").batches(tiny("dense"), 1, 0, "cpu")

    assert torch.equal(ids[:, 1:], targets[:, :-1])
    assert (ids < 11).float().mean() > 0.4  # half of the logarithm of 128 lies below 11.3


@pytest.mark.parametrize("tensorboard", [True, False])
def test_scalars_keep_every_bit_in_both_formats(tensorboard, tmp_path, monkeypatch):
    scalars = discover.module("recipes.scalars")
    monkeypatch.setattr(scalars, "tensorboard_installed", lambda: tensorboard)
    values = [1 / 3, 1e-42, 16777217.0, 5.960464477539063e-08]
    with scalars.Scalars(tmp_path / "ours") as written:
        for value in values:
            written.add(loss=torch.tensor(value))
    lines = [{"step": step, "loss": torch.tensor(value).item()} for step, value in enumerate(values)]
    expected = tmp_path / "expected"
    expected.mkdir()
    (expected / "scalars.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    read = [run.streams for run in (scalars_in(tmp_path / "ours"), scalars_in(expected))]
    ours, theirs = ([scalar.value for scalar in next(iter(streams.values())).scalars.values()] for streams in read)

    assert theirs == ours


def scalars_in(path):
    from perfgate.determinism.metrics import read_run

    return read_run(path)


def test_verify_sees_a_run_of_another_seed(tmp_path, device):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        trained(tiny("dense"), "deterministic", device, seed=seed, folder=tmp_path / name)

    same, other = (verify(tmp_path / "a", tmp_path / name) for name in ("b", "c"))

    assert (True, 9, False) == (same.equal, same.values, other.equal)


def test_scalars_are_written_when_a_step_fails(tmp_path):
    scalars = discover.module("recipes.scalars")
    written = scalars.Scalars(tmp_path / "run")
    written.add(loss=torch.tensor(2.0))

    written.__exit__(RuntimeError, RuntimeError("out of memory"), None)

    assert [1] == [len(stream.scalars) for stream in scalars_in(tmp_path / "run").streams.values()]
