from datetime import date

from perfgate.discover import bundled_folder
from perfgate.lint import lint
from tests.unit.arms import TODAY, write

RANGES = ["moe/combine:typical:fwd"]
HEAD = 'version = 1\nmatch = ["NVIDIA H200*"]\n[defaults]\noverhead = "15%"\n'
ENTRY = '[[budget]]\nrange = "{}"\noverhead = "1%"\nreason = "r"\nowner = "o"\nexpires = {}\n'


def codes(reasons):
    return [one.code for one in reasons]


def test_bundled_files_hold_no_error():
    files = sorted(bundled_folder("thresholds").glob("*.toml"))
    found = lint(files, [], TODAY)

    assert len(files) == found.files == 5
    assert set(codes(found.errors)) <= {"UNMATCHED_BUDGET"}  # nothing is registered in this test


def test_ranges_of_a_program_are_known_to_its_runs_alone(tmp_path):
    text = HEAD + ENTRY.format("step", "2027-05-31") + ENTRY.format("attention", "2027-05-31")
    found = lint([write(tmp_path, "a.toml", text)], RANGES, TODAY)

    assert ((), ()) == (found.errors, found.warnings)


def test_clean_file(tmp_path):
    found = lint([write(tmp_path, "a.toml", HEAD + ENTRY.format("moe/combine", "2027-05-31"))], RANGES, TODAY)

    assert (1, 1, (), ()) == (found.files, found.budgets, found.errors, found.warnings)


def test_broken_file_does_not_hide_the_others(tmp_path):
    broken = write(tmp_path, "a.toml", "version = \n")
    unmatched = write(tmp_path, "b.toml", HEAD + ENTRY.format("moe/combined", "2027-05-31"))
    found = lint([broken, unmatched, tmp_path / "missing.toml"], RANGES, TODAY)

    assert ["BROKEN_FILE", "BROKEN_FILE", "UNMATCHED_BUDGET"] == codes(found.errors)
    assert "b.toml:5" in found.errors[-1].text


def test_expired_and_soon_to_expire_are_warnings(tmp_path):
    for day, expected in (("2026-11-28", ["EXPIRED_BUDGET"]), ("2026-12-20", ["EXPIRES_SOON"]), ("2027-01-20", [])):
        found = lint([write(tmp_path, "a.toml", HEAD + ENTRY.format("moe/combine", day))], RANGES, TODAY)

        assert ([], expected) == (codes(found.errors), codes(found.warnings))


def test_range_without_a_budget_is_a_warning(tmp_path):
    text = HEAD.replace('overhead = "15%"\n', "")
    found = lint([write(tmp_path, "a.toml", text)], RANGES, date(2026, 1, 1))

    assert ["NOT_BUDGETED"] == codes(found.warnings)


def test_two_files_for_one_device(tmp_path):
    one, other = write(tmp_path, "a.toml", HEAD), write(tmp_path, "b.toml", HEAD.replace("H200*", "H200 NVL"))

    assert ["DEVICE_CLAIMED_TWICE"] == codes(lint([one, other], RANGES, TODAY).errors)
    assert [] == codes(lint([one], RANGES, TODAY).errors)
