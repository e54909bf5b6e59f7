"""Reset of a GPU and reboot of the node by the programs that do it: NVML itself has no call for either.

`nvidia-smi --gpu-reset` wants that nobody holds the GPU, so the agent lets go of NVML before. Both programs are options, for an agent in a
container that has to reach the host's.
"""

from __future__ import annotations

import shlex
import subprocess

from agent.backends.base import BackendError, ErrorCode

RESET_COMMAND = "nvidia-smi"
REBOOT_COMMAND = "systemctl reboot"
RESET_SECONDS = 120.0
REBOOT_SECONDS = 30.0
# Exit statuses that nvidia-smi documents.
_STATUSES = {2: ErrorCode.INVALID, 3: ErrorCode.NOT_SUPPORTED, 4: ErrorCode.NOT_PERMITTED, 6: ErrorCode.NOT_PRESENT, 15: ErrorCode.GPU_LOST}
_WORDS = {
    "in use": ErrorCode.IN_USE,
    "being used": ErrorCode.IN_USE,
    "not supported": ErrorCode.NOT_SUPPORTED,
    "insufficient permissions": ErrorCode.NOT_PERMITTED,
    "no devices were found": ErrorCode.NOT_PRESENT,
}


def reset_gpu(gpu_uuid: str, *, command: str = RESET_COMMAND, seconds: float = RESET_SECONDS) -> None:
    """Returns when the reset is over. Raises BackendError; UNAVAILABLE: it is not known whether it happened."""
    status, output = _run([*shlex.split(command), "--gpu-reset", "-i", gpu_uuid], seconds)
    if status == 0:
        return
    lower = output.lower()
    code = next((code for words, code in _WORDS.items() if words in lower), _STATUSES.get(status, ErrorCode.UNAVAILABLE))
    raise BackendError(code, f"nvidia-smi: {_last_line(output) or f'exit status {status}'}")


def reboot(*, command: str = REBOOT_COMMAND) -> None:
    """Returns when the reboot was asked for. Raises BackendError; UNAVAILABLE: it is not known whether it was."""
    status, output = _run(shlex.split(command), REBOOT_SECONDS)
    if status != 0:
        raise BackendError(ErrorCode.NOT_PERMITTED, f"{command}: {_last_line(output) or f'exit status {status}'}")


def _run(arguments: list[str], seconds: float) -> tuple[int, str]:
    """Exit status and what it said. A program that cannot be started did nothing; one that does not end in time may have."""
    try:
        done = subprocess.run(arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=seconds, check=False)
    except subprocess.TimeoutExpired as error:
        raise BackendError(ErrorCode.UNAVAILABLE, f"{arguments[0]} did not end within {seconds:.0f} s") from error
    except OSError as error:
        raise BackendError(ErrorCode.NOT_SUPPORTED, f"{arguments[0]}: {error.strerror}") from error
    if done.returncode < 0:
        raise BackendError(ErrorCode.UNAVAILABLE, f"{arguments[0]} was ended by signal {-done.returncode}")
    return done.returncode, f"{done.stdout}\n{done.stderr}"


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return "".join(character for character in lines[-1] if character.isprintable())[:200] if lines else ""
