"""The program inside a sandbox that carries many TCP connections over its own standard input and output.

Run as `python3 -IS -c SOURCE [PORT]`: connections to PORT of the loopback interface go to the owner, and the
owner may ask for connections to any port inside. The owner imports this module for the frame format only.

    frame = kind (u8), stream (u32), value (u32), and for DATA `value` bytes

Each side may send WINDOW bytes of a stream; CREDIT gives back what has been taken, so that one slow reader
neither stops the others nor fills the memory. Standard library only, for Python 3.8 and later.
"""

import os
import select
import socket
import struct
import sys

HEADER = struct.Struct("!BII")
READY, OPEN, OPENED, DATA, END, RESET, CREDIT = range(7)
"""READY: the program listens. OPEN: connect to port `value` (or: such a connection came in). OPENED: it is
connected. END: nothing more comes. RESET: it is over. CREDIT: `value` bytes more may be sent."""
WINDOW = 1 << 18
PIECE = 1 << 16
MAX_STREAMS = 256
LOOPBACK = "127.0.0.1"


class Stream:
    """One connection."""

    def __init__(self, sock, *, connecting):
        self.sock, self.connecting = sock, connecting
        self.out = bytearray()
        self.credit = WINDOW
        self.reading = not connecting
        self.out_ended = self.shut = False
        sock.setblocking(False)

    def events(self):
        """What to wait for."""
        wanted = select.POLLIN if self.reading and self.credit > 0 else 0
        unsent = self.out or (self.out_ended and not self.shut)
        return wanted | (select.POLLOUT if self.connecting or unsent else 0)


class Relay:
    """The loop."""

    def __init__(self, port):
        self.streams, self.numbers, self.next_number = {}, {}, 2
        self.inbox = bytearray()
        self.listener = socket.socket()
        self.listening = port > 0
        if self.listening:
            self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.listener.bind((LOOPBACK, port))
            self.listener.listen(128)
            self.listener.setblocking(False)
        self.send(READY, 0, 0)

    def run(self):
        """Serve until the owner is gone."""
        while True:
            poll = select.poll()
            poll.register(0, select.POLLIN)
            if self.listening and len(self.streams) < MAX_STREAMS:
                poll.register(self.listener, select.POLLIN)
            for number, stream in self.streams.items():
                events = stream.events()
                if events:
                    poll.register(stream.sock, events)
                    self.numbers[stream.sock.fileno()] = number
            for fd, event in poll.poll():
                if fd == 0:
                    self.receive()
                elif fd == self.listener.fileno():
                    self.accept()
                else:
                    self.attend(self.numbers[fd], event)

    def send(self, kind, stream, value, data=b""):
        """Write one frame."""
        left = memoryview(HEADER.pack(kind, stream, value) + data)
        while left:
            left = left[os.write(1, left) :]

    def receive(self):
        """Take what the owner wrote."""
        data = os.read(0, 1 << 18)
        if not data:
            os._exit(0)
        self.inbox += data
        while len(self.inbox) >= HEADER.size:
            kind, number, value = HEADER.unpack_from(self.inbox)
            size = HEADER.size + (value if kind == DATA else 0)
            if len(self.inbox) < size:
                return
            data = bytes(self.inbox[HEADER.size : size])
            del self.inbox[:size]
            self.obey(kind, number, value, data)

    def obey(self, kind, number, value, data):
        """Do what one frame says."""
        if kind == OPEN:
            self.connect(number, value)
            return
        stream = self.streams.get(number)
        if stream is None:
            return
        if kind == DATA:
            stream.out += data
        elif kind == END:
            stream.out_ended = True
        elif kind == CREDIT:
            stream.credit += value
        else:
            self.drop(number)

    def connect(self, number, port):
        """Begin a connection that the owner wants."""
        stream = self.streams[number] = Stream(socket.socket(), connecting=True)
        try:
            stream.sock.connect((LOOPBACK, port))
        except BlockingIOError:
            return
        except (OSError, OverflowError):
            self.drop(number, tell=True)

    def accept(self):
        """Take a connection from inside."""
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return
        number, self.next_number = self.next_number, self.next_number + 2
        self.streams[number] = Stream(sock, connecting=False)
        self.send(OPEN, number, 0)

    def attend(self, number, event):
        """Move what can be moved."""
        stream = self.streams.get(number)
        if stream is None:
            return
        try:
            if stream.connecting:
                problem = stream.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
                if problem:
                    raise OSError(problem, os.strerror(problem))
                stream.connecting, stream.reading = False, True
                self.send(OPENED, number, 0)
                return
            if event & select.POLLOUT:
                self.flush(number, stream)
            if event & (select.POLLIN | select.POLLHUP | select.POLLERR) and stream.reading and stream.credit:
                self.fetch(number, stream)
        except BlockingIOError:
            return
        except OSError:
            self.drop(number, tell=True)

    def flush(self, number, stream):
        """Write to the connection."""
        if stream.out:
            sent = stream.sock.send(stream.out[:PIECE])
            del stream.out[:sent]
            self.send(CREDIT, number, sent)
        if stream.out_ended and not stream.out and not stream.shut:
            stream.shut = True
            stream.sock.shutdown(socket.SHUT_WR)
            self.drop_if_over(number, stream)

    def fetch(self, number, stream):
        """Read from the connection."""
        data = stream.sock.recv(min(PIECE, stream.credit))
        if data:
            stream.credit -= len(data)
            self.send(DATA, number, len(data), data)
        else:
            stream.reading = False
            self.send(END, number, 0)
            self.drop_if_over(number, stream)

    def drop_if_over(self, number, stream):
        """Forget a connection that both sides have ended."""
        if stream.shut and not stream.reading:
            self.drop(number)

    def drop(self, number, *, tell=False):
        """Close a connection."""
        self.streams.pop(number).sock.close()
        if tell:
            self.send(RESET, number, 0)


if __name__ == "__main__":
    Relay(int(sys.argv[1]) if len(sys.argv) > 1 else 0).run()
