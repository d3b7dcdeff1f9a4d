"""X25519 keys, of the package cryptography, which comes with Flower. Make a new pair for each round."""

from __future__ import annotations

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey


def new_secret() -> bytes:
    """Make a secret key."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(secret: bytes) -> bytes:
    """The public key that belongs to a secret one."""
    return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw()


def shared_secret(secret: bytes, public: bytes) -> bytes:
    """What two clients share, from the secret key of one and the public key of the other."""
    return X25519PrivateKey.from_private_bytes(secret).exchange(X25519PublicKey.from_public_bytes(public))
