"""Energy counters of the machine: NVML for NVIDIA GPUs, RAPL for processors."""

import contextlib
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

RAPL = Path("/sys/class/powercap")
NONE = (
    "not measured: neither NVML (pynvml, nvidia-smi) nor RAPL "
    "(/sys/class/powercap) can be read here"
)


def counter(platform: str) -> tuple[str, Callable[[], float] | None]:
    """What counts joules here, and a function that reads it.

    Args:
        platform: of the devices measured; a GPU's energy says nothing of a CPU's.

    Returns:
        A name, and joules since some moment; or the reason why not, and None.
    """
    found = None
    if platform in ("gpu", "cuda"):
        found = _nvml() or _smi()
    elif platform == "cpu":
        found = _rapl()
    return found or (NONE, None)


def _nvml() -> tuple[str, Callable[[], float]] | None:
    try:
        import pynvml

        pynvml.nvmlInit()
        device = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(device)
    except Exception:  # no library, no driver, or a GPU without the counter
        return None
    return (
        "NVML, total energy of GPU 0",
        lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(device) / 1e3,
    )


def _smi() -> tuple[str, Callable[[], float]] | None:
    """Power of the moment times the time since the last look: coarse."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    command = [tool, "-i", "0", "--query-gpu=power.draw", "--format=csv,noheader"]

    def watts() -> float:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return float(done.stdout.split()[0])

    try:
        watts()
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return None
    last = {"time": time.perf_counter(), "joules": 0.0}

    def joules() -> float:
        now = time.perf_counter()
        last["joules"] += watts() * (now - last["time"])
        last["time"] = now
        return last["joules"]

    return "nvidia-smi, power draw of GPU 0 at the end of each case", joules


def _rapl() -> tuple[str, Callable[[], float]] | None:
    """The packages' counters; the domains inside a package are part of them."""
    counters = sorted(RAPL.glob("intel-rapl:[0-9]*"))
    packages = [path for path in counters if path.name.count(":") == 1]
    ranges, files = [], []
    for path in packages:
        with contextlib.suppress(OSError, ValueError):
            int((path / "energy_uj").read_text())
            ranges.append(int((path / "max_energy_range_uj").read_text()))
            files.append(path / "energy_uj")
    if not files:
        return None
    last = [int(file.read_text()) for file in files]
    total = [0]

    def joules() -> float:
        for i, file in enumerate(files):
            now = int(file.read_text())
            # The counter starts again at 0 when it is full.
            total[0] += (now - last[i]) % ranges[i]
            last[i] = now
        return total[0] / 1e6

    return f"RAPL, {len(files)} processor package(s), whatever else they do", joules
