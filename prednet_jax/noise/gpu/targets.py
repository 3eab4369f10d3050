"""Describes GPUs by name in the form that XLA's compiler needs.

The compiler knows a device only by a text, its `GpuTargetConfigProto`
(xla/stream_executor/device_description.proto). Figures of architectures come from the
CUDA C++ programming guide ("Technical specifications per compute capability"), figures
of cards from NVIDIA's data sheets (V100, A100, H100 and B200 as in XLA's own
xla/backends/gpu/target_config/specs).
"""

import re
from typing import NamedTuple

from prednet_jax.noise.errors import NoiseError, one_of

# By compute capability: float32 units, threads and bytes of shared memory of a
# multiprocessor, and the bytes of shared memory that one block can request.
ARCHITECTURES = {
    (5, 0): (128, 2048, 65536, 49152),
    (5, 2): (128, 2048, 98304, 49152),
    (6, 1): (128, 2048, 98304, 49152),
    (7, 0): (64, 2048, 98304, 98304),
    (7, 5): (64, 1024, 65536, 65536),
    (8, 0): (64, 2048, 167936, 166912),
    (8, 9): (128, 1536, 102400, 101376),
    (9, 0): (128, 2048, 233472, 232448),
    (10, 0): (128, 2048, 233472, 232448),
}


class Card(NamedTuple):
    """A GPU: sizes in bytes, bandwidth of the memory in bytes per second, GHz."""

    title: str
    capability: tuple[int, int]
    multiprocessors: int
    memory: int
    bandwidth: float
    l2: int
    clock: float

    @property
    def sm(self) -> str:
        """Returns the architecture as the compiler names it, such as `sm_61`."""
        major, minor = self.capability
        return f"sm_{major}{minor}"

    @property
    def operations(self) -> float:
        """The peak float32 operations per second; a fused multiply-add is two."""
        fpus, *_ = ARCHITECTURES[self.capability]
        return 2e9 * self.clock * fpus * self.multiprocessors

    def config(self) -> str:
        """Returns XLA's description of the GPU."""
        fpus, threads, shared, optin = ARCHITECTURES[self.capability]
        major, minor = self.capability
        extension = "ACCELERATED_FEATURES" if major >= 9 else "NONE"
        return f"""gpu_device_info {{
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: {shared}
  threads_per_core_limit: {threads}
  core_count: {self.multiprocessors}
  fpus_per_core: {fpus}
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: {self.bandwidth:.0f}
  l2_cache_size: {self.l2}
  clock_rate_ghz: {self.clock}
  device_memory_size: {self.memory}
  shared_memory_per_block_optin: {optin}
  cuda_compute_capability {{
    major: {major} minor: {minor} feature_extension: {extension}
  }}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
device_description_str: "{self.title}"
"""


_GB, _MB = 2**30, 2**20

CARDS = {
    "gtx750ti": Card("GTX 750 Ti", (5, 0), 5, 2 * _GB, 86.4e9, 2 * _MB, 1.085),
    "gtx970": Card("GTX 970", (5, 2), 13, 4 * _GB, 224e9, 7 * _MB // 4, 1.178),
    "gtx1080": Card("GTX 1080", (6, 1), 20, 8 * _GB, 320e9, 2 * _MB, 1.733),
    "gtx1080ti": Card("GTX 1080 Ti", (6, 1), 28, 11 * _GB, 484e9, 11 * _MB // 4, 1.582),
    "rtx2060super": Card("RTX 2060 Super", (7, 5), 34, 8 * _GB, 448e9, 4 * _MB, 1.65),
    "rtx2070super": Card("RTX 2070 Super", (7, 5), 40, 8 * _GB, 448e9, 4 * _MB, 1.77),
    "rtx2080ti": Card("RTX 2080 Ti", (7, 5), 68, 11 * _GB, 616e9, 11 * _MB // 2, 1.545),
    "titanrtx": Card("Titan RTX", (7, 5), 72, 24 * _GB, 672e9, 6 * _MB, 1.77),
    "v100": Card(
        "Tesla V100-SXM2-16GB", (7, 0), 80, 16935682048, 898.048e9, 6291456, 1.53
    ),
    "a100": Card("A100-SXM4-40GB", (8, 0), 108, 42331013120, 1555.2e9, 41943040, 1.41),
    "h100": Card("H100 80GB HBM3", (9, 0), 132, 84942979072, 3352.32e9, 52428800, 1.98),
    "h200": Card("H200 141GB HBM3e", (9, 0), 132, 141 * 10**9, 4.8e12, 52428800, 1.98),
    "b200": Card("B200", (10, 0), 148, 191514411008, 7672.32e9, 132644864, 1.965),
    "rtx4090": Card("RTX 4090", (8, 9), 128, 24 * _GB, 1008e9, 72 * _MB, 2.52),
}


def described(gpu: str) -> tuple[str, tuple[int, int]]:
    """Returns XLA's description of a GPU, by name or given, and its capability."""
    if not (isinstance(gpu, str) and "gpu_device_info" in gpu):
        one_of("gpu", gpu, list(CARDS))
        return CARDS[gpu].config(), CARDS[gpu].capability
    numbers = r"cuda_compute_capability\s*{\s*major:\s*(\d+)(?:\s*minor:\s*(\d+))?"
    version = re.search(numbers, gpu)
    if version is None:
        raise NoiseError("gpu: expected a description with cuda_compute_capability")
    return gpu, (int(version[1]), int(version[2] or 0))
