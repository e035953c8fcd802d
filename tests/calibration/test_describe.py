"""What a reader calls a device: what was recorded of it, and of an import its own words."""

import pytest

from calibration.describe import device_label


@pytest.mark.parametrize(
    ("device", "environment", "ranks", "label"),
    [
        ("cpu", {"processor": "AMD EPYC 9R14"}, 1, "AMD EPYC 9R14, one core"),
        ("cpu", {"processor": "AMD EPYC 9R14"}, 2, "AMD EPYC 9R14, 2 processes"),
        ("cpu", None, 1, "cpu"),
        ("cuda:0", {"device_name": "NVIDIA H200", "processor": "Xeon"}, 1, "NVIDIA H200"),
        ("cuda:4", {"device_name": "NVIDIA H200"}, 2, "2 x NVIDIA H200"),
        ("cuda:0", {"device_name": ""}, 1, "cuda:0"),
        ("RTX 4090", {"processor": "Xeon"}, 1, "RTX 4090"),
    ],
)
def test_a_device_has_a_name(device, environment, ranks, label) -> None:
    assert device_label(device, environment, ranks) == label
