"""What stands beside a time: wording, devices, and whether others disturbed it."""

import pytest

from jaxattn import conditions as conditions_file


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.234e-6, "1.23 µs"), (9.996e-5, "100 µs"), (9.996e-4, "1.00 ms"), (0.0123, "12.3 ms"), (1.5, "1.50 s")],
)
def test_durations_have_three_digits(seconds, text):
    assert conditions_file.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.744, "0.74×"), (0.999, "1.0×"), (3.14, "3.1×"), (9.96, "10×"), (48.2, "48×")]
)
def test_factors_have_two_digits(value, text):
    assert conditions_file.factor(value) == text


def test_another_device_is_named():
    assert "XLA uses all cores" in conditions_file.describe({"device": {"jax": "cpu"}})
    assert "JAX ON ANOTHER DEVICE: NVIDIA" in conditions_file.describe({"device": {"jax": "NVIDIA"}})


def test_own_work_is_not_work_elsewhere(monkeypatch):
    stat = ["cpu  200 0 100 9999 50 10 10 80 0 0\n", "cpu  500 0 100 9999 90 10 10 80 0 0\n"]
    monkeypatch.setattr(conditions_file.Path, "read_text", lambda path: stat.pop(0))
    monkeypatch.setattr(conditions_file.os, "sysconf", lambda name: 100)
    for name, times in {"process_time": [50.0, 52.0], "perf_counter": [7.0, 9.0]}.items():
        monkeypatch.setattr(conditions_file.time, name, iter(times).__next__)
    assert conditions_file.BusyElsewhere().cores() == 0.5  # 3 s of the machine, 2 s of them ours, within 2 s


def test_a_disturbed_measurement_says_so(monkeypatch):
    seconds = iter([100.0, 103.0])
    monkeypatch.setattr(conditions_file.BusyElsewhere, "_others", staticmethod(lambda: next(seconds)))
    clock = iter([10.0, 12.0])
    monkeypatch.setattr(conditions_file.time, "perf_counter", lambda: next(clock))
    busy = conditions_file.BusyElsewhere().cores()
    assert busy == 1.5
    assert "kept 1.5 cores busy" in conditions_file.describe({"cores_busy_elsewhere": busy})
    for quiet in (None, 0.0, conditions_file.BUSY):
        assert conditions_file.warning({"cores_busy_elsewhere": quiet}) is None
