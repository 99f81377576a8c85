import pytest

from perfgate.determinism.coverage.cuda_text import kernel_sites
from perfgate.determinism.coverage.patterns import DEFAULTS, Patterns
from perfgate.determinism.coverage.syntax import Unparsable, call_sites

PATTERNS = Patterns.of(DEFAULTS)


def sites(source):
    """The sites, by both ways: the byte filter must never drop what the syntax tree finds."""
    content = source.encode()
    found = call_sites(content, PATTERNS)
    assert not found or PATTERNS.may_match(content)
    return [(site.line, site.kind, site.what) for site in found]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import triton\n@triton.jit\ndef k(): ...", [(2, "triton", "@triton.jit")]),
        ("from triton import jit as j\n@j\ndef k(): ...", [(2, "triton", "@triton.jit")]),
        ("from triton import *\n@jit\ndef k(): ...", [(2, "triton", "@triton.jit")]),
        (
            "import triton as t\n@t.autotune(configs=[], key=[])\n@t.jit\ndef k(): ...",
            [(2, "triton", "triton.autotune"), (3, "triton", "@triton.jit")],
        ),
        ("import triton\nk = triton.jit(f)", [(2, "triton", "triton.jit")]),
        ("def f():\n    import triton\n    return triton.jit(g)", [(3, "triton", "triton.jit")]),
        ("import os, triton\n@triton.jit\ndef k(): ...", [(2, "triton", "@triton.jit")]),
        ("import tilelang\n@tilelang.jit(out_idx=[1])\ndef k(): ...", [(2, "tilelang", "tilelang.jit")]),
        ("import cutlass.cute as cute\n@cute.kernel\ndef k(): ...", [(2, "cute", "@cutlass.cute.kernel")]),
        ("import cuda.tile as ct\n@ct.kernel\ndef k(): ...", [(2, "cute", "@cuda.tile.kernel")]),
        ("import torch\n@torch.compile\ndef f(): ...", [(2, "torch.compile", "@torch.compile")]),
        ("import torch\nf = torch.compile(g, dynamic=False)", [(2, "torch.compile", "torch.compile")]),
        ("from torch import compile as c\nf = c(g)", [(2, "torch.compile", "torch.compile")]),
        ("import torch\nfuser = torch.compile\n@fuser\ndef f(): ...", [(3, "torch.compile", "@torch.compile")]),
        (
            "from torch.utils import cpp_extension as ce\nce.CUDAExtension('x', [])",
            [(2, "cuda-ext", "torch.utils.cpp_extension.CUDAExtension")],
        ),
        ("from torch.utils.cpp_extension import load\nm = load('x', [])", [(2, "cuda-ext", "torch.utils.cpp_extension.load")]),
        ("x.scatter_add_(0, i, y)", [(1, "torch-op", ".scatter_add_(")]),
        ("f(x)[0].index_add(0, i, y)", [(1, "torch-op", ".index_add(")]),
        ("import torch\ntorch.scatter_reduce(x, 0, i, y, 'sum')", [(2, "torch-op", ".scatter_reduce(")]),
        ("from torch import index_add\nindex_add(x, 0, i, y)", [(2, "torch-op", ".index_add(")]),
        ("x.index_put_((i,), y, accumulate=True)", [(1, "torch-op", ".index_put_(")]),
        ("x.index_put_((i,), y, True)", [(1, "torch-op", ".index_put_(")]),
        ("x.index_put_((i,), y, accumulate=flag)", [(1, "torch-op", ".index_put_(")]),
        ("import torch\ntorch.index_put(x, (i,), y, True)", [(2, "torch-op", ".index_put(")]),
        ("x.bincount(weights=w)", [(1, "torch-op", ".bincount(")]),
        ("import torch\ntorch.bincount(x, w)", [(2, "torch-op", ".bincount(")]),
        ("import torch.nn.functional as F\nF.embedding(i, w)", [(2, "torch-op", "torch.nn.functional.embedding")]),
        ("from torch.nn import functional as F\nF.embedding(i, w)", [(2, "torch-op", "torch.nn.functional.embedding")]),
        ("import torch\ntorch.nn.functional.embedding(i, w)", [(2, "torch-op", "torch.nn.functional.embedding")]),
        (
            "try:\n    from flash_attn import flash_attn_func\nexcept ImportError:\n"
            "    flash_attn_func = None\nflash_attn_func(q, k, v)",
            [(5, "external-lib", "flash_attn.flash_attn_func")],
        ),
        ("from flash_attn import flash_attn_func as f\ng = f\ng(q, k, v)", [(3, "external-lib", "flash_attn.flash_attn_func")]),
        (
            "from functools import partial\nfrom flash_attn import flash_attn_func\nf = partial(flash_attn_func, causal=True)",
            [(3, "external-lib", "partial of flash_attn.flash_attn_func")],
        ),
        (
            "import transformer_engine.pytorch as te\nclass Linear(te.Linear): ...",
            [(2, "te-wrapper", "class of transformer_engine.pytorch.Linear")],
        ),
        (
            "import transformer_engine as te\nte.pytorch.LayerNorm(8)",
            [(2, "te-wrapper", "transformer_engine.pytorch.LayerNorm")],
        ),
    ],
)  # fmt: skip
def test_call_sites_are_found_however_they_are_written(source, expected):
    assert expected == sites(source)


