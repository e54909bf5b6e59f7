"""The console's Ed25519 key that signs desired-state documents. Only web and worker may read it; the gateway relays what they signed."""

from functools import lru_cache
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from django.conf import settings

from agent.protocol import fingerprint_of


class SigningUnavailable(Exception):
    """This process has no usable signing key; the text says why and how to mend it."""


def create_key_file(path: Path) -> str:
    """Make a key, write it as PEM with mode 0600, and return its fingerprint (SHA-256 of the public key, hex). Raises FileExistsError."""
    key = Ed25519PrivateKey.generate()
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return fingerprint_of(key.public_key().public_bytes_raw())


def signing_key() -> Ed25519PrivateKey:
    """The key of MASTHEAD_SIGNING_KEY_FILE. Raises SigningUnavailable."""
    name = settings.SIGNING_KEY_FILE
    if not name:
        raise SigningUnavailable("MASTHEAD_SIGNING_KEY_FILE is not set. Make a key: manage.py create_signing_key PATH")
    path = Path(name)
    try:
        stat = path.stat()
    except OSError as error:
        raise SigningUnavailable(f"MASTHEAD_SIGNING_KEY_FILE: {path}: {error.strerror}") from error
    if stat.st_mode & 0o027:
        raise SigningUnavailable(f"MASTHEAD_SIGNING_KEY_FILE: {path} is open to others (mode {stat.st_mode & 0o777:04o}). chmod 600 {path}")
    return _load(path, stat.st_mtime_ns)


def public_key() -> bytes:
    """The raw public key, 32 bytes, that agents pin. Raises SigningUnavailable."""
    return signing_key().public_key().public_bytes_raw()


@lru_cache(maxsize=4)
def _load(path: Path, changed_at: int) -> Ed25519PrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except OSError as error:
        raise SigningUnavailable(f"MASTHEAD_SIGNING_KEY_FILE: {path}: {error.strerror}") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SigningUnavailable(f"MASTHEAD_SIGNING_KEY_FILE: {path} is not a private key in PEM without a password") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise SigningUnavailable(f"MASTHEAD_SIGNING_KEY_FILE: {path} is not an Ed25519 key")
    return key
