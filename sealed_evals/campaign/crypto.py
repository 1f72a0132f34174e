"""Keys and encryption of a campaign, by the library `cryptography`; the only module that imports it.

One secret, and one key for each use of it (HKDF, RFC 5869): whoever is handed the key of a shard
can open that shard and nothing else. Shards are encrypted with ChaCha20-Poly1305 (RFC 8439), bound
to their campaign and their name, so that neither can be exchanged for another.
"""

from __future__ import annotations

import hashlib
import hmac
import os

from harness.errors import DataError, ModelError

KEY_BYTES = 32
NONCE_BYTES = 12


def derive(secret: bytes, use: str) -> bytes:
    """Key (32 bytes) for one use; nothing about the secret or another key follows from it.

    Args:
        secret: 32 bytes.
        use: e.g. "shard/003".

    Raises:
        ModelError: `cryptography` is not installed.
    """
    try:
        from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415 - an extra
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF  # noqa: PLC0415
    except ImportError:
        raise _missing() from None
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=f"specpilot-harness/{use}".encode()).derive(secret)


def encrypt(plain: bytes, key: bytes, bound_to: str) -> bytes:
    """Nonce and ciphertext.

    Args:
        plain: what to hide.
        key: 32 bytes.
        bound_to: must be given again to decrypt.

    Raises:
        ModelError: `cryptography` is not installed.
    """
    try:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305  # noqa: PLC0415
    except ImportError:
        raise _missing() from None
    nonce = os.urandom(NONCE_BYTES)
    return nonce + ChaCha20Poly1305(key).encrypt(nonce, plain, bound_to.encode())


def decrypt(sealed: bytes, key: bytes, bound_to: str, where: str) -> bytes:
    """What was encrypted.

    Raises:
        DataError: another key, another binding, or a changed byte; which one cannot be told.
        ModelError: `cryptography` is not installed.
    """
    try:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305  # noqa: PLC0415
    except ImportError:
        raise _missing() from None
    try:
        return ChaCha20Poly1305(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], bound_to.encode())
    except (InvalidTag, ValueError):
        raise DataError(
            f"{where} cannot be opened: the key is not its key, or a byte was changed; "
            "restore the file and the controller's folder"
        ) from None


def mac(key: bytes, text: str) -> bytes:
    """HMAC-SHA256 (32 bytes) of a text."""
    return hmac.digest(key, text.encode(), hashlib.sha256)


def _missing() -> ModelError:
    return ModelError("unseen shards need `cryptography`: pip install 'specpilot-harness[campaign]'")
