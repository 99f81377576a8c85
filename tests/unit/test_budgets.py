from datetime import date
from pathlib import Path

import pytest

from perfgate import budgets
from perfgate.discover import bundled_folder, load
from perfgate.errors import UnusableError, UsageError
from tests.unit import arms
from tests.unit.arms import TODAY, known, write

WHOLE = """\
version = 1
match = ["NVIDIA H200*"]

[defaults]
overhead = "15%"
goal = "5%"
abs_floor = "2us"

[[budget]]
range = "moe/combine:*:fwd"
overhead = "-50%"
memory = "512MiB"
reason = '''
[[budget]] in a text is no table
overhead = "nor is this a key"
'''
owner = "moe"
expires = 2027-05-31

[[budget]]
range = "moe/combine:dsv3:fwd"
metric = "span"
overhead = "2.5%"
goal = "0%"
abs_floor = "0.5ms"
memory = "10%"
reason = "r"
owner = "o"
expires = "2027-01-01"
"""


def ranges():
    return [f"{op.name}:{case.name}:{phase}" for op in load() for case in op.case_list for phase in op.phases]


def test_whole_file(tmp_path):
    found = budgets.read(write(tmp_path, "h200.toml", WHOLE), TODAY)
    own, general = known(found.find("moe/combine:dsv3:fwd")), known(found.find("moe/combine:large:fwd"))

    assert ("span", 0.025, 0.0, 500_000) == (own.metric, own.overhead, own.goal, own.abs_floor_ns)
    assert (0.1, None, "2027-01-01", 20) == (own.memory_ratio, own.memory_bytes, own.expires, own.line)
    assert ("busy", -0.5, 0.05, 2000) == (general.metric, general.overhead, general.goal, general.abs_floor_ns)
    assert (None, 512 * 2**20, 9) == (general.memory_ratio, general.memory_bytes, general.line)
    assert general.reason.startswith("[[budget]] in a text")


def test_defaults_cover_a_range_without_its_own_budget(tmp_path):
    found = known(budgets.read(write(tmp_path, "h200.toml", WHOLE), TODAY).find("segment/index_add:typical:fwd"))

    assert ("*", 0.15, 4, "") == (found.range, found.overhead, found.line, found.expires)


@pytest.mark.parametrize(
    ("change", "line", "says"),
    [
        (('overhead = "-50%"', "overhead = -50%"), 11, "malformed TOML"),
        (('overhead = "-50%"', "overhead = -0.5"), 11, "budget.1.overhead: -0.5 is no percentage"),
        (('overhead = "-50%"', 'overhead = "-100%"'), 11, "a time of 0 or less"),
        (('overhead = "-50%"', 'overhead = "fifteen"'), 11, "is no percentage"),
        (('overhead = "-50%"', 'overhaed = "-50%"'), 11, "unknown key budget.1.overhaed, did you mean overhead?"),
        (('overhead = "-50%"\n', ""), 9, "missing key budget.1.overhead"),
        (('memory = "512MiB"', 'memory = "512 Mb"'), 12, "is no quantity in B, KiB, MiB, GiB, TiB"),
        (('abs_floor = "2us"', 'abs_floor = "2 minutes"'), 7, "is no quantity in ns, us, µs, ms, s"),
        (('abs_floor = "2us"', 'floor = "2us"'), 7, "unknown key defaults.floor"),
        (("[defaults]", "[default]"), 4, "unknown key default, did you mean defaults?"),
        (('owner = "moe"', 'owner = ""'), 17, "must not be empty"),
        (('metric = "span"', 'metric = "time"'), 22, "'busy', 'span', 'host' or 'step_wall'"),
        (('expires = "2027-01-01"', 'expires = "soon"'), 29, "Invalid isoformat string"),
        (('expires = "2027-01-01"', "expires = 2027-01-01T00:00:00"), 29, "is no date"),
        (("version = 1", "version = 2"), 1, "version: Input should be 1"),
        (('match = ["NVIDIA H200*"]', "match = []"), 2, "match: List should have at least 1 item"),
        (
            ('"moe/combine:dsv3:fwd"', '"moe/combine:*:fwd"'),
            20,
            "a second budget for 'moe/combine:*:fwd', the first is in line 9",
        ),
    ],
)
def test_errors_name_file_and_line(tmp_path, change, line, says):
    assert change[0] in WHOLE
    path = write(tmp_path, "broken.toml", WHOLE.replace(*change))

    with pytest.raises(UsageError) as caught:
        budgets.read(path, TODAY)

    assert f"{path}:{line}: " in caught.value.text
    assert says in caught.value.text


