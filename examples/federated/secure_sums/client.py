"""The Flower client: it makes a key for each round, and answers once with its masked sums."""

from __future__ import annotations

import json
import logging

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from cldnet import load_map
from secure_sums.demo import rows_of
from secure_sums.keys import new_secret, public_key, shared_secret
from secure_sums.masks import Roster, RoundError, Words, masked
from secure_sums.sums import Agreement, words_of

app = ClientApp()
_log = logging.getLogger("secure_sums")


@app.query("key")
def send_key(message: Message, context: Context) -> Message:
    """Make a pair of keys for one round. The secret one stays here: Flower never sends a client's state."""
    secret, session = new_secret(), message.content["round"]["session"]
    context.state["key"] = ConfigRecord({"session": session, "secret": secret})
    return _reply(message, ConfigRecord({"public": public_key(secret)}))


@app.train("sums")
def send_sums(message: Message, context: Context) -> Message:
    """Send the sums of this client's samples, masked for the clients of the roster."""
    try:
        words = _answer(message.content["round"], context)
    except ValueError as error:  # the reason may tell of the data, so the server is not told it
        _log.error("This client refuses the round. %s", error)
        return _reply(message, ConfigRecord({"refused": True}))
    return _reply(message, ConfigRecord({"refused": False}), words)


def _answer(asked: ConfigRecord, context: Context) -> Words:
    key = context.state.pop("key", None)  # used once: two answers under the same masks would tell their difference
    if key is None or key["session"] != asked["session"]:
        raise RoundError("There is no key for this round, or it was used.")
    settings, secret, own = context.node_config, key["secret"], context.node_id
    agreement = Agreement(load_map(str(settings["map"])), tuple(json.loads(str(settings["classes"]))))
    if agreement.features.map_id != asked["map_id"]:
        raise RoundError(f"The round is over the map {asked['map_id']}; ours is {agreement.features.map_id}.")
    keys = dict(zip(map(int, asked["clients"]), asked["keys"], strict=True))
    roster = Roster(asked["session"], keys, agreement.digest)
    roster.check(own, public_key(secret), least=int(settings["least"]))
    _fail_if_asked(context)
    return masked(words_of(*rows_of(int(settings["client"])), agreement), own, secret, roster, shared_secret)


def _fail_if_asked(context: Context) -> None:
    """Drop out, for the demonstration, if the client was started with ``drops=true``."""
    if context.node_config.get("drops", False):
        raise RoundError("It was started with drops=true.")


def _reply(message: Message, said: ConfigRecord, words: Words | None = None) -> Message:
    content = RecordDict({"answer": said})
    if words is not None:
        content["masked"] = ArrayRecord({"words": Array(words)})
    return Message(content, reply_to=message)
