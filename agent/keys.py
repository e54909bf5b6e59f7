"""The agent's own Ed25519 key: made once, kept in a file that only its user can read."""

from __future__ import annotations

import os
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key


class KeyFileError(Exception):
    """The key file cannot be used; the text says why and what to do."""


def create_key(path: Path) -> Ed25519PrivateKey:
    """Make a key and write it as PEM, mode 0600. Raises FileExistsError rather than replace one."""
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(pem)
        file.flush()
        os.fsync(file.fileno())
    return key


def load_key(path: Path) -> Ed25519PrivateKey:
    """Raises KeyFileError when the file is missing, open to others, or not an Ed25519 key in PEM."""
    try:
        mode = path.stat().st_mode
        pem = path.read_bytes()
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from error
    if mode & 0o077:
        raise KeyFileError(f"{path}: others can read this key (mode {mode & 0o777:04o}). chmod 600 {path}")
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyFileError(f"{path}: not a private key in PEM without a password") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path}: not an Ed25519 key")
    return key


def load_or_create_key(path: Path) -> Ed25519PrivateKey:
    try:
        return create_key(path)
    except FileExistsError:
        return load_key(path)


def public_bytes(key: Ed25519PrivateKey) -> bytes:
    """The raw public key, 32 bytes."""
    return key.public_key().public_bytes_raw()
