"""Ask a Flower client of examples/federated as a server would; print which records it sends and keeps.

Run it in an environment with Flower, from the example's folder, with a folder for the maps.
"""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path
from typing import Any

OWN, OTHER = 7, 9


def main(folder: Path) -> dict[str, Any]:
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity
    from secure_sums import keys, masks
    from secure_sums.client import app
    from secure_sums.demo import public_map, rows_of
    from secure_sums.sums import Agreement, words_of

    from cldnet import save_map

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    features = public_map()
    save_map(features, folder / "shared.map")
    agreement = Agreement(features, tuple(range(10)))
    settings = {"map": str(folder / "shared.map"), "classes": json.dumps([*range(10)]), "client": 1, "least": 2}
    context = Context(1, OWN, settings, RecordDict(), {})

    def ask(what: str, content: dict[str, Any]) -> RecordDict:
        reply = app(Message(RecordDict({"round": ConfigRecord(content)}), OWN, what), context)
        return reply.content

    def names(content: RecordDict) -> dict[str, list[str]]:
        return {name: sorted(record) for name, record in content.items()}

    def begun() -> tuple[dict[str, Any], RecordDict, bytes]:
        session, secret = secrets.token_bytes(16), keys.new_secret()
        key = ask("query.key", {"session": session, "map_id": features.map_id})
        public = {OWN: key["answer"]["public"], OTHER: keys.public_key(secret)}
        shown = {"clients": [str(client) for client in public], "keys": [*public.values()]}
        return {"session": session, "map_id": features.map_id, **shown}, key, secret

    asked, key, secret = begun()
    answer = ask("train.sums", asked)
    said = {"key": names(key), "sums": names(answer), "kept": [*context.state]}
    # The other client's masked zeros: the total is this client's sums.
    roster = masks.Roster(
        asked["session"],
        dict(zip((OWN, OTHER), asked["keys"], strict=True)),
        Agreement(features, agreement.classes).digest,
    )
    sent = answer["masked"]["words"].numpy()
    zeros = sent[masks.CHECKS :] * 0
    total = masks.total({OWN: sent, OTHER: masks.masked(zeros, OTHER, secret, roster, keys.shared_secret)}, roster)
    own = words_of(*rows_of(1), agreement)
    said["same"] = bool((total == own).all()) and not (sent[masks.CHECKS :] == own).any()
    said["again"] = names(ask("train.sums", asked))
    said["other map"] = names(ask("train.sums", {**begun()[0], "map_id": "another"}))
    settings["least"] = 3
    said["too few"] = names(ask("train.sums", begun()[0]))
    return said


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
