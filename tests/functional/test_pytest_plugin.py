"""The plugin in someone else's repository: pytester makes one, a fresh pytest runs it."""

from importlib.metadata import entry_points

import pytest

pytest_plugins = ["pytester"]

RACY = """
import torch
import pytest

class Racy:
    __name__ = "racy_combine"
    calls = 0
    def __call__(self, x):
        self.calls += 1
        return x + (self.calls > 2)
"""


@pytest.fixture
def run(pytester):
    def run(source, *arguments):
        pytester.makepyfile(RACY + source)
        # -p no:perfgate: the entry point, where installed; the module is loaded by name so that this tests the checkout
        return pytester.runpytest_subprocess("-p", "no:perfgate", "-p", "perfgate.pytest_plugin", *arguments)

    return run


def test_the_plugin_is_an_entry_point():
    assert [entry.value for entry in entry_points(group="pytest11") if entry.name == "perfgate"] == ["perfgate.pytest_plugin"]


def test_equal_replays_pass_and_the_summary_says_how_many_and_that_nothing_proved_it(run):
    result = run("""
def test_ok(bit_exact):
    seen = bit_exact(lambda x: x * 2, (torch.ones(3),), what="double")
    assert seen.compared == 2
""")

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*1 checks, 2 replays compared, 0 checks differ", "unproven sensitivity: no test called*"])


def test_a_difference_fails_with_the_place_and_without_a_traceback_of_the_harness(run):
    result = run("""
def test_racy(bit_exact):
    bit_exact(Racy(), torch.zeros(4))
""")

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "racy_combine: 1 of 2 replays differ from the first run",
            "*run 3: output: 4/4 differ, the first at [[]0]: 0.0 (0x00000000) against 1.0 (0x3f800000); max |delta| 1",
        ]
    )
    assert "replay.py" not in result.stdout.str()


def test_the_marker_gives_the_options_and_the_command_line_wins(run):
    source = """
@pytest.mark.bit_exact(replays=6)
def test_marked(bit_exact):
    print("compared", bit_exact(lambda: torch.ones(1)).compared)
"""

    run(source, "-s").stdout.fnmatch_lines(["*compared 5*"])
    run(source, "-s", "--perfgate-replays", "9").stdout.fnmatch_lines(["*compared 8*"])


def test_a_marked_test_that_compares_nothing_fails(run):
    result = run("""
@pytest.mark.bit_exact
def test_forgot():
    pass

@pytest.mark.bit_exact
def test_unused(bit_exact):
    pass

@pytest.mark.bit_exact
def test_raises(bit_exact):
    raise ValueError("its own error")
""")

    result.assert_outcomes(failed=3)
    result.stdout.fnmatch_lines(["*marked bit_exact, but nothing was compared*", "*ValueError: its own error*"])


def test_modules_and_deterministic_mode(run):
    result = run("""
@pytest.mark.bit_exact(deterministic=True)
def test_module(bit_exact):
    assert torch.are_deterministic_algorithms_enabled()
    assert bit_exact(torch.nn.Linear(3, 2), torch.ones(4, 3)).tensors == 3

def test_after():
    assert not torch.are_deterministic_algorithms_enabled()
""")

    result.assert_outcomes(passed=2)


def test_a_control_is_reported_with_xdist_too(run):
    source = """
def test_claim(bit_exact):
    assert bit_exact.differing(Racy(), torch.zeros(2), replays=4) == 2
    bit_exact.control(Racy(), torch.zeros(2), replays=5)
    bit_exact(lambda x: x, torch.zeros(2))
"""

    for arguments in ((), ("-n", "1")):
        result = run(source, *arguments)
        result.assert_outcomes(passed=1)
        result.stdout.fnmatch_lines(["this harness saw racy_combine differ in 3 of 4 replays"])


@pytest.mark.parametrize("replays", ["1", "0", "many"])
def test_replays_that_compare_nothing_are_a_usage_error(run, replays):
    result = run("", "--perfgate-replays", replays)

    assert result.ret == 4
    result.stderr.fnmatch_lines(["*compares nothing: give at least 2*"])


def test_an_unknown_marker_option_is_an_error_that_lists_the_known_ones(run):
    result = run("""
@pytest.mark.bit_exact(repeats=3)
def test_typo(bit_exact):
    bit_exact(lambda: torch.ones(1))
""")

    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*bit_exact marker has no option repeats; it has replays, *"])


def test_a_suite_that_does_not_use_it_never_imports_torch(pytester):
    pytester.makepyfile("""
import sys
def test_light():
    assert "torch" not in sys.modules
    assert "pandas" not in sys.modules
""")

    result = pytester.runpytest_subprocess("-p", "no:perfgate", "-p", "perfgate.pytest_plugin")
    result.assert_outcomes(passed=1)
    assert "perfgate:" not in result.stdout.str()