def test_all_errors_of_a_file_are_told_together(tmp_path):
    text = WHOLE.replace('overhead = "-50%"', "overhead = 3").replace('owner = "o"', "owner = 3")

    with pytest.raises(UsageError) as caught:
        budgets.read(write(tmp_path, "broken.toml", text), TODAY)

    assert 2 == len(caught.value.text.splitlines())


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_unreadable_file_is_a_usage_error(tmp_path, content):
    path = tmp_path / "x.toml"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(UsageError, match="can't be read"):
        budgets.read(path, TODAY)


def test_malformed_at_the_very_end_names_the_last_line(tmp_path):
    with pytest.raises(UsageError, match=r"x\.toml:2: malformed TOML"):
        budgets.read(write(tmp_path, "x.toml", 'version = 1\nmatch = ["'), TODAY)


@pytest.mark.parametrize(
    ("pattern", "range_", "expected"),
    [
        ("moe/combine:typical:fwd", "moe/combine:typical:fwd", True),
        ("moe/combine:*:fwd", "moe/combine:edge-holes:fwd", True),
        ("moe/combine:*:fwd", "moe/combine:typical:bwd", False),
        ("moe/combine", "moe/combine:typical:bwd", True),
        ("moe/*", "moe/combine:typical:bwd", True),
        ("moe", "moe/combine:typical:bwd", False),
        ("*", "anything::", True),
        ("train:attention", "train:attention::", True),
        ("layer[0]", "layer[0]::", True),
        ("layer[0]", "layer0::", False),
        ("layer?", "layer7::", True),
    ],
)
def test_patterns(pattern, range_, expected):
    assert budgets.pattern_matches(pattern, range_) is expected


@pytest.mark.parametrize(
    "less_to_more_specific",
    [
        ["*", "moe/*", "moe/combine", "moe/combine:*:fwd", "moe/combine:dsv?:fwd", "moe/combine:dsv3:fwd"],
        ["moe/combine:*:*", "moe/combine:*:fwd"],
        ["*:dsv3:*", "*:dsv3:fwd", "*combine:dsv3:fwd"],
    ],
)
def test_most_specific_pattern_wins_whatever_the_order(less_to_more_specific):
    for order in (less_to_more_specific, less_to_more_specific[::-1]):
        entries = [{"range": pattern, "overhead": "1%"} for pattern in order]
        found = known(arms.budgets(entries=entries).find("moe/combine:dsv3:fwd"))

        assert found.range == less_to_more_specific[-1]


def test_equally_specific_patterns_the_later_wins():
    entries = [{"range": "moe/combine:*:fwd", "overhead": "1%"}, {"range": "*e/combine:*:fwd", "overhead": "2%"}]
    even = [{"range": "moe/combin*:typical:*", "overhead": "1%"}, {"range": "moe/comb*:typical:*wd", "overhead": "2%"}]

    assert 0.01 == known(arms.budgets(entries=entries).find("moe/combine:x:fwd")).overhead
    assert 20 == known(arms.budgets(entries=even).find("moe/combine:typical:fwd")).line


