"""The machine below: processor, cores, and graphics processors, found without the library."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import math
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """A graphics processor of this machine, and the CMake flag of a library build that can use it."""

    name: str
    backend: str
    flag: str

    @property
    def install_line(self) -> str:
        """The shell command that builds the library for this GPU."""
        build = f'CMAKE_ARGS="-D{self.flag}=on" pip install --force-reinstall --no-cache-dir llama-cpp-python'
        # cmd.exe knows no such prefix; its own way to set a variable for what follows
        windows = f'set "CMAKE_ARGS=-D{self.flag}=on" && ' + build.split('" ', 1)[1]
        return windows if platform.system() == "Windows" else build


def find_gpu(root: Path = ROOT, system: str | None = None, machine: str | None = None) -> FoundGpu | None:
    """The GPU most worth using: NVIDIA, then AMD, Apple, Intel; None where none is seen.

    `root`: where /proc and /sys are looked for; `system`, `machine`: as `platform` has them (for tests).
    """
    if name := _nvidia(root):
        return FoundGpu(name, "CUDA", "GGML_CUDA")
    if name := _drm(root, "0x1002", "AMD GPU"):
        return FoundGpu(name, *_amd_backend(root))
    if (system or platform.system(), machine or platform.machine()) == ("Darwin", "arm64"):
        return FoundGpu("Apple silicon GPU", "Metal", "GGML_METAL")
    if name := _drm(root, "0x8086", "Intel GPU"):
        return FoundGpu(name, "Vulkan", "GGML_VULKAN")
    return None


def _nvidia(root: Path) -> str:
    """Name of the first NVIDIA GPU: from the driver's /proc files, else (WSL, Windows) from nvidia-smi."""
    for info in sorted(root.glob("proc/driver/nvidia/gpus/*/information")):
        for line in _text(info).splitlines():
            if line.startswith("Model:"):
                return _called("NVIDIA", line.partition(":")[2].strip())
        return "NVIDIA GPU"
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return ""
    try:
        query = [smi, "--query-gpu=name", "--format=csv,noheader"]
        answer = subprocess.run(query, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = answer.stdout.split("\n") if answer.returncode == 0 else []
    return _called("NVIDIA", lines[0].strip()) if lines and lines[0].strip() else ""


def _called(vendor: str, name: str) -> str:
    return name if vendor.lower() in name.lower() else f"{vendor} {name}"


def _drm(root: Path, vendor: str, what: str) -> str:
    """Name of the first display adapter of a PCI vendor in /sys/class/drm, or nothing."""
    for device in sorted(root.glob("sys/class/drm/card*/device")):
        if _text(device / "vendor").strip() == vendor:
            product = _text(device / "product_name").strip()
            return product or f"{what} (PCI {vendor[2:]}:{_text(device / 'device').strip()[2:]})"
    return ""


def _amd_backend(root: Path) -> tuple[str, str]:
    """ROCm where its runtime is there; else Vulkan, which needs nothing but the graphics driver."""
    rocm = shutil.which("rocminfo") or (root / "opt/rocm").exists()
    return ("ROCm", "GGML_HIP") if rocm else ("Vulkan", "GGML_VULKAN")


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


@functools.cache
def processor_id() -> str:
    """Model name of the processor and a hash of its feature flags, such as "AMD EPYC 7B13 #1a2b3c4d"."""
    name, flags = _cpuinfo(_text(ROOT / "proc/cpuinfo"))
    if not name:
        # not platform.processor(): it starts `uname` as a process
        name = _sysctl("machdep.cpu.brand_string") or os.environ.get("PROCESSOR_IDENTIFIER", "")
    digest = hashlib.sha256(" ".join(flags).encode()).hexdigest()[:8]
    return f"{name or platform.machine() or 'unknown processor'} #{digest}"


def _cpuinfo(text: str) -> tuple[str, list[str]]:
    """Name and sorted features of the first processor in /proc/cpuinfo, of x86 or ARM."""
    first: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        first.setdefault(key.strip(), value.strip())
    arm = " ".join(first[k] for k in ("CPU implementer", "CPU part", "CPU variant") if k in first)
    features = first.get("flags") or first.get("Features") or first.get("isa") or ""
    return first.get("model name") or (arm and f"ARM {arm}"), sorted(features.split())


def _sysctl(name: str) -> str:
    """A text value of macOS's sysctl, without starting a process."""
    if platform.system() != "Darwin":
        return ""
    value, size = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
    sysctl = ctypes.CDLL(None).sysctlbyname
    failed = sysctl(name.encode(), value, ctypes.byref(size), None, ctypes.c_size_t(0))
    return "" if failed else value.value.decode(errors="replace")


def other_load() -> float | None:
    """How many processes of this machine wanted to compute during the last minute, None where it does not say."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def busy(load: float) -> bool:
    """Whether timings will waver under so much load."""
    return load > 0.5 * physical_cores()


def physical_cores(root: Path = ROOT) -> int:
    """Physical cores this process may use: no more than its affinity and its cgroup's quota; at least 1."""
    import psutil

    bounds = [psutil.cpu_count(logical=False) or os.cpu_count() or 1]
    if hasattr(os, "sched_getaffinity"):
        bounds.append(len(os.sched_getaffinity(0)))
    bounds += _quotas(root)
    return max(1, min(bounds))


def _quotas(root: Path) -> list[int]:
    """Whole CPUs that cgroups allow: v2's cpu.max here and in each parent, and v1's cfs quota."""
    base = root / "sys/fs/cgroup"
    own = next((x[3:] for x in _text(root / "proc/self/cgroup").splitlines() if x.startswith("0::")), "/")
    group = base / own.strip().lstrip("/")
    found = [_text(g / "cpu.max").split() for g in (group, *group.parents) if g.is_relative_to(base)]
    found.append([_text(base / "cpu" / f"cpu.cfs_{part}_us").strip() for part in ("quota", "period")])
    pairs = [f for f in found if len(f) == 2 and f[0].isdigit() and f[1].isdigit()]
    # rounded up: 1.5 CPUs run two threads better than one
    return [math.ceil(int(quota) / int(period)) for quota, period in pairs]
