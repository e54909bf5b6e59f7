"""What the simulator knows of each GPU model: names, memory, clocks, power, heat. Figures as the boards report them."""

from dataclasses import dataclass

from agent.simulator.fields import ConfigError


@dataclass(frozen=True)
class Board:
    """Clocks in MHz, power in W, memory in MiB, temperatures in °C; `celsius_per_watt` is the heat sink at a steady load."""

    sku: str
    model_name: str
    memory_mib: int
    reserved_mib: int
    max_sm_mhz: int
    idle_sm_mhz: int
    memory_mhz: int
    idle_watts: float
    min_limit_watts: float
    limit_watts: float
    celsius_per_watt: float
    slowdown_celsius: float
    mig: bool
    hbm: bool
    nvlink: bool


BOARDS = {
    board.sku: board
    for board in (
        Board("h100-sxm-80gb", "NVIDIA H100 80GB HBM3", 81559, 479, 1980, 345, 2619, 70, 200, 700, 0.0465, 87, True, True, True),
        Board("h100-pcie-80gb", "NVIDIA H100 PCIe", 81559, 479, 1755, 345, 1593, 48, 200, 350, 0.092, 87, True, True, False),
        Board("h100-nvl-94gb", "NVIDIA H100 NVL", 95830, 479, 1785, 345, 2619, 60, 200, 400, 0.085, 87, True, True, False),
        Board("h200-141gb", "NVIDIA H200", 143771, 612, 1980, 345, 3201, 75, 200, 700, 0.0465, 87, True, True, True),
        Board("a100-40gb", "NVIDIA A100-SXM4-40GB", 40960, 420, 1410, 210, 1215, 50, 100, 400, 0.08, 87, True, True, True),
        Board("a100-80gb", "NVIDIA A100-SXM4-80GB", 81920, 512, 1410, 210, 1593, 55, 100, 400, 0.08, 87, True, True, True),
        Board("l40s-48gb", "NVIDIA L40S", 46068, 540, 2520, 210, 9001, 35, 100, 350, 0.105, 93, False, False, False),
    )
}

# Memory positions that a profile takes, by its name without the memory size; `1g` with double memory takes two.
_SIZES = {"1g": 1, "2g": 2, "3g": 4, "4g": 4, "7g": 8}
_POSITIONS = 8
COMPUTE_SLICES = 7


def board_of(sku: str, path: str) -> Board:
    """The board of a SKU; an unknown one is a `ConfigError` at `path`."""
    if sku not in BOARDS:
        raise ConfigError(f"{path}: the simulator has no board {sku!r}, only {', '.join(sorted(BOARDS))}")
    return BOARDS[sku]


def profile_size(board: Board, profile: str, path: str) -> int:
    """How many memory positions (1-8) a MIG profile takes on this board."""
    compute, _, memory = profile.removesuffix("+me").partition(".")
    if not board.mig:
        raise ConfigError(f"{path}: {board.model_name} has no MIG")
    if compute not in _SIZES or not memory.removesuffix("gb").isdigit():
        raise ConfigError(f"{path}: {profile!r} is not a MIG profile")
    share = board.memory_mib / 1024 / _POSITIONS
    return 2 if compute == "1g" and int(memory.removesuffix("gb")) > 1.5 * share else _SIZES[compute]


def compute_slices(profile: str) -> int:
    """Compute slices (of 7) of a profile: its first digit."""
    return int(profile.partition("g")[0])


# Names of the profiles by board: 1g, 1g with double memory, 2g, 3g, 4g, 7g. Where they may start and how many fit is the same on all of them.
_PROFILE_GB = {
    "h100-sxm-80gb": (10, 20, 20, 40, 40, 80),
    "h100-pcie-80gb": (10, 20, 20, 40, 40, 80),
    "h100-nvl-94gb": (12, 24, 24, 47, 47, 94),
    "h200-141gb": (18, 35, 35, 71, 71, 141),
    "a100-40gb": (5, 10, 10, 20, 20, 40),
    "a100-80gb": (10, 20, 20, 40, 40, 80),
}
_PLACEMENTS = (
    ("1g", (0, 1, 2, 3, 4, 5, 6), 1, 7),
    ("1g", (0, 2, 4, 6), 2, 4),
    ("2g", (0, 2, 4), 2, 3),
    ("3g", (0, 4), 4, 2),
    ("4g", (0,), 4, 1),
    ("7g", (0,), 8, 1),
)


def mig_profiles(board: Board) -> list[tuple[str, tuple[int, ...], int, int]]:
    """(name, first positions, memory positions taken, most instances) of each profile that the board offers; none without MIG."""
    names = _PROFILE_GB.get(board.sku, ())
    return [(f"{compute}.{gb}gb", starts, size, most) for (compute, starts, size, most), gb in zip(_PLACEMENTS, names, strict=False)]


def slice_memory_mib(board: Board, size: int) -> int:
    """Memory of an instance of `size` positions, as the driver prints it: 9984 MiB for a 1g.10gb of an H100. Estimated where it is not published."""
    published = _SLICE_MEMORY_MIB.get(board.sku, {})
    return published.get(size) or round(board.memory_mib * size / _POSITIONS * 0.985 / 64) * 64


_SLICE_MEMORY_MIB = {
    "h100-sxm-80gb": {1: 9984, 2: 20096, 4: 40448, 8: 81152},
    "h100-pcie-80gb": {1: 9984, 2: 20096, 4: 40448, 8: 81152},
    "h100-nvl-94gb": {2: 22144, 4: 47488, 8: 95360},
    "h200-141gb": {1: 16384, 2: 33280, 8: 143360},
    "a100-40gb": {1: 4864, 2: 9856, 4: 19968, 8: 40192},
    "a100-80gb": {1: 9856, 2: 19968, 4: 40192, 8: 80384},
}

_XID_TEXTS = {
    0: "No Error",
    13: "Graphics Engine Exception",
    31: "GPU memory page fault",
    43: "GPU stopped processing",
    45: "Preemptive cleanup, due to previous errors",
    48: "Double Bit ECC Error",
    63: "ECC page retirement or row remapping recording event",
    64: "ECC page retirement or row remapper recording failure",
    74: "NVLINK Error",
    79: "GPU has fallen off the bus",
    94: "Contained ECC error",
    95: "Uncontained ECC error",
    119: "GSP RPC timeout",
}


def xid_text(xid: int) -> str:
    """The `err_msg` label of an XID."""
    return _XID_TEXTS.get(xid, "Unknown Error")