def test_budget_counts_on_its_last_day_and_not_after():
    entries = [{"range": "moe/combine", "overhead": "1%", "expires": TODAY}]
    kept, over = arms.budgets(entries=entries), arms.budgets(entries=entries, today=date(2026, 11, 30))

    assert 0.01 == known(kept.find("moe/combine:typical:fwd")).overhead
    assert 0.15 == known(over.find("moe/combine:typical:fwd")).overhead
    assert () == kept.findings([], ["moe/combine:typical:fwd"])
    (found,) = over.findings([], ["moe/combine:typical:fwd"])
    assert "EXPIRED_BUDGET" == found.code
    assert "h200.toml:10: budget 'moe/combine' (o) expired on 2026-11-29" in found.text


def test_expired_without_defaults_is_not_budgeted():
    entries = [{"range": "moe/combine", "overhead": "1%", "expires": date(2020, 1, 1)}]
    found = arms.budgets(None, entries=entries).findings([], ["moe/combine:typical:fwd"])

    assert arms.budgets(None, entries=entries).find("moe/combine:typical:fwd") is None
    assert ["NOT_BUDGETED", "EXPIRED_BUDGET"] == [one.code for one in found]
    assert found[0].text.startswith("h200.toml:10: ")


def test_pattern_must_match_a_registered_range_or_one_of_the_run():
    entries = [{"range": "moe/combined:*:fwd", "overhead": "1%"}, {"range": "my:step", "overhead": "1%"}]
    found = arms.budgets(entries=entries).findings(["moe/combine:typical:fwd"], ["my:step::"])

    assert [("UNMATCHED_BUDGET", "did you mean 'moe/combine:typical:fwd'?")] == [(one.code, one.next) for one in found]
    assert found[0].text.startswith("h200.toml:10: budget 'moe/combined:*:fwd' matches no registered range")


def test_measured_range_without_a_budget_is_named():
    (found,) = arms.budgets(None).findings([], ["a/b:c:fwd"])

    assert "NOT_BUDGETED" == found.code
    assert "h200.toml: a/b:c:fwd has no budget" in found.text


def test_file_is_chosen_by_the_devices_name(tmp_path):
    for name, match in (("h200", "NVIDIA H200*"), ("h100", "nvidia h100*")):
        write(tmp_path, f"{name}.toml", f'version = 1\nmatch = ["{match}"]\n')

    assert "h100.toml" == Path(budgets.choose(tmp_path, "NVIDIA H100 80GB HBM3", TODAY).file).name
    with pytest.raises(UnusableError, match="no thresholds file"):
        budgets.choose(tmp_path, "Tesla T4", TODAY)
    assert "h200.toml" == Path(budgets.choose(tmp_path, "Tesla T4", TODAY, tmp_path / "h200.toml").file).name
    write(tmp_path, "all.toml", 'version = 1\nmatch = ["*"]\n')
    with pytest.raises(UnusableError, match="all match the device 'NVIDIA H200'"):
        budgets.choose(tmp_path, "NVIDIA H200", TODAY)


def test_a_broken_file_beside_the_right_one_is_not_passed_over(tmp_path):
    write(tmp_path, "h200.toml", 'version = 1\nmatch = ["NVIDIA H200*"]\n')
    write(tmp_path, "other.toml", "version = \n")

    with pytest.raises(UsageError, match=r"other\.toml:1"):
        budgets.choose(tmp_path, "NVIDIA H200", TODAY)


@pytest.mark.parametrize(("device", "provisional"), [("NVIDIA H200", False), ("NVIDIA H100 80GB HBM3", True), ("cpu", False)])
def test_bundled_files_budget_every_registered_range(device, provisional):
    found = budgets.choose(bundled_folder("thresholds"), device, TODAY)

    assert found.content.provisional is provisional
    codes = {one.code for one in found.findings(ranges(), ranges())}
    assert codes == ({"PROVISIONAL_BUDGET"} if provisional else set())


def test_cpu_budgets_judge_host_time():
    found = budgets.choose(bundled_folder("thresholds"), "cpu", TODAY)

    assert {"host"} == {found.metric(one) for one in ranges()}