@pytest.mark.parametrize(
    "source",
    [
        "import triton\nimport triton.language as tl",
        "from flash_attn import flash_attn_func",
        "import transformer_engine as te\nHAVE = te is not None",
        "try:\n    import causal_conv1d\nexcept ImportError:\n    causal_conv1d = None",
        "# @triton.jit\nimport triton",
        '"""Uses x.scatter_add_(0, i, y) and @triton.jit."""\nimport triton',
        "import torch\ntext = 'torch.compile(model)'",
        "def f():\n    '''x.index_add_(0, i, y)'''",
        "import re\nimport torch\np = re.compile('x')",
        "import numpy as np\nnp.bincount(x, weights=w)",
        "x.bincount()",
        "x.index_put_((i,), y)",
        "x.index_put_((i,), y, accumulate=False)",
        "import torch\ntorch.index_put(x, (i,), y)",
        "class Optimizer:\n    def scatter_add_(self): ...",
        "from .ops import jit\n@jit\ndef f(): ...",
        "from flash_attn import flash_attn_func\nNAME = flash_attn_func.__name__\nflash_attn_func",
        "import transformer_engine as te\nte.get_cudnn_version()\nte.pytorch.is_fp8_available()",
        "from tensorflow import scatter_add\nscatter_add(x)",
        "import torch\nx = torch.nn.Embedding(4, 4)",
        "class warp: ...\nwarp.kernel(x)",
        "if TYPE_CHECKING:\n    from mamba_ssm import Mamba\ndef f(m: Mamba) -> 'Mamba': ...",
        "",
    ],
)
def test_imports_comments_strings_and_definitions_are_no_call_sites(source):
    assert sites(source) == []


def test_a_file_that_no_python_can_read_is_told():
    for content in (b"import triton\nprint 'x'\n", b"import triton\n\0", b"import triton\nx = '\xff'\n"):
        with pytest.raises(Unparsable):
            call_sites(content, PATTERNS)


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"__global__ void k() {}\n", [1]),
        (b"// __global__\n/* k<<<1, 2>>>();\n */\nk<<<g, b>>>(x);\n", [4]),
        (b'const char* s = "__global__ \\" <<<";\n', []),
        (b"#include <cuda.h>\nint f();\n", []),
    ],
)
def test_cuda_files_count_outside_comments_and_strings(content, lines):
    assert lines == [site.line for site in kernel_sites(content)]


def test_a_project_adds_and_drops_patterns():
    patterns = Patterns.of({"external-lib": ["mylib.fused_*", "other.*"], "torch-op": [".my_racy_"]})
    source = b"import mylib, other\nmylib.fused_add(x)\nmylib.plain(x)\nother.run(x)\nx.my_racy_(1)\nx.scatter_add_(0, i, y)\n"

    assert patterns.may_match(source)
    assert [site.line for site in call_sites(source, patterns)] == [2, 4, 5]
