import pytest

from perfgate.determinism.contract import STANDARD, ContractError, check, child_environment
from perfgate.determinism.project import EXAMPLE, contract_of
from perfgate.errors import UsageError


def test_without_a_table_it_is_the_standard_contract(tmp_path):
    assert contract_of(tmp_path) is STANDARD
    (tmp_path / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    assert contract_of(tmp_path) is STANDARD


def test_the_example_works(tmp_path):
    (tmp_path / "pyproject.toml").write_text(EXAMPLE)

    contract = contract_of(tmp_path)

    assert child_environment({}, "deterministic", contract)["MYLIB_DETERMINISTIC"] == "1"
    assert len(contract.variables) == len(STANDARD.variables) + 1
    with pytest.raises(ContractError) as raised:
        check({"MYLIB_DETERMINISTIC": "0"}, "deterministic", options=["--my-fusion", "--tp-comm-overlap"], contract=contract)
    assert 3 == raised.value.text.count("\n  - ")


def test_a_project_may_tighten_a_standard_variable(tmp_path):
    (tmp_path / "pyproject.toml").write_text(
        '[tool.perfgate.contract.variables.NCCL_ALGO]\naccepts = ["Ring"]\nfill = "Ring"\n'
    )

    with pytest.raises(ContractError, match="NCCL_ALGO='CollnetDirect' is not Ring"):
        check({"NCCL_ALGO": "CollnetDirect"}, "deterministic", contract=contract_of(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tool.perfgate.contract]\nvariable = 1\n", "unknown key 'variable'"),
        ("[tool.perfgate.contract]\nvariables = 1\n", "are tables"),
        ("[tool.perfgate]\ncontract = 1\n", "is no table"),
        ("[tool.perfgate.contract.variables]\nX = 1\n", "X is no table"),
        ("[tool.perfgate.contract.variables.X]\nfill = '1'\n", "X: give accepts or pattern"),
        ("[tool.perfgate.contract.variables.X]\naccepts = ['1']\npattern = '1'\n", "X: give accepts or pattern"),
        ("[tool.perfgate.contract.variables.X]\naccepts = ['1']\nfil = '1'\n", "X: unknown key 'fil'"),
        ("[tool.perfgate.contract.variables.X]\naccepts = ['1']\nfill = '0'\n", "X: fill '0' is not accepted"),
        ("[tool.perfgate.contract.variables.X]\naccepts = ['1']\nfill = 1\n", "X: fill 1 is no string"),
        ("[tool.perfgate.contract.variables.X]\naccepts = []\n", "X: accepts is no list of strings"),
        ("[tool.perfgate.contract.variables.X]\npattern = '('\n", "X: missing )"),
        ("[tool.perfgate.contract.forbidden]\n'--x' = ''\n", "forbidden '--x' needs its reason"),
        ("[tool.perfgate.contract", "is no TOML"),
    ],
)
def test_what_is_malformed_is_named(tmp_path, text, message):
    (tmp_path / "pyproject.toml").write_text(text)

    with pytest.raises(UsageError) as raised:
        contract_of(tmp_path)

    assert message in raised.value.text
