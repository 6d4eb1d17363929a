#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""delayed_network.py: a network with a rate and a delay between namespaces, where tc has no netem.

usage: delayed_network.py BYTES_PER_S DELAY_S NAMESPACE...   (root)

Creates the interface delayed0 in each network namespace, with the address 10.81.0.(10+i)/24, and
passes Ethernet frames between them in user space: each interface sends at the rate, and a frame
arrives DELAY_S later. A frame that would wait for more than QUEUE_S is dropped, as in a switch.
Prints "ready", and ends when its stdin is closed; the interfaces end with it.
"""
import collections
import ctypes
import fcntl
import os
import select
import struct
import subprocess
import sys
import time

QUEUE_S = 0.05
FRAME_BYTES = 2048
CLONE_NEWNET = 0x40000000
TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000
OVERHEAD_BYTES = 24  # preamble, checksum and gap of a frame on the wire


def enter(path):
    """Moves this process into the network namespace."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(fd, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), f"setns: {path}")
    os.close(fd)


def open_port(namespace, i):
    enter(f"/run/netns/{namespace}")
    fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", b"delayed0", IFF_TAP | IFF_NO_PI))
    for command in (f"addr add 10.81.0.{10 + i}/24 dev delayed0", "link set delayed0 up"):
        subprocess.run(["ip"] + command.split(), check=True)
    return fd


class Network:
    def __init__(self, rate, delay_s, ports):
        self.rate, self.delay_s, self.ports = rate, delay_s, ports
        self.free_s = {port: 0.0 for port in ports}  # when the port has sent its frames
        self.port_of = {}  # Ethernet address: port
        self.pending = {port: collections.deque() for port in ports}  # (arrival, frame, targets)

    def take(self, port):
        """Reads what the interface has sent."""
        while True:
            try:
                frame = os.read(port, FRAME_BYTES)
            except BlockingIOError:
                return
            now = time.monotonic()
            if self.free_s[port] - now > QUEUE_S:
                continue
            sent = max(now, self.free_s[port]) + (len(frame) + OVERHEAD_BYTES) / self.rate
            self.free_s[port] = sent
            self.port_of[frame[6:12]] = port
            target = self.port_of.get(frame[:6])
            targets = [p for p in self.ports if p != port] if target is None else [target]
            self.pending[port].append((sent + self.delay_s, frame, targets))

    def deliver(self):
        """Writes the frames that have arrived; the seconds to the next one."""
        next_s = 1.0
        for queue in self.pending.values():
            now = time.monotonic()
            while queue and queue[0][0] <= now:
                _, frame, targets = queue.popleft()
                for target in targets:
                    try:
                        os.write(target, frame)
                    except BlockingIOError:
                        pass  # dropped
            if queue:
                next_s = min(next_s, max(0.0, queue[0][0] - now))
        return next_s


def main():
    rate, delay_s = float(sys.argv[1]), float(sys.argv[2])
    ports = [open_port(namespace, i) for i, namespace in enumerate(sys.argv[3:])]
    network = Network(rate, delay_s, ports)
    poller = select.poll()
    for fd in ports + [0]:
        poller.register(fd, select.POLLIN)
    print("ready", flush=True)
    wait_s = 1.0
    while True:
        for fd, _ in poller.poll(wait_s * 1000):
            if fd == 0:
                return
            network.take(fd)
        wait_s = network.deliver()


if __name__ == "__main__":
    main()
