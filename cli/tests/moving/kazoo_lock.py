"""Sections under the lock of kazoo, which is told to see other entries."""

import subprocess
import sys

from kazoo.client import KazooClient

hosts, sections = sys.argv[1], int(sys.argv[2])
client = KazooClient(hosts=hosts)
client.start()
# As kazoo's locks have left it: a node that the other side did not make, and so does not take away.
client.ensure_path("/onelock/nightly")
lock = client.Lock("/onelock/nightly", extra_lock_patterns=["-lock-"])
for _ in range(sections):
    subprocess.run(["sh", "turn.sh", "theirs"], check=True)
    with lock:
        subprocess.run(["sh", "section.sh", "theirs"], check=True)
client.stop()
