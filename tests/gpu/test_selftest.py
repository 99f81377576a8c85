import json

import pytest

from tests.functional.cli import perfgate

pytestmark = pytest.mark.gpu


def test_the_gate_can_be_trusted_on_this_card(tmp_path):
    done = perfgate("selftest", "--format", "json", "--quiet", "--out", tmp_path / "runs", timeout=290)
    told = json.loads(done.stdout)

    assert 0 == done.returncode, done.stdout + done.stderr
    assert 0.03 == told["budget"]
    assert [True] * 4 == [one["ok"] for one in told["controls"]]
