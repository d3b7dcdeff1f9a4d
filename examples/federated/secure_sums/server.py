"""The Flower server: it passes on public keys, adds up masked words, and saves the model of the total."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from cldnet import load_map
from secure_sums.masks import Roster, RoundError, Words, total
from secure_sums.sums import Agreement, model_of, read_classes

app = ServerApp()
_log = logging.getLogger("flwr")


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Wait for the clients, repeat the round until all that are left have answered, and save the model."""
    config = context.run_config
    agreement = Agreement(load_map(str(config["map"])), read_classes(str(config["classes"])))
    clients = _wait_for(grid, int(config["clients"]), float(config["timeout"]))
    for _ in range(int(config["rounds"])):
        answers, roster = _round(grid, clients, agreement, float(config["timeout"]))
        try:
            words = total(answers, roster)
        except RoundError as error:
            _log.warning("The round is refused. %s", error)
            clients = sorted(answers)  # those that did not answer are left out
            continue
        clf = model_of(words, agreement, float(config["largest"]))
        clf.save(str(config["model"]))
        rows = int(clf.statistics().rows)
        _log.info("Total of %d clients: %d samples, %d classes.", len(answers), rows, len(clf.classes_))
        _log.info("Saved %s", config["model"])
        return
    raise RuntimeError(f"No total after {config['rounds']} rounds.")


def _round(grid: Grid, clients: Sequence[int], agreement: Agreement, timeout: float) -> tuple[dict[int, Words], Roster]:
    """Collect a fresh key from each client, show all keys to all, and collect the masked words."""
    session = secrets.token_bytes(16)
    about = {"session": session, "map_id": agreement.features.map_id}
    replies = _ask(grid, clients, "query.key", about, timeout)
    keys = {client: reply["answer"]["public"] for client, reply in replies.items()}
    roster = Roster(session, keys, agreement.digest)
    _log.info("Round with %d clients.", len(keys))
    shown = {"clients": [str(client) for client in sorted(keys)], "keys": [keys[client] for client in sorted(keys)]}
    answers = {}
    for client, reply in _ask(grid, sorted(keys), "train.sums", {**about, **shown}, timeout).items():
        if reply["answer"]["refused"]:
            _log.warning("Client %d refuses; its own log says why.", client)
            continue
        answers[client] = reply["masked"]["words"].numpy()
        _log.info("Client %d sent %d words: %s …", client, len(answers[client]), _shown(answers[client]))
    return answers, roster


def _ask(
    grid: Grid, clients: Sequence[int], what: str, content: dict[str, object], timeout: float
) -> dict[int, RecordDict]:
    """Send the same to all clients, and return the content of those replies that came."""
    messages = [Message(RecordDict({"round": ConfigRecord(content)}), client, what) for client in clients]
    replies = grid.send_and_receive(messages, timeout=timeout)
    return {reply.metadata.src_node_id: reply.content for reply in replies if not reply.has_error()}


def _wait_for(grid: Grid, count: int, timeout: float) -> list[int]:
    """Wait until there are enough clients, and return the ids of all that are there."""
    end = time.monotonic() + timeout
    while len(found := sorted(grid.get_node_ids())) < count:
        if time.monotonic() > end:
            raise RuntimeError(f"{len(found)} of {count} clients came within {timeout:g} s.")
        time.sleep(0.5)
    return found


def _shown(words: Words) -> str:
    return " ".join(f"{word:016x}" for word in words[:3].tolist())
