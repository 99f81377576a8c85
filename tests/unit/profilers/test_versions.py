import pytest

from perfgate.profilers.versions import numbers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2022.4.2.1-df9881f", (2022, 4, 2, 1)),
        ("2025.3.1", (2025, 3, 1)),
        ("2.13.0+cu130", (2, 13, 0)),
        ("0.3rc1", (0,)),
        ("", ()),
        ("unknown", ()),
    ],
)
def test_versions_are_compared_as_numbers(text: str, expected: tuple[int, ...]) -> None:
    assert expected == numbers(text)
