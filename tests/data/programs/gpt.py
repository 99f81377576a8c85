"""A small GPT trained the way many are: one file, one loop, NVTX ranges, DDP where a launcher sets RANK."""

import math
import os

import nvtx
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

# -----------------------------------------------------------------------------
batch_size = 4
block_size = 16
vocab_size = 64
n_layer = 2
n_head = 2
n_embd = 32
learning_rate = 1e-3
max_iters = int(os.environ.get("MAX_ITERS", "8"))
grad_clip = 1.0
# -----------------------------------------------------------------------------

ddp = int(os.environ.get("RANK", -1)) != -1
device = "cuda" if torch.cuda.is_available() else "cpu"
if ddp:
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    rank = dist.get_rank()
else:
    rank = 0
torch.manual_seed(1337 + rank)


def span(name):
    return nvtx.annotate(name)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(n_embd), nn.LayerNorm(n_embd)
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.mlp = nn.Sequential(nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, n_head, c // n_head).transpose(1, 2) for y in self.c_attn(self.ln_1(x)).split(n_embd, dim=2))
        with span("attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab_size, n_embd), nn.Embedding(block_size, n_embd)
        self.h = nn.ModuleList(Block() for _ in range(n_layer))
        self.ln_f, self.lm_head = nn.LayerNorm(n_embd), nn.Linear(n_embd, vocab_size, bias=False)

    def forward(self, idx, targets):
        x = self.wte(idx) + self.wpe(torch.arange(idx.shape[1], device=idx.device))
        for block in self.h:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        return F.cross_entropy(logits.view(-1, vocab_size), targets.reshape(-1))


def get_batch():
    data = torch.randint(vocab_size, (batch_size, block_size + 1), device=device)
    return data[:, :-1], data[:, 1:]


model = GPT().to(device)
if ddp:
    model = DDP(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)

for iter_num in range(max_iters):
    with span("iteration"):
        X, Y = get_batch()
        with span("forward"):
            loss = model(X, Y)
        with span("backward"):
            loss.backward()
        with span("optimizer"):
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        lossf = loss.item()
    if rank == 0:
        print(f"iter {iter_num}: loss {lossf:.4f}, norm {norm.item():.4f}", flush=True)  # noqa: T201
assert math.isfinite(lossf)
if ddp:
    dist.destroy_process_group()
