"""Processes that look like an SGLang server's to whoever reads /proc, and its HTTP: for tests that kill and stop them.

Started as `python -m sglang.launch_server --port P --tp N`. The file FAKE_CONTROL holds words that change it:
closed (no port yet), starting (503 at once), slow (no generation), short (a token too few), nan, reaping (no zombies),
compiling (a compiler is at work below it), stalling (a stream that stands still), garbage (one letter for ever),
mute (no answer of a scheduler, which lives).
A health check or a generation is answered by a scheduler, so a stopped or dead one answers nothing.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

INFO = {
    "attention_backend": "flashinfer", "sampling_backend": "pytorch", "tp_size": 1, "mem_fraction_static": 0.5,
    "disable_radix_cache": False, "api_key": "secret", "internal_states": [{}], "max_req_input_len": 4000,
}  # fmt: skip
WAIT_S = float(os.environ.get("FAKE_WAIT_S", "0.8"))
CHILD = """
import ctypes, os, signal, socket, sys
ctypes.CDLL(None).prctl(15, sys.argv[1].encode())
if os.environ.get("FAKE_ORPHANS") != "yes":
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
channel = socket.socket(fileno=int(sys.argv[2]))
while word := channel.recv(1):
    channel.send(word)
"""


def argument(name: str, default: str) -> str:
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default


def start(title: str) -> socket.socket:
    """Start a child with that title in its command line and, cut, as its name."""
    ours, its = socket.socketpair()
    argv = [title, "-c", CHILD, title, str(its.fileno())]
    subprocess.Popen(argv, executable=sys.executable, pass_fds=[its.fileno()])
    its.close()
    ours.settimeout(WAIT_S)
    return ours


class Server:
    def __init__(self) -> None:
        self.control = Path(os.environ["FAKE_CONTROL"])
        size = int(argument("--tp", "1"))
        names = [f"sglang::scheduler_TP{rank}" if size > 1 else "sglang::scheduler" for rank in range(size)]
        self.channels = [start(name) for name in [*names, "sglang::detokenizer"]]
        self.lock = threading.Lock()

    def words(self) -> str:
        return self.control.read_text()

    def answered(self) -> bool:
        """Say whether every child answers in time."""
        with self.lock:
            if "mute" in self.words():
                time.sleep(WAIT_S)
                return False
            try:
                for channel in self.channels:
                    channel.send(b"x")
                return all(channel.recv(100) for channel in self.channels)
            except OSError:
                time.sleep(WAIT_S)
                return False


def generation(words: str, tokens: int) -> dict[str, Any]:
    count = tokens - 1 if "short" in words else tokens
    logprob = float("nan") if "nan" in words else -1.5
    rows = [[logprob, 7 if "garbage" in words else 5 + index, None] for index in range(count)]
    text = "!" * count if "garbage" in words else "Paris, Thursday, 8, 42, H₂O and a + b"
    return {"text": text, "meta_info": {"completion_tokens": count, "output_token_logprobs": rows}}


def handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def reply(self, status: int, body: bytes = b"") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:
            words = server.words()
            if self.path == "/model_info":
                self.reply(200, b"{}")
            elif self.path == "/server_info":
                self.reply(200, json.dumps(INFO).encode())
            elif "starting" in words:
                self.reply(503)
            else:
                self.reply(200 if server.answered() else 503)

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            words = server.words()
            if "slow" in words or not server.answered():
                time.sleep(30)
            tokens = asked["sampling_params"]["max_new_tokens"]
            if asked.get("stream"):
                self.stream(words, tokens)
            else:
                self.reply(200, json.dumps(generation(words, tokens)).encode())

        def stream(self, words: str, tokens: int) -> None:
            self.send_response(200)
            self.send_header("Connection", "close")
            self.end_headers()
            for count in sorted({1, tokens}):
                self.wfile.write(b"data: " + json.dumps(generation(words, count)).encode() + b"\n\n")
                self.wfile.flush()
                if "stalling" in words:
                    time.sleep(30)
            self.wfile.write(b"data: [DONE]\n\n")
            self.close_connection = True

    return Handler


def main() -> None:
    server = Server()
    ctypes.CDLL(None).prctl(15, b"python")
    if "compiling" in server.words():
        words = [
            "/x/bin/cicc",
            "-c",
            "import time; time.sleep(60)",
            "/cache/flashinfer/0.7.2/120f/cached_ops/norm/x.cu",
        ]
        subprocess.Popen(words, executable=sys.executable)
    if "reaping" in server.words():
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while "closed" in server.words():
        time.sleep(0.05)
    ThreadingHTTPServer(("127.0.0.1", int(argument("--port", "30000"))), handler(server)).serve_forever()


if __name__ == "__main__":
    main()
