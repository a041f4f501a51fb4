#!/usr/bin/env python3
"""A child for the parent of --isolate: says it is healthy, and upgrades connections to an echo."""
import socket
import sys
import threading


def serve(c):
    data = b""
    while b"\r\n\r\n" not in data:
        part = c.recv(4096)
        if not part:
            return c.close()
        data += part
    head, rest = data.split(b"\r\n\r\n", 1)
    lines = head.split(b"\r\n")
    headers = dict(line.lower().split(b": ", 1) for line in lines[1:] if b": " in line)
    if b"input_tokens" in lines[0]:
        c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello")
    elif headers.get(b"upgrade") != b"websocket":
        body = b'{"status": "ok"}'
        c.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    elif headers.get(b"sec-websocket-key") == b"no":
        c.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 6\r\n\r\nno key")
    else:
        c.sendall(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: %s\r\nX-Target: %s\r\n\r\n%s"
                  % (headers[b"sec-websocket-key"], lines[0].split(b" ")[1], rest))
        while part := c.recv(1 << 16):
            c.sendall(part)
            if part == b"bye\n":
                break
    c.close()


listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[sys.argv.index("--unix") + 1])
listener.listen(16)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
