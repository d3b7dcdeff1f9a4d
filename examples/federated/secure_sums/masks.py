"""Pairwise masks modulo 2⁶⁴: a server adds up masked words, all masks cancel, and it sees only the total.

Every two clients of a round share a secret. Both expand it to the same random words; one adds them to its own words, the
other subtracts them. The words that one client sends look random; in the sum over all clients nothing of the masks is left.

This is the protocol of Bonawitz et al. (2017) without its recovery of clients that drop out: if one is missing, the total
means nothing, which its check words show, and the round is repeated with new keys. Nothing here imports Flower, CLDNet or
torch. The key exchange is passed in (`secure_sums.keys` has X25519).

References
----------
K. Bonawitz et al., "Practical Secure Aggregation for Privacy-Preserving Machine Learning", CCS 2017.
https://eprint.iacr.org/2017/281
H. Krawczyk and P. Eronen, "HMAC-based Extract-and-Expand Key Derivation Function (HKDF)", RFC 5869.
https://www.rfc-editor.org/rfc/rfc5869
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
#: Computes what two clients share from the secret key of one and the public key of the other.
Exchange = Callable[[bytes, bytes], bytes]

#: Largest number of clients: as many integers below 2⁵³ add up to less than 2⁶³, so a total has a sign and one meaning.
MOST_CLIENTS = 1023
#: Smallest number of clients: the total of one is that client's sums.
LEAST_CLIENTS = 2
#: Words that are added to those of a client: a one, which counts the clients, and a checksum.
CHECKS = 2
_PURPOSE = b"cldnet secure sums 1: "


class RoundError(ValueError):
    """A round that must be repeated with new keys, or a request that a client must not answer."""


@dataclass(frozen=True)
class Roster:
    """Who takes part in a round, and in what: all clients must have been shown the same, or the masks do not cancel.

    Attributes
    ----------
    session : bytes
        Random bytes that no other round has.
    keys : dict of int to bytes
        The public key of each client, by its id, made for this round alone.
    purpose : bytes
        Digest of what is summed: the map, the classes, their order.
    """

    session: bytes
    keys: Mapping[int, bytes]
    purpose: bytes

    @property
    def digest(self) -> bytes:
        """A digest of all of it."""
        parts = [_PURPOSE, self.session, self.purpose]
        for client in sorted(self.keys):
            parts += [str(client).encode(), self.keys[client]]
        return hashlib.sha256(b"".join(len(part).to_bytes(8, "big") + part for part in parts)).digest()

    def check(self, own: int, public: bytes, least: int = LEAST_CLIENTS) -> None:
        """Refuse a roster that a client must not answer.

        Parameters
        ----------
        own : int
            The client's id.
        public : bytes
            The public key that the client has made for this round.
        least : int
            Number of clients below which this client does not take part.
        """
        count = len(self.keys)
        if not max(least, LEAST_CLIENTS) <= count <= MOST_CLIENTS:
            wanted = f"{max(least, LEAST_CLIENTS)} to {MOST_CLIENTS}"
            raise RoundError(f"The round has {count} clients and this one takes part with {wanted}.")
        if self.keys.get(own) != public:
            raise RoundError("The roster does not have the key that this client has made for the round.")
        if len({*self.keys.values()}) < count:
            raise RoundError("Two clients of the roster have the same key.")


def masked(words: Words, own: int, secret: bytes, roster: Roster, exchange: Exchange) -> Words:
    """Add the check words to a client's words, and the masks to all of them: what the client sends.

    Parameters
    ----------
    words : array of uint64
        The client's sums. All clients have as many.
    own : int
        The client's id in the roster.
    secret : bytes
        Its secret key, to be used once: delete it afterwards.
    roster : Roster
        Check it first (`Roster.check`).
    exchange : callable
        Computes a shared secret, as `secure_sums.keys.shared_secret` does.
    """
    digest = roster.digest
    result = with_checks(words, digest)
    for other, public in roster.keys.items():
        if other != own:
            mask = random_words(pair_seed(exchange(secret, public), digest, own, other), len(result))
            result = result + mask if own < other else result - mask  # modulo 2⁶⁴
    return result


def total(answers: Mapping[int, Words], roster: Roster) -> Words:
    """Add up what the clients of a roster sent, and check the result: what the server sees.

    Raises
    ------
    RoundError
        If a client is missing, sent another number of words, or if the masks did not cancel.
    """
    missing = sorted(roster.keys.keys() - answers.keys())
    if missing or answers.keys() != roster.keys.keys():
        raise RoundError(f"{len(missing)} of {len(roster.keys)} clients are missing: repeat the round with new keys.")
    if len(answers) < LEAST_CLIENTS:
        raise RoundError(f"A total needs {LEAST_CLIENTS} clients or more, and {len(answers)} are left.")
    if len({answer.shape for answer in answers.values()}) > 1:
        raise RoundError("The clients sent different numbers of words: they sum different things.")
    return without_checks(add_up(answers.values()), roster.digest, len(roster.keys))


def add_up(parts: Iterable[Words]) -> Words:
    """The sum of several arrays of words, modulo 2⁶⁴."""
    first, *others = parts
    result = _as_words(first).copy()
    for part in others:
        result += _as_words(part)
    return result


def with_checks(words: Words, digest: bytes) -> Words:
    """Put a one and a checksum in front of a client's words. Both add up as the words do."""
    words = _as_words(words)
    return np.concatenate([np.array([1, _checksum(words, digest)], dtype=np.uint64), words])


def without_checks(words: Words, digest: bytes, clients: int) -> Words:
    """Check a total of words that `with_checks` returned, and return the words alone."""
    words = _as_words(words)
    if len(words) < CHECKS or int(words[0]) != clients or int(words[1]) != _checksum(words[CHECKS:], digest):
        raise RoundError(
            "The masks did not cancel, or a word was changed on its way: the total means nothing. Repeat the round with new "
            "keys."
        )
    return words[CHECKS:]


def pair_seed(shared: bytes, digest: bytes, one: int, other: int) -> bytes:
    """Derive the seed of a pair's mask from its shared secret, bound to the roster and to both ids."""
    low, high = sorted((one, other))
    return hkdf(shared, salt=digest, info=_PURPOSE + f"mask of {low} and {high}".encode())


def hkdf(secret: bytes, *, salt: bytes, info: bytes, length: int = 32) -> bytes:
    """HKDF with SHA-256 (RFC 5869)."""
    key = hmac.digest(salt or bytes(32), secret, "sha256")
    block, result = b"", b""
    for number in range(1, -(-length // 32) + 1):
        block = hmac.digest(key, block + info + bytes([number]), "sha256")
        result += block
    return result[:length]


def random_words(seed: bytes, count: int) -> Words:
    """Expand a seed to as many words as asked for, with SHAKE-256."""
    stream = hashlib.shake_256(seed).digest(8 * count)
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64)


def _checksum(words: Words, digest: bytes) -> int:
    """``Σ r_k w_k`` modulo 2⁶⁴ with odd coefficients that all clients know: any single word that changes, changes it.

    It is linear, so the checksum of a total is the total of the checksums, and tells no more than the total does.
    """
    odd = random_words(hkdf(digest, salt=b"", info=_PURPOSE + b"checksum"), len(words)) | np.uint64(1)
    return int((odd * words).sum(dtype=np.uint64))


def _as_words(words: Words) -> Words:
    if words.dtype != np.uint64 or words.ndim != 1:
        raise RoundError(f"Expected one row of uint64, got {words.dtype} of shape {words.shape}.")
    return words
