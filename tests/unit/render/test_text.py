import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.render._text import cut, shorten, visible, whole
from tests.unit.render import samples


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, "
            "at::detail::Array<char *, (int)1>>(int, T2, T3)",
            "vectorized_elementwise_kernel<(int)4, FillFunctor<float>, A…",
        ),
        ("triton_red_fused_add_0", "triton_red_fused_add_0"),
        ("void (anonymous namespace)::indexAdd<float>(float*)", "indexAdd<float>"),
        ("sm90_xmma_gemm_bf16bf16_tn", "sm90_xmma_gemm_bf16bf16_tn"),
        ("[CUDA memcpy DtoD]", "[CUDA memcpy DtoD]"),
        ("", ""),
        ("(odd)", "(odd)"),
    ],
)  # fmt: skip
def test_a_kernels_name_keeps_what_identifies_it(name, expected):

    assert expected == shorten(name, 60)


def test_100_kb_of_templates_are_short_on_the_page_and_capped_in_full():

    assert len(shorten(samples.HUGE)) <= 60
    assert whole(samples.HUGE).endswith("more characters in result.json)")
    assert len(whole(samples.HUGE)) < 2100


@given(st.text(max_size=300))
def test_visible_text_prints_on_one_line_and_steers_nothing(text):
    shown = visible(text)

    assert shown.encode("utf-8").decode("utf-8") == shown
    assert len(shown.splitlines()) <= 1
    assert not [c for c in shown if c != " " and unicodedata.category(c)[0] in "CZ"]


@given(st.text(max_size=300), st.integers(2, 80))
def test_cut_keeps_its_limit(text, limit):

    assert len(cut(text, limit)) <= limit
