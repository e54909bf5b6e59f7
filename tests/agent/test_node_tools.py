"""Reset and reboot through programs that play `nvidia-smi` and `systemctl`, as processes of their own."""

import stat
from pathlib import Path

import pytest

from agent.backends import node_tools
from agent.backends.base import BackendError, ErrorCode
from tests.agent.documents import A


def program(folder: Path, text: str) -> str:
    path = folder / "program"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_a_reset_names_the_gpu_by_its_uuid(tmp_path: Path) -> None:
    said = tmp_path / "said"
    node_tools.reset_gpu(A, command=program(tmp_path, f'echo "$@" >{said}; echo "GPU 00000000:3B:00.0 was successfully reset."'))
    assert said.read_text().split() == ["--gpu-reset", "-i", A]


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("echo 'The following GPUs could not be reset:'; echo '  GPU 00000000:04:00.0: In use by another client'; exit 255", ErrorCode.IN_USE, "In use"),
        ("echo 'Resetting GPU 00000000:04:00.0 is not supported.'; exit 3", ErrorCode.NOT_SUPPORTED, "not supported"),
        ("exit 4", ErrorCode.NOT_PERMITTED, "exit status 4"),
        ("echo 'No devices were found'; exit 6", ErrorCode.NOT_PRESENT, "No devices"),
        ("echo 'Unable to determine the device handle: GPU is lost.' >&2; exit 15", ErrorCode.GPU_LOST, "GPU is lost"),
        ("echo 'Something else'; exit 9", ErrorCode.UNAVAILABLE, "Something else"),
        ("kill -9 $$", ErrorCode.UNAVAILABLE, "signal 9"),
    ],
)
def test_what_nvidia_smi_says_becomes_a_code(tmp_path: Path, text: str, code: ErrorCode, words: str) -> None:
    with pytest.raises(BackendError, match=words) as caught:
        node_tools.reset_gpu(A, command=program(tmp_path, text))
    assert caught.value.code is code


def test_a_program_that_is_not_there_did_nothing(tmp_path: Path) -> None:
    with pytest.raises(BackendError) as caught:
        node_tools.reset_gpu(A, command=str(tmp_path / "none"))
    assert caught.value.code is ErrorCode.NOT_SUPPORTED


def test_a_program_that_does_not_end_may_have_done_it(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="did not end") as caught:
        node_tools.reset_gpu(A, command=program(tmp_path, "exec sleep 5"), seconds=0.2)
    assert caught.value.code is ErrorCode.UNAVAILABLE


def test_a_reboot_is_asked_for_by_a_command_with_arguments(tmp_path: Path) -> None:
    said = tmp_path / "said"
    node_tools.reboot(command=f"{program(tmp_path, f'echo $@ >{said}')} --host reboot")
    assert said.read_text().split() == ["--host", "reboot"]
    with pytest.raises(BackendError, match="Access denied") as caught:
        node_tools.reboot(command=program(tmp_path, "echo 'Access denied' >&2; exit 1"))
    assert caught.value.code is ErrorCode.NOT_PERMITTED
