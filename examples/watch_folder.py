"""Sort photos as they arrive: each new file of a folder is moved into the folder of its class, or into "unknown".

python watch_folder.py http://127.0.0.1:8321 inbox sorted          (the token in CLDNET_TOKEN; Ctrl-C ends it)

What you then move from sorted/unknown into a folder of sorted/ yourself is taught as that class, a new one or an old one.
"""

import os
import sys
import time
from pathlib import Path

from cldnet import Client

ENDINGS = {".jpg", ".jpeg", ".png", ".webp"}
client = Client(sys.argv[1], os.environ.get("CLDNET_TOKEN"))
inbox, classes = Path(sys.argv[2]), Path(sys.argv[3])
unknown = classes / "unknown"
unknown.mkdir(parents=True, exist_ok=True)


def photos(folder: Path) -> list[Path]:
    """The photos in a folder that are complete: nobody wrote to them in the last second."""
    return [
        path
        for path in sorted(folder.iterdir())
        if path.suffix.lower() in ENDINGS and time.time() - path.stat().st_mtime > 1
    ]


doubtful = {path.name for path in photos(unknown)}
while True:
    for path in photos(inbox):
        (answer,) = client.predict_top([path], 1, reject=0.05)
        if "error" in answer:
            print(f"{path.name} cannot be read: {answer['error']}")
        label = answer.get("label")
        target = (unknown if label is None else classes / str(label)) / path.name
        target.parent.mkdir(exist_ok=True)
        path.rename(target)
        if label is None:
            doubtful.add(path.name)
    for folder in classes.iterdir():
        taught = [] if folder == unknown else [path for path in photos(folder) if path.name in doubtful]
        if taught:
            client.learn(taught, folder.name)
            doubtful -= {path.name for path in taught}
            print(f"learned {len(taught)} photos of {folder.name}")
    time.sleep(1)
