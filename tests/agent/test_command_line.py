"""`masthead-agent` as a person types it: what it refuses, what it says, what it leaves behind."""

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from agent.__main__ import main
from agent.config import ConfigError, Enrolment, check_gateway_url, load_config
from agent.executor import Executor
from agent.journal import Entry, Journal, Phase
from agent.keys import KeyFileError, create_key, load_key, load_or_create_key
from agent.protocol import Bundle, ObservedState, fingerprint_of
from tests.agent.documents import CONSOLE_KEY, T0, A, control, document, layer
from tests.agent.hardware import Hardware
from tests.agent.orders import order


def config_file(folder: Path, text: str = "") -> Path:
    path = folder / "agent.toml"
    path.write_text(f'state_dir = "{folder / "state"}"\n{text}')
    return path


def test_reads_its_configuration(tmp_path: Path) -> None:
    config = load_config(config_file(tmp_path, 'converge_seconds = 2\n[backend]\nkind = "simulated"\nsocket = "/run/x"\nnumber = 3\n'))
    assert (config.backend_kind, config.backend_options) == ("simulated", {"socket": "/run/x", "number": "3"})
    assert (config.converge_seconds, config.inspect_seconds, config.allow_plain_http) == (2, 30, False)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("converge_seconds = nan", "converge_seconds"),
        ("converge_seconds = 0", "converge_seconds"),
        ("allow_plain_http = 1", "allow_plain_http"),
        ("gateway = 3", "gateway: is not a field"),
        ("backend = 3", "backend"),
        ("= 3", "Invalid"),
    ],
)
def test_a_bad_configuration_is_refused_with_file_and_field(tmp_path: Path, text: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = config_file(tmp_path, text)
    assert main(["run", "--config", str(path)]) == 1
    error = capsys.readouterr().err
    assert str(path) in error
    assert says in error


def test_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--config", str(tmp_path / "none.toml")]) == 1
    assert "No such file" in capsys.readouterr().err
    assert main(["run", "--config", str(config_file(tmp_path))]) == 1
    assert "not enrolled" in capsys.readouterr().err
    assert main(["enrol", "--bundle", "%%%", "--config", str(config_file(tmp_path))]) == 1
    assert "bundle" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["../evil", "base", "os", "nothing"])
def test_only_a_file_of_backends_is_a_backend(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = config_file(tmp_path, f'[backend]\nkind = "{kind}"\n')
    state = tmp_path / "state"
    state.mkdir()
    create_key(state / "agent.key")
    Enrolment(7, "ws://127.0.0.1:1/agent", (CONSOLE_KEY,)).save(state / "enrolment.json")
    assert main(["run", "--config", str(path)]) == 1
    assert "backend.kind" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "allowed"),
    [
        ("wss://gateway.example/agent", True),
        ("ws://127.0.0.1:8001/agent", True),
        ("ws://[::1]:8001/agent", True),
        ("ws://localhost/agent", True),
        ("ws://gateway.example/agent", False),
        ("ws://10.0.0.1/agent", False),
        ("https://gateway.example", False),
        ("wss://", False),
        ("wss://host:99999/agent", False),
    ],
)
def test_only_encrypted_gateways_or_this_host(url: str, allowed: bool) -> None:
    if allowed:
        check_gateway_url(url, allow_plain_http=False)
    else:
        with pytest.raises(ConfigError, match="gateway_url"):
            check_gateway_url(url, allow_plain_http=False)


def test_a_gateway_that_cannot_be_reached_leaves_the_node_not_enrolled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = Bundle("ws://127.0.0.1:9/agent", "token", CONSOLE_KEY, fingerprint_of(CONSOLE_KEY))
    path = config_file(tmp_path)
    assert main(["enrol", "--bundle", bundle.encode(), "--config", str(path)]) == 1
    assert "http://127.0.0.1:9/enrol" in capsys.readouterr().err
    assert not (tmp_path / "state" / "enrolment.json").exists()


def test_shows_what_it_holds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, state = config_file(tmp_path), tmp_path / "state"
    state.mkdir()
    Enrolment(7, "ws://127.0.0.1:1/agent", (CONSOLE_KEY,)).save(state / "enrolment.json")
    journal = Journal(state / "journal.sqlite3")
    journal.store_document(document(4, control(layer())))
    journal.write(Entry("clock_range", A, Phase.HELD, {"min_mhz": 1200, "max_mhz": 1400}, 4, T0, 1, ObservedState.APPLIED, {"sm_mhz": 1400}, "", T0, 1))
    executor = Executor(backend=Hardware([A]), cluster=None, journal=journal, node_id=7, trusted_keys=(CONSOLE_KEY,))
    executor.take(order(3, "diagnostics"), T0)
    journal.close()
    assert main(["status", "--config", str(path)]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["node_id"], shown["document_version"]) == (7, 4)
    assert [(found["target"], found["kind"], found["state"]) for found in shown["commands"]] == [(3, "diagnostics", "accepted")]
    assert (shown["controls"][0]["state"], shown["controls"][0]["observed"]) == ("applied", {"sm_mhz": 1400})


def test_the_key_is_made_once_and_only_its_user_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "agent.key"
    key = load_or_create_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert load_or_create_key(path).private_bytes_raw() == key.private_bytes_raw()
    path.chmod(0o640)
    with pytest.raises(KeyFileError, match="chmod 600"):
        load_key(path)


def test_other_files_are_no_key(tmp_path: Path) -> None:
    path = tmp_path / "agent.key"
    path.touch(0o600)
    with pytest.raises(KeyFileError, match="not a private key"):
        load_key(path)
    path.write_bytes(ec.generate_private_key(ec.SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    with pytest.raises(KeyFileError, match="not an Ed25519 key"):
        load_key(path)


def test_a_damaged_enrolment_is_refused_with_the_field(tmp_path: Path) -> None:
    path = tmp_path / "enrolment.json"
    path.write_text('{"node_id": 0, "gateway_url": "ws://x", "console_keys": []}')
    with pytest.raises(ConfigError, match="node_id"):
        Enrolment.load(path)
    path.write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        Enrolment.load(path)
