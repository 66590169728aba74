"""A stand-in of the Hugging Face Hub with one model."""

import hashlib
import http.server
import json
import threading

COMMIT = "a" * 40


class FakeHub:
    """Serves the files of a folder as the model `owner/model`. With `stalls`, weights never end."""

    def __init__(self, folder, stalls=False):
        files = {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.is_file()}
        self.stalled, self.released = threading.Event(), threading.Event()
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                name = self.path.rsplit("/", 1)[-1]
                if "/api/models/" in self.path:
                    return self.send(json.dumps({"id": "owner/model", "sha": COMMIT, "siblings": siblings}).encode())
                if name not in files:
                    return self.send_error(404)
                if stalls and name.endswith(".safetensors"):
                    return self.stall(files[name], name)
                self.send(files[name], checksum(name, files[name]))

            do_HEAD = do_GET

            def send(self, body, tag=None):
                self.begin(len(body), tag)
                if self.command != "HEAD":
                    self.wfile.write(body)

            def begin(self, size, tag):
                self.send_response(200)
                self.send_header("Content-Length", str(size))
                if tag:
                    self.send_header("ETag", f'"{tag}"')
                    self.send_header("X-Repo-Commit", COMMIT)
                self.end_headers()

            def stall(self, body, name):
                self.begin(len(body), checksum(name, body))
                self.wfile.write(body[:1000])
                self.wfile.flush()
                hub.stalled.set()
                hub.released.wait(60)
                self.close_connection = True

        def sibling(name, body):
            entry = {"rfilename": name, "size": len(body), "blobId": git_hash(body)}
            if name.endswith(".safetensors"):
                entry["lfs"] = {"sha256": checksum(name, body), "size": len(body), "pointerSize": 130}
            return entry

        siblings = [sibling(name, body) for name, body in files.items()]
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.endpoint = "http://127.0.0.1:%d" % self.server.server_address[1]

    def close(self):
        self.released.set()
        self.server.shutdown()
        self.server.server_close()


def git_hash(body):
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


def checksum(name, body):
    return hashlib.sha256(body).hexdigest() if name.endswith(".safetensors") else git_hash(body)
