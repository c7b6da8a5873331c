"""Has a worker forked; in place of Ray's `setup_worker.py`, which starts one."""

import json
import os
import socket
import sys

CONTEXT, LANGUAGE = "--serialized-runtime-env-context=", "--language="

if __name__ == "__main__":
    contexts = [
        argument.removeprefix(CONTEXT) for argument in sys.argv if argument.startswith(CONTEXT)
    ]
    request = {
        "environment": {**os.environ, **json.loads([*contexts, "{}"][0]).get("env_vars", {})},
        "folder": os.getcwd(),
        "arguments": [
            argument for argument in sys.argv[1:] if not argument.startswith((CONTEXT, LANGUAGE))
        ],
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.connect(os.environ["HOOKYARD_TEST_WORKERS"])
        socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
